"""One session's requests carried out in strict order, whatever transport the bytes travel on.

A conversation *stalls*, and wants no more bytes, when going on would break a promise: a take behind publishes of its
own that are not durable yet, a reply the peer does not read, a log that has fallen behind. What it had already been
told to do waits in order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.model.errors import BrokerError, Code, PeerProtocolError, StorageError
from headrace.model.names import is_own_topic
from headrace.model.requests import (
    Ack,
    Authenticate,
    Exchange,
    Fence,
    Nack,
    Publish,
    Refuse,
    Request,
    Subscribe,
    Take,
)
from headrace.protocols.spec import Session
from headrace.server.auth import Identity, Keyring
from headrace.server.engine import Engine

TAKE_MAX = 4096
TAKE_BYTES_MAX = 1 << 20


class Outlet(Protocol):
    """The way back to the peer."""

    def write(self, data: bytes) -> None:
        """Send; buffers without limit, so ask `congested` first."""

    def congested(self) -> bool:
        """Whether the peer is behind with reading."""

    def close(self) -> None:
        """Close once everything written is sent."""

    def proceed(self) -> None:
        """The conversation went on: present what is left of the bytes, read again if it is not stalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the server grants every conversation."""

    keyring: Callable[[], Keyring]
    pending_bytes_max: int


class Conversation:
    """Carries out what one session asks for."""

    def __init__(self, engine: Engine, session: Session, outlet: Outlet, terms: Terms) -> None:
        self.identity: Identity | None = None
        self.closing = False
        self._engine = engine
        self._session = session
        self._outlet = outlet
        self._terms = terms
        self._todo: deque[Request] = deque()
        self._held: deque[tuple[int, int, bytes]] = deque()
        self._publish_ticket = 0
        self._event_ticket = 0

    def receive(self, view: memoryview) -> int:
        """Carry out what these bytes ask for; how many of them are done with.

        The rest must be presented again, with what follows, when `stalled` is false.
        """
        done = 0
        try:
            while not self.closing and not self.stalled:
                consumed, requests = self._session.receive(view[done:], self._engine.clock.now())
                done += consumed
                self._todo.extend(requests)
                self._work()
                if not requests or (done == len(view) and self.identity is not None):
                    break
        except PeerProtocolError:
            self._work()
            self._finish()
        return done

    @property
    def stalled(self) -> bool:
        """Whether requests wait, or replies do that the peer would have to read first."""
        if self._todo or self._outlet.congested() or self._engine.log.pending_bytes > self._terms.pending_bytes_max:
            self._engine.when_settled(self)
            return True
        return False

    @property
    def busy(self) -> bool:
        """Whether requests or replies of this conversation still wait."""
        return bool(self._todo or self._held)

    def resume(self) -> None:
        """Go on with what waited: a watermark moved or the peer has read."""
        self._release()
        self._work()

    def settled(self) -> None:
        """Engine's call: a watermark moved."""
        self.resume()
        self._outlet.proceed()

    def publish_refused(self, request: Publish, cause: StorageError) -> None:
        """Engine's call: tell the peer, ahead of every reply that waits for durability."""
        if request.qos == 0 or self.closing:
            return
        self._session.publish_refused(request.tags, BrokerError(Code.STORAGE, f"durable publish failed: {cause}"))
        ahead = next((i for i, held in enumerate(self._held) if held[0] > 0), len(self._held))
        self._held.insert(ahead, (0, 0, self._session.data_to_send()))
        self._engine.when_settled(self)

    def closed(self) -> None:
        """The transport is gone; nothing more will be sent."""
        self.closing = True
        self._todo.clear()
        self._held.clear()

    def _work(self) -> None:
        """Carry out requests in order until one has to wait."""
        journal_due = False
        while self._todo and not self.closing:
            request = self._todo[0]
            if isinstance(request, Take | Exchange) and not self._may_take():
                break
            self._todo.popleft()
            journal_due |= self._carry_out(request)
        if journal_due:
            self._event_ticket = self._engine.journal() or self._event_ticket
        self._send()

    def _may_take(self) -> bool:
        """A take sees this connection's own publishes, and waits for a peer that does not read."""
        if self._publish_ticket > self._engine.publishes_settled:
            self._engine.when_settled(self)
            return False
        return not self._outlet.congested()

    def _carry_out(self, request: Request) -> bool:
        """One request; whether the broker may have something to record."""
        match request:
            case Publish():
                self._publish(request)
                return False
            case Exchange():
                self._exchange(request)
            case Take():
                self._take(request)
            case Ack():
                self._ack(request)
            case Nack():
                self._nack(request)
            case Fence(tag):
                self._event_ticket = self._engine.journal() or self._event_ticket
                self._send()
                self._session.fence_passed(tag)
                self._hold()
            case Subscribe():
                self._subscribe(request)
            case Authenticate():
                self._authenticate(request)
            case Refuse(tag, error):
                self._session.refused(tag, error)
        return True

    def _publish(self, request: Publish) -> None:
        assert self.identity is not None
        if is_own_topic(request.topic) or not self.identity.may_publish(request.topic):
            error = BrokerError(Code.FORBIDDEN, f"not allowed to publish to {request.topic}")
            self._session.publish_refused(request.tags, error)
            return
        self._publish_ticket = self._engine.publish(request, self)

    def _subscribe(self, request: Subscribe) -> None:
        assert self.identity is not None
        if not self.identity.may_subscribe(request.topic):
            error = BrokerError(Code.FORBIDDEN, f"not allowed to subscribe to {request.topic}")
            self._session.refused(request.tag, error)
            return
        engine = self._engine
        if engine.log.failing is not None:
            error = BrokerError(Code.STORAGE, f"durable subscribe failed: {engine.log.failing}")
            self._session.refused(request.tag, error)
            return
        subscription = engine.broker.subscribe(
            request.topic,
            qos=request.qos,
            owner=self.identity.owner,
            name=request.name,
            start=request.start,
            at=engine.log.next_offset,
            now=engine.clock.now(),
        )
        self._event_ticket = engine.journal() or self._event_ticket
        self._send()
        self._session.subscribed(request.tag, subscription)
        self._hold()

    def _exchange(self, request: Exchange) -> None:
        """Acks first, then one take of all: the order of arrival matters only where an ack is refused."""
        try:
            self._settle(request.acks)
        except BrokerError:
            self._todo.extendleft(reversed(request.steps))
            return
        self._take(request.takes)

    def _settle(self, request: Ack) -> None:
        assert self.identity is not None
        self._engine.broker.ack(
            request.subscription, request.ranges, owner=self.identity.owner, now=self._engine.clock.now()
        )

    def _ack(self, request: Ack) -> None:
        try:
            self._settle(request)
        except BrokerError as error:
            if len(request.ranges) == 1 and request.ranges[0][1] == 1:
                self._session.refused(request.ranges[0][0], error)
                return
            single = [
                Ack(request.subscription, [(delivery, 1)])
                for first, count in request.ranges
                for delivery in range(first, first + count)
            ]
            self._todo.extendleft(reversed(single))

    def _nack(self, request: Nack) -> None:
        assert self.identity is not None
        self._engine.broker.nack(
            request.subscription,
            request.ranges,
            owner=self.identity.owner,
            reason=request.reason,
            now=self._engine.clock.now(),
        )

    def _take(self, request: Take) -> None:
        """Deliver, no more at once than a peer can be trusted to read; the rest of the take stays first in line."""
        assert self.identity is not None
        wanted = min(request.count, TAKE_MAX)
        portions = self._engine.broker.take(
            request.subscription,
            wanted,
            owner=self.identity.owner,
            size_max=TAKE_BYTES_MAX,
            now=self._engine.clock.now(),
        )
        taken = 0
        for portion in portions:
            self._session.deliver(portion, request.tags[8 * taken : 8 * (taken + portion.count)])
            taken += portion.count
        if portions and taken < request.count and self._engine.broker.has_more(request.subscription):
            self._send()
            self._todo.appendleft(Take(request.subscription, request.count - taken, request.tags[8 * taken :]))

    def _authenticate(self, request: Authenticate) -> None:
        self.identity = self._terms.keyring().check(request.key)
        if self.identity is not None:
            self._session.authenticated(request.tag)
            return
        self._session.refused(request.tag, BrokerError(Code.UNAUTHENTICATED, "invalid API key"))

    def _hold(self) -> None:
        """Queue the reply just made until everything this conversation did so far is durable."""
        self._enqueue(self._publish_ticket, self._event_ticket)

    def _send(self) -> None:
        """Send what the session has to say, behind replies that still wait."""
        self._enqueue(0, 0)

    def _enqueue(self, publish_ticket: int, event_ticket: int) -> None:
        data = self._session.data_to_send()
        if not data:
            return
        engine = self._engine
        if self._held or publish_ticket > engine.publishes_settled or event_ticket > engine.events_settled:
            self._held.append((publish_ticket, event_ticket, data))
            engine.when_settled(self)
        else:
            self._outlet.write(data)

    def _release(self) -> None:
        """Send the replies whose promise now holds, in order."""
        engine = self._engine
        ready = []
        while self._held:
            publish_ticket, event_ticket, data = self._held[0]
            if publish_ticket > engine.publishes_settled or event_ticket > engine.events_settled:
                engine.when_settled(self)
                break
            self._held.popleft()
            ready.append(data)
        if ready:
            self._outlet.write(b"".join(ready))

    def _finish(self) -> None:
        self._send()
        self.closing = True
        self._outlet.close()
