"""What one conversation reads: fetches that wait, follows that go on, and how much of it is not settled yet.

Everything here is held by the conversation: no timer takes it back, its end does.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import groupby

from headrace.auth import SHARED_OWNER
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code
from headrace.model.requests import FOREVER_US, Fetch, Follow, Settle
from headrace.protocols.spec import ReadingSession
from headrace.server.engine import Engine, Waiting

TAKE_MAX = 4096
TAKE_BYTES_MAX = 1 << 20


class Readings:
    """The reading side of a conversation, which is the consumer the broker knows."""

    def __init__(self, engine: Engine, session: ReadingSession, consumer: Waiting) -> None:
        self._engine = engine
        self._session = session
        self._consumer = consumer
        self._fetches: dict[int, Fetch] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._follows: dict[int, Follow] = {}
        self._openings: list[asyncio.TimerHandle] = []
        self._unsettled: Counter[int] = Counter()
        self._turns = 0

    def fetch(self, request: Fetch) -> int:
        """Deliver what there is, or wait for it. Returns about how many bytes were delivered."""
        if portions := self._answer(request):
            return size_of(portions)
        if request.wait_us <= 0:
            self._session.fetched(request.tag, [])
            return 0
        self._turns += 1
        turn = self._turns
        self._fetches[turn] = request
        if request.wait_us < FOREVER_US:
            self._timers[turn] = self._engine.call_in(request.wait_us, partial(self._time_is_up, turn))
        self._engine.broker.wait(request.subscription, self._consumer)
        return 0

    def follow(self, request: Follow) -> None:
        """Deliver from now on, or once the peer was left alone for as long as it needs; `serve` does it."""
        if request.after_us:
            self._openings.append(self._engine.call_in(request.after_us, partial(self._begin, request)))
        else:
            self._follows[request.subscription] = request

    def serve(self) -> bool:
        """Deliver what has come, about as much as one take may, and wait for what has not.

        Returns whether anything was delivered: then there may be more.
        """
        waits: set[int] = set()
        size = 0
        served = False
        for turn, request in list(self._fetches.items()):
            if portions := self._answer(request):
                self._drop(turn)
                size += size_of(portions)
                served = True
                if size >= TAKE_BYTES_MAX:
                    return True
            else:
                waits.add(request.subscription)
        for follow in self._follows.values():
            if (room := self._room(follow)) > 0:
                if self._push(follow, room):
                    served = True
                else:
                    waits.add(follow.subscription)
        broker = self._engine.broker
        broker.stop_waiting(self._consumer, but_for=waits)
        for subscription in waits:
            broker.wait(subscription, self._consumer)
        return served

    def pause(self) -> None:
        """Take nothing until `serve`: the peer is behind with reading."""
        self._engine.broker.stop_waiting(self._consumer)

    def settle(self, request: Settle) -> list[bool]:
        """Settle each delivery that this conversation holds; which of them could be."""
        accepted = settle_each(self._engine, request, self._consumer)
        self.settled(request.subscription, sum(accepted))
        return accepted

    def settled(self, subscription: int, count: int) -> None:
        """So many deliveries are off this conversation's hands."""
        self._unsettled[subscription] -= count

    def drain(self) -> None:
        """Refuse what waits: nothing more will come."""
        for turn, request in list(self._fetches.items()):
            self._drop(turn)
            self._session.refused(request.tag, BrokerError(Code.DRAINING, "the server is about to stop"))
        self._follow_nothing()
        self.pause()

    def release(self) -> None:
        """Wait for nothing any more and give back what is not settled."""
        for turn in list(self._fetches):
            self._drop(turn)
        self._follow_nothing()
        self._engine.broker.release(self._consumer, self._engine.clock.now())

    def _begin(self, request: Follow) -> None:
        self._follows[request.subscription] = request
        self._consumer.called()

    def _follow_nothing(self) -> None:
        for opening in self._openings:
            opening.cancel()
        self._openings.clear()
        self._follows.clear()

    def _answer(self, request: Fetch) -> list[Portion]:
        portions = self._take(request, request.count)
        if portions:
            self._session.fetched(request.tag, portions)
        return portions

    def _room(self, follow: Follow) -> int:
        return follow.window - self._unsettled[follow.subscription]

    def _push(self, follow: Follow, room: int) -> bool:
        portions = self._take(follow, room)
        if portions:
            self._session.pushed(follow.tag, portions)
        return bool(portions)

    def _take(self, request: Fetch | Follow, count: int) -> list[Portion]:
        engine, now = self._engine, self._engine.clock.now()
        portions = engine.broker.take(
            request.subscription,
            min(count, TAKE_MAX),
            owner=SHARED_OWNER,
            consumer=self._consumer,
            size_max=TAKE_BYTES_MAX,
            timed=False,
            now=now,
        )
        ranges = [(p.first_delivery, p.count) for p in portions if p.qos and p.batch.qos]
        if ranges and request.settle:
            engine.broker.ack(request.subscription, ranges, owner=SHARED_OWNER, now=now)
        elif ranges:
            self._unsettled[request.subscription] += sum(count for _, count in ranges)
        return portions

    def _time_is_up(self, turn: int) -> None:
        request = self._fetches[turn]
        self._drop(turn)
        self._session.fetched(request.tag, [])
        self._consumer.called()

    def _drop(self, turn: int) -> None:
        del self._fetches[turn]
        timer = self._timers.pop(turn, None)
        if timer is not None:
            timer.cancel()


def size_of(portions: Iterable[Portion]) -> int:
    """About how many bytes these deliveries are, by the average of each batch."""
    return sum(portion.count * (portion.batch.values_size // portion.batch.count) for portion in portions)


def settle_each(engine: Engine, request: Settle, consumer: Waiting | None = None) -> list[bool]:
    """Settle deliveries of a shared subscription, only what `consumer` holds where one is given.

    Which of them could be: all at once if they can, else one by one.
    """
    try:
        _settle(engine, request, _ranges(request.deliveries), consumer)
    except BrokerError:
        return [_settle_one(engine, request, delivery, consumer) for delivery in request.deliveries]
    return [True] * len(request.deliveries)


def _settle_one(engine: Engine, request: Settle, delivery: int, consumer: Waiting | None) -> bool:
    try:
        _settle(engine, request, [(delivery, 1)], consumer)
    except BrokerError:
        return False
    return True


def _settle(engine: Engine, request: Settle, ranges: list[tuple[int, int]], consumer: Waiting | None) -> None:
    broker, now, subscription = engine.broker, engine.clock.now(), request.subscription
    if request.failed:
        broker.nack(subscription, ranges, owner=SHARED_OWNER, consumer=consumer, reason=request.reason, now=now)
    else:
        broker.ack(subscription, ranges, owner=SHARED_OWNER, consumer=consumer, now=now)


def _ranges(deliveries: list[int]) -> list[tuple[int, int]]:
    """Delivery ids as (first, count) of neighbours; all are, nearly always, and that is seen at once."""
    count = len(deliveries)
    if count and deliveries == list(range(deliveries[0], deliveries[0] + count)):
        return [(deliveries[0], count)]
    groups = groupby(enumerate(deliveries), key=lambda pair: pair[1] - pair[0])
    runs = [[delivery for _, delivery in group] for _, group in groups]
    return [(run[0], len(run)) for run in runs]
