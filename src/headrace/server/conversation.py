"""One session's requests carried out in strict order, whatever transport the bytes travel on.

A conversation *stalls*, and wants no more bytes, when going on would break a promise: a take behind publishes of its
own that are not durable yet, a reply the peer does not read, a log that has fallen behind; or when it is about to be
worth while: a take whose messages are on their way to the disk. What it had already been told to do waits in order;
only fetches wait aside.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from headrace.auth import SHARED_OWNER, Identity, Keyring
from headrace.model.errors import BrokerError, Code, PeerProtocolError, StorageError
from headrace.model.names import is_own_topic
from headrace.model.requests import (
    Ack,
    Authenticate,
    Exchange,
    Fence,
    Fetch,
    Follow,
    Leave,
    Nack,
    Publish,
    Refuse,
    Request,
    Settle,
    Subscribe,
    Take,
)
from headrace.protocols.spec import ReadingSession, Session
from headrace.server.engine import Engine
from headrace.server.promises import Promises
from headrace.server.quotas import Kind, Lease
from headrace.server.readings import Readings
from headrace.server.takes import Takes

UNSENT_BYTES_MAX = 1 << 16
TAKES = (Take, Exchange)
TAKES_OR_FETCH = (*TAKES, Fetch)
TAKES_OR_ACK = (*TAKES, Ack)


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
    stand_us: int = 0


class Conversation:
    """Carries out what one session asks for. `identity` is given where the transport knows it."""

    def __init__(
        self, engine: Engine, session: Session, outlet: Outlet, terms: Terms, identity: Identity | None = None
    ) -> None:
        self.identity = identity
        self.address = ""
        self.closing = False
        self._lease: Lease | None = None
        self._held_back = False
        self._leaving = False
        self._engine = engine
        self._session = session
        self._outlet = outlet
        self._terms = terms
        self._todo: deque[Request] = deque()
        self._promises = Promises(engine, session, self, outlet.write)
        self._reading: Readings | None = None
        self._takes = Takes(engine, session, self, terms.stand_us)
        self._unsent = 0

    def admit(self, identity: Identity) -> None:
        """This is who is there, with one connection more. Raises BrokerError(LIMIT) when that is one too many."""
        lease = self._engine.quotas.lease(Kind.CONNECTIONS, identity.owner, self.address)
        self._leave()
        self._lease = lease
        self.identity = identity

    def receive(self, view: memoryview) -> int:
        """Carry out what these bytes ask for; how many of them are done with.

        The rest must be presented again, with what follows, when `stalled` is false. Behind the last word of a peer
        that leaves, or that broke its protocol, everything is.
        """
        done = 0
        try:
            while not self.closing and not self._leaving and not self.stalled:
                consumed, requests = self._session.receive(view[done:], self._engine.clock.now())
                done += consumed
                self._todo.extend(requests)
                self._work()
                if not requests or (done == len(view) and self.identity is not None):
                    break
        except PeerProtocolError:
            self._part()
            self._maybe_part()
        return len(view) if self._leaving else done

    def ended(self) -> None:
        """The peer will send nothing more."""
        if self._leaving:
            return
        self._todo.extend(self._session.ended())
        self._work()

    def drain(self) -> None:
        """The server is about to stop: tell the peer, and let nothing wait any longer."""
        self._session.draining()
        self._takes.end_standing()
        if self._reading is not None:
            self._reading.drain()
        self._promises.send()

    @property
    def stalled(self) -> bool:
        """Whether requests wait, or replies do that the peer would have to read first, or nobody listens any more."""
        if self._leaving:
            return True
        waiting = self._todo or self._held_back or self._outlet.congested() or self._promises.crowded
        if waiting or self._engine.log.pending_bytes > self._terms.pending_bytes_max:
            self._engine.when_settled(self)
            return True
        return False

    @property
    def busy(self) -> bool:
        """Whether requests or replies of this conversation still wait."""
        return bool(self._todo or self._promises)

    def resume(self) -> None:
        """Go on with what waited: a watermark moved or the peer has read."""
        self._promises.release()
        self._work()
        self._maybe_part()
        if self._reading is not None:
            self._serve()

    def called(self) -> None:
        """Engine's call: there may be something to read."""
        self._serve()

    def settled(self) -> None:
        """Engine's call: a watermark moved."""
        self.resume()
        self._outlet.proceed()

    def take_again(self, request: Take) -> None:
        """Engine's call: something has come for a take that found nothing a moment ago."""
        if not self._todo and not self.closing and not self._leaving and self._has_room():
            self._take(request, again=True)
            self._work()
            self._promises.journal()

    def publish_refused(self, request: Publish, cause: StorageError) -> None:
        """Engine's call: tell the peer."""
        if request.qos == 0 or self.closing:
            return
        self._promises.refuse(request, BrokerError(Code.STORAGE, f"durable publish failed: {cause}"))

    def closed(self) -> None:
        """The transport is gone; nothing more will be sent, and what was held goes back."""
        self.closing = True
        self._leave()
        self._todo.clear()
        self._promises.clear()
        self._takes.end_standing()
        if self._reading is not None:
            self._reading.release()
            self._engine.journal()

    def _work(self) -> None:
        """Carry out requests in order until one has to wait."""
        journal_due = False
        while self._todo and not self.closing:
            request = self._todo[0]
            if isinstance(request, TAKES) and not self._has_settled():
                break
            if isinstance(request, TAKES_OR_FETCH) and not self._has_room():
                break
            self._todo.popleft()
            if not isinstance(request, TAKES_OR_ACK):
                self._takes.end_standing()
            journal_due |= self._carry_out(request)
        if journal_due:
            self._promises.journal()
        self._send()

    def _has_settled(self) -> bool:
        """Whether a take can see this connection's own publishes, and those it found on their way to the disk."""
        if self._promises.published and self._takes.awaited <= self._engine.publishes_settled:
            return True
        self._engine.when_settled(self, taking=True)
        return False

    def _has_room(self) -> bool:
        """Whether the peer can be given more: it reads what it is sent, and not too much waits to be."""
        if self._unsent > UNSENT_BYTES_MAX:
            self._send()
        return not self._outlet.congested() and not self._promises.crowded

    def _send(self) -> None:
        self._unsent = 0
        self._promises.send()

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
                self._promises.journal()
                self._promises.send()
                self._session.fence_passed(tag)
                self._promises.hold()
            case Subscribe():
                self._subscribe(request)
            case Authenticate():
                self._authenticate(request)
            case Refuse(tag, error):
                self._session.refused(tag, error)
            case _:
                self._read(request)
        return True

    def _read(self, request: Fetch | Follow | Settle | Leave) -> None:
        """What only peers ask for that read by Fetch and Follow."""
        reading = self._readings()
        match request:
            case Fetch():
                self._unsent += reading.fetch(request)
            case Follow():
                reading.follow(request)
                self._serve()
            case Settle(tag, _, deliveries):
                accepted = reading.settle(request)
                self._promises.journal()
                self._promises.send()
                cast(ReadingSession, self._session).settled(tag, deliveries, accepted)
                self._promises.hold()
                self._serve()
            case Leave(tag):
                self._part()
                self._session.fence_passed(tag)
                self._promises.hold()
                self._maybe_part()

    def _readings(self) -> Readings:
        if self._reading is None:
            self._reading = Readings(self._engine, cast(ReadingSession, self._session), self)
        return self._reading

    def _serve(self) -> None:
        """Deliver what has come, in turns, for as long as the peer reads."""
        reading = self._readings()
        while not self.closing and not self._leaving:
            if self._outlet.congested() or self._promises.crowded:
                break
            served = reading.serve()
            self._promises.journal()
            self._promises.send()
            if not served:
                return
        reading.pause()

    def _publish(self, request: Publish) -> None:
        identity, engine = self.identity, self._engine
        assert identity is not None
        known = True
        try:
            for topic in request.topics or (request.topic,):
                if is_own_topic(topic) or not identity.may_publish(topic):
                    raise BrokerError(Code.FORBIDDEN, f"not allowed to publish to {topic}")
                known = known and engine.broker.knows(topic)
            if not known:
                engine.broker.claim(request.topics or (request.topic,), identity.owner)
        except BrokerError as error:
            self._session.publish_refused(request.tags, error)
            return
        if engine.quotas.rated:
            self._hold_back(request)
        self._promises.publish_ticket = engine.publish(request, self)
        if request.confirm:
            self._promises.confirm(request)

    def _hold_back(self, request: Publish) -> None:
        """Let what came in too fast in, and read no more before its time: a PUBLISH need not have an answer."""
        assert self.identity is not None
        engine = self._engine
        wait_us = engine.quotas.spend(
            self.identity.owner, self.address, request.count, len(request.record), engine.clock.now()
        )
        if wait_us and not self._held_back:
            self._held_back = True
            engine.call_in(wait_us, self._go_on)

    def _go_on(self) -> None:
        self._held_back = False
        if not self.closing:
            self._outlet.proceed()

    def _leave(self) -> None:
        if self._lease is not None:
            self._lease.end()

    def _subscribe(self, request: Subscribe) -> None:
        assert self.identity is not None
        try:
            subscription = self._engine.subscribe(
                self.identity, request.topic,
                qos=request.qos, name=request.name, start=request.start, tail=request.tail,
            )  # fmt: skip
        except BrokerError as error:
            self._session.refused(request.tag, error)
            return
        self._promises.journal()
        self._promises.send()
        self._session.subscribed(request.tag, subscription)
        self._promises.hold()

    def _exchange(self, request: Exchange) -> None:
        """Acks first, then one take of all: the order of arrival matters only where an ack is refused."""
        try:
            self._settle(request.acks)
        except BrokerError:
            self._todo.extendleft(reversed(request.steps))
            return
        self._take(request.takes)

    @property
    def _owner(self) -> str:
        """Whose subscriptions this conversation works on."""
        assert self.identity is not None
        return self.identity.owner if self._reading is None else SHARED_OWNER

    def _settle(self, request: Ack) -> None:
        self._engine.broker.ack(request.subscription, request.ranges, owner=self._owner, now=self._engine.clock.now())
        if self._reading is not None:
            self._reading.settled(request.subscription, sum(count for _, count in request.ranges))

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
        self._engine.broker.nack(
            request.subscription,
            request.ranges,
            owner=self._owner,
            reason=request.reason,
            now=self._engine.clock.now(),
        )

    def _take(self, request: Take, *, again: bool = False) -> None:
        """Deliver; what is left of the take stays first in line."""
        assert self.identity is not None
        size, rest = self._takes.take(request, self.identity.owner, again=again)
        self._unsent += size
        if rest is not None:
            if not self._takes.awaited:
                self._send()
            self._todo.appendleft(rest)

    def _authenticate(self, request: Authenticate) -> None:
        identity = self._terms.keyring().check(request.key)
        try:
            if identity is None:
                raise BrokerError(Code.UNAUTHENTICATED, "invalid API key")
            self.admit(identity)
        except BrokerError as error:
            self.identity = None
            self._session.refused(request.tag, error)
            return
        self._session.authenticated(request.tag)

    def _part(self) -> None:
        """Listen no more: what was held goes back, and what was promised is all that will still be said."""
        self._leaving = True
        self._todo.clear()
        self._takes.end_standing()
        if self._reading is not None:
            self._reading.release()
            self._promises.journal()
        self._promises.send()

    def _maybe_part(self) -> None:
        """Close once everything promised to a peer that is listened to no more is sent."""
        if self._leaving and not self._promises and not self.closing:
            self.closing = True
            self._outlet.close()
