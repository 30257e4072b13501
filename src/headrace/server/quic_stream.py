"""One client-opened stream as a conversation: bytes in until a frame is whole, replies out while the peer reads.

A conversation that stalls with input waiting holds the connection's input back, so that credit is granted no faster
than it is used; a peer that reads nothing for too long loses the stream.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.auth import Identity
from headrace.protocols.spec import Session
from headrace.quic.stream import Stream
from headrace.server.conversation import Conversation, Terms
from headrace.server.engine import Engine

HOLD_AT = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTerms:
    """What every stream of a listener is served with."""

    engine: Engine
    terms: Terms
    new_session: Callable[[], Session]
    write_timeout_s: float


class Household(Protocol):
    """The connection a door is part of."""

    def grown(self, door: "StreamDoor") -> None:
        """More of an unfinished request has come."""

    def left(self, door: "StreamDoor", cause: str) -> None:
        """The conversation is over; with a cause if it was cut short."""


class StreamDoor:
    """The reader of a stream and the outlet of its conversation."""

    def __init__(
        self, stream: Stream, served: StreamTerms, identity: Identity, household: Household, address: str = ""
    ) -> None:
        self.unfinished = 0
        self._stream = stream
        self._household = household
        self._session = served.new_session()
        self._conversation = Conversation(served.engine, self._session, self, served.terms, identity)
        self._conversation.address = address
        self._chunks: list[bytes] = []
        self._wanted = 1
        self._stalled = False
        self._ended = False
        self._held = False
        self._done = False
        self._loop = asyncio.get_running_loop()
        self._write_timeout_s = served.write_timeout_s
        self._written = 0
        self._sent = 0
        self._watch: asyncio.TimerHandle | None = None

    def received(self, data: bytes, ended: bool) -> None:
        """More bytes, or the last: present them once a frame can be whole."""
        self._chunks.append(data)
        self.unfinished += len(data)
        self._ended |= ended
        if self._stalled:
            self._hold(self.unfinished >= HOLD_AT)
        elif self.unfinished >= self._wanted or ended:
            self._present()
        if self.unfinished:
            self._household.grown(self)

    def relieved(self) -> None:
        """The peer has read."""
        self._conversation.resume()
        self.proceed()

    def broke(self, cause: str) -> None:
        """The stream is gone, whole or in one direction."""
        self._leave(cause)

    def write(self, data: bytes) -> None:
        """Send to the peer."""
        self._written += len(data)
        self._stream.write(data)
        self._watch_over()

    def congested(self) -> bool:
        """Whether the peer is behind with reading."""
        return self._stream.crowded

    def close(self) -> None:
        """End our side behind what was written."""
        self._stream.end()
        self._watch_over()
        self._loop.call_soon(self._leave, "")

    def proceed(self) -> None:
        """Present the rest again, if there may be something in it."""
        if not self._done and (self._stalled or self._ended or self.unfinished >= self._wanted):
            self._present()

    def drain(self) -> None:
        """Tell the peer that the server is about to stop; it may still say goodbye."""
        self._conversation.drain()

    def give_up(self, cause: str) -> None:
        """Cut the stream off."""
        self._stream.give_up()
        self._leave(cause)

    def _present(self) -> None:
        if self._done or self._conversation.closing:
            self._chunks.clear()
            self.unfinished = 0
            return
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        view = memoryview(data)
        conversation = self._conversation
        done = conversation.receive(view)
        rest = data if done == 0 else bytes(view[done:])
        self._chunks = [rest] if rest else []
        self.unfinished = len(rest)
        if conversation.closing:
            return
        self._stalled = conversation.stalled
        self._hold(self._stalled and self.unfinished >= HOLD_AT)
        if not self._stalled:
            self._wanted = max(len(rest) + 1, self._session.bytes_wanted(memoryview(rest)))
            if self._ended:
                self._end()

    def _end(self) -> None:
        """Everything the peer said is done with."""
        self._ended = False
        self._chunks.clear()
        self._conversation.ended()
        if not self._conversation.busy and not self._conversation.closing:
            self.close()

    def _hold(self, held: bool) -> None:
        if held is not self._held:
            self._held = held
            self._stream.hold(held)

    def _watch_over(self) -> None:
        if self._watch is None:
            self._sent = self._written - self._stream.backlog()
            self._watch = self._loop.call_later(self._write_timeout_s, self._look)

    def _look(self) -> None:
        """Whether the peer has read anything since the last look."""
        self._watch = None
        backlog = self._stream.backlog()
        if backlog and self._written - backlog <= self._sent:
            self.give_up("does not read")
        elif backlog:
            self._watch_over()

    def _leave(self, cause: str) -> None:
        """Nothing more will be asked or answered; what was written may still be on its way."""
        if self._done:
            return
        self._done = True
        self._chunks.clear()
        self.unfinished = 0
        self._conversation.closed()
        self._hold(False)
        if self._watch is not None and not self._stream.backlog():
            self._watch.cancel()
        self._household.left(self, cause)
