"""The client's side of one SSPQ connection: packets out, at most one answer in. It is never mended."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from headrace.model.errors import HeadraceError, PeerProtocolError
from headrace.protocols.dialling import ConnectionLost, Wire
from headrace.protocols.sspq.frames import (
    HEAD_SIZE,
    PacketType,
    decode_head,
    encode_confirm,
    encode_dead_receive,
    encode_receive,
)


class Declined(HeadraceError):
    """NO_RECEIVE: no message will come. The broker is about to stop, or keeps no dead letters for its clients."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What came for a RECEIVE; nothing else is the same one."""

    retries: int
    payload: bytes


class State(Enum):
    """Where a connection is in the one exchange it can have."""

    FREE = auto()
    ASKED = auto()
    ANSWERED = auto()
    HELD = auto()


class Link(Wire):
    """One connection. `dead` is which queue was asked last."""

    def __init__(self, payload_max: int) -> None:
        super().__init__()
        self.state = State.FREE
        self.dead = False
        self._payload_max = payload_max
        self._rest = bytearray()
        self._held: Answer | None = None
        self._congested = False

    async def send(self, packets: bytes) -> None:
        """Write, and wait until the socket takes more. Raises ConnectionLost."""
        self._write(packets)
        await self._until(lambda: not self._congested)

    def ask(self, *, dead: bool) -> None:
        """RECEIVE or DEAD_RECEIVE."""
        assert self.state is State.FREE
        self.state, self.dead = State.ASKED, dead
        self._write(encode_dead_receive() if dead else encode_receive())

    async def answer(self) -> Answer:
        """The message that was asked for, held from now on. Raises Declined or ConnectionLost.

        Giving up waiting leaves the request standing, for there is no packet that takes it back.
        """
        await self._until(lambda: self.state is not State.ASKED)
        if self._held is None:
            self.state = State.FREE
            raise Declined("no message will come")
        self.state = State.HELD
        return self._held

    async def confirm(self, answer: Answer) -> None:
        """CONFIRM this answer, if it is the one that is held. Raises ConnectionLost."""
        if self._held is answer:
            self._held = None
            self.state = State.FREE
            await self.send(encode_confirm())

    def connection_lost(self, exc: Exception | None) -> None:
        """Transport's call: everybody who waits learns of it."""
        self.lost = self.lost or ConnectionLost(str(exc) if exc else "the broker closed the connection")
        self._changed.set()

    def pause_writing(self) -> None:
        """Transport's call: the broker is behind with reading."""
        self._congested = True

    def resume_writing(self) -> None:
        """Transport's call: the broker caught up."""
        self._congested = False
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        """Transport's call: understand the packets that are whole."""
        self._rest += data
        at, end = 0, len(self._rest)
        try:
            while (head := decode_head(self._rest, at, end, self._payload_max)) is not None:
                start = at + HEAD_SIZE
                if end - start < head.size:
                    break
                at = start + head.size
                self._understand(head.kind, head.retries, bytes(self._rest[start:at]))
        except PeerProtocolError as error:
            self._abort(str(error))
        del self._rest[:at]

    def _understand(self, kind: int, retries: int, payload: bytes) -> None:
        if kind not in (PacketType.SEND, PacketType.NO_RECEIVE):
            return
        if self.state is not State.ASKED:
            raise PeerProtocolError("an answer nobody asked for")
        self._held = Answer(retries, payload) if kind == PacketType.SEND else None
        self.state = State.ANSWERED
        self._changed.set()

    def _write(self, data: bytes) -> None:
        if self.lost is not None:
            raise self.lost
        assert self._transport is not None
        self._transport.write(data)

    async def _until(self, done: Callable[[], bool]) -> None:
        """Wait for a condition or the connection's end. Raises ConnectionLost."""
        while not done():
            if self.lost is not None:
                raise self.lost
            self._changed.clear()
            await self._changed.wait()

    def _abort(self, cause: str) -> None:
        if self._transport is not None and self.lost is None:
            self._transport.abort()
            self.connection_lost(ConnectionError(cause))
