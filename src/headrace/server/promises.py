"""Replies in order, each sent no sooner than what it promises is true."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from headrace.model.errors import BrokerError
from headrace.model.requests import Publish
from headrace.protocols.spec import ReadingSession, Session
from headrace.server.engine import Engine, Sender

HELD_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class Held:
    """A reply that waits: bytes, or the publish that is to be confirmed."""

    publish_ticket: int
    event_ticket: int
    data: bytes = b""
    confirms: Publish | None = None


class Promises:
    """What one session has to say, and what of it has to wait for the disk.

    `publish_ticket` and `event_ticket` are the last ones of the conversation: what it did so far.
    """

    def __init__(self, engine: Engine, session: Session, sender: Sender, write: Callable[[bytes], None]) -> None:
        self.publish_ticket = 0
        self.event_ticket = 0
        self._engine = engine
        self._session = session
        self._sender = sender
        self._write = write
        self._held: deque[Held] = deque()
        self._held_bytes = 0

    def __bool__(self) -> bool:
        """Whether replies wait."""
        return bool(self._held)

    @property
    def crowded(self) -> bool:
        """Whether so much waits that nothing should be added that can wait elsewhere."""
        return self._held_bytes > HELD_BYTES_MAX

    @property
    def published(self) -> bool:
        """Whether every publish of the conversation is durable, or was refused."""
        return self.publish_ticket <= self._engine.publishes_settled

    def journal(self) -> None:
        """Have the broker's events recorded, as something this conversation did."""
        self.event_ticket = self._engine.journal() or self.event_ticket

    def send(self) -> None:
        """Send what the session has to say, behind replies that still wait."""
        self._enqueue(0, 0)

    def hold(self) -> None:
        """Queue the reply just made until everything the conversation did so far is durable."""
        self._enqueue(self.publish_ticket, self.event_ticket)

    def confirm(self, request: Publish) -> None:
        """Have the session answer for the publish just made once it is durable."""
        self.send()
        self._held.append(Held(self.publish_ticket, 0, confirms=request))
        self._engine.when_settled(self._sender)

    def refuse(self, request: Publish, error: BrokerError) -> None:
        """Tell the peer that a publish failed: in place of its confirmation, else ahead of every reply that waits."""
        self.send()
        self._session.publish_refused(request.tags, error)
        refusal = Held(0, 0, self._session.data_to_send())
        self._held_bytes += len(refusal.data)
        if request.confirm:
            place = next(i for i, held in enumerate(self._held) if held.confirms is request)
            self._held[place] = refusal
        else:
            ahead = next((i for i, held in enumerate(self._held) if held.publish_ticket > 0), len(self._held))
            self._held.insert(ahead, refusal)
        self._engine.when_settled(self._sender)

    def release(self) -> None:
        """Send the replies whose promise now holds, in order."""
        engine = self._engine
        ready = []
        while self._held:
            held = self._held[0]
            if held.publish_ticket > engine.publishes_settled or held.event_ticket > engine.events_settled:
                engine.when_settled(self._sender)
                break
            self._held.popleft()
            self._held_bytes -= len(held.data)
            ready.append(held.data if held.confirms is None else self._confirmation(held.confirms))
        if ready:
            self._write(b"".join(ready))

    def clear(self) -> None:
        """Nobody is there to be told any more."""
        self._held.clear()
        self._held_bytes = 0

    def _confirmation(self, request: Publish) -> bytes:
        session = cast(ReadingSession, self._session)
        session.published(request.tags)
        return session.data_to_send()

    def _enqueue(self, publish_ticket: int, event_ticket: int) -> None:
        data = self._session.data_to_send()
        if not data:
            return
        engine = self._engine
        if self._held or publish_ticket > engine.publishes_settled or event_ticket > engine.events_settled:
            self._held.append(Held(publish_ticket, event_ticket, data))
            self._held_bytes += len(data)
            engine.when_settled(self._sender)
        else:
            self._write(data)
