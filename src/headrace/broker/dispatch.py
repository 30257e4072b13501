"""Decides, for one subscription at a time, what is delivered, deferred, expired, dropped or given up.

Reads batches from the source, changes the subscription, records the event. Knows no registry, owner or waiting
consumer.
"""

from heapq import heappop

from headrace.broker.alarms import NEVER
from headrace.broker.deadletters import dead_letters
from headrace.broker.journal import Journal
from headrace.broker.retry import GiveUp, next_step
from headrace.broker.runs import Consumer, Run
from headrace.broker.settings import BrokerSettings
from headrace.broker.subscription import Subscription
from headrace.model.batch import Batch
from headrace.model.delivery import BatchSource, Portion
from headrace.model.events import Event, Range

AT_MOST_ONCE = "at most once"
HELD = "held by its reader"
NOT_ACKNOWLEDGED = "not acknowledged"
OVERFLOW = "overflow"
RETENTION = "retention"
GONE = "no longer stored"
DAMAGED = "lost to damage"

WARM_MAX = 128


class Order:
    """One take while it is being filled: how much more goes in, and what is in already."""

    __slots__ = ("ack_wait_us", "consumer", "limit", "now", "portions", "size_max", "timed")

    def __init__(
        self, limit: int, size_max: int, consumer: Consumer | None, now: int, timed: bool, ack_wait_us: int
    ) -> None:
        self.limit = limit
        self.size_max = size_max
        self.consumer = consumer
        self.now = now
        self.timed = timed
        self.ack_wait_us = ack_wait_us
        self.portions: list[Portion] = []

    def fill(self, batch: Batch, offset: int, count: int, delivery: int, attempt: int, qos: int) -> int:
        """Put in as many of the messages as fit by the batch's average size, at least one. Returns how many."""
        each = batch.values_size // batch.count + 1
        fitting = self.size_max // each or 1
        if count > self.limit:
            count = self.limit
        if count > fitting:
            count = fitting
            self.size_max = 0
        self.limit -= count
        self.size_max -= count * each
        self.portions.append(Portion(batch, offset - batch.base, count, delivery, attempt, qos))
        return count

    def deadline(self, sub: Subscription, attempt: int) -> int:
        """Until when this delivery may be settled."""
        if not self.timed:
            return NEVER
        return self.now + self.ack_wait_us if self.ack_wait_us else sub.topic.deadline(attempt, self.now)

    @property
    def remark(self) -> str:
        """What is recorded of the deliveries, so that they mean the same when they are read again."""
        return "" if self.timed else HELD


class Dispatch:
    """The delivery rules."""

    __slots__ = ("_inflight_max", "_journal", "_qos0_pending_max", "_source", "_warm")

    def __init__(self, source: BatchSource, settings: BrokerSettings, journal: Journal) -> None:
        self._source = source
        self._journal = journal
        self._inflight_max = settings.inflight_max
        self._qos0_pending_max = settings.qos0_pending_max
        self._warm: dict[int, Subscription] = {}

    def take(
        self,
        sub: Subscription,
        limit: int,
        consumer: Consumer | None,
        now: int,
        size_max: int = NEVER,
        timed: bool = True,
        ack_wait_us: int = 0,
    ) -> list[Portion]:
        """Up to `limit` messages and about `size_max` bytes: first those due again, then those the cursor comes to."""
        if sub.nothing_for(now):
            sub.blocked = False
            return []
        order = Order(limit, size_max, consumer, now, timed, ack_wait_us)
        if sub.timers and sub.timers[0][0] <= now:
            self.ripen(sub, now)
        if sub.ready:
            self._take_ready(sub, order)
        if not sub.qos:
            self.trim(sub, now)
        if order.limit > 0 and order.size_max > 0:
            self._take_next(sub, order)
        return order.portions

    def _take_ready(self, sub: Subscription, order: Order) -> None:
        now = order.now
        while order.limit > 0 and order.size_max > 0 and (run := sub.peek_ready()) is not None:
            batch, _ = self._batch_of(sub, run)
            if batch is None or batch.fault or sub.topic.expires(batch) <= now:
                self._discard(sub, run, batch, now)
                continue
            heappop(sub.ready)
            count = order.fill(batch, run.offset, run.count, run.first, run.attempt + 1, sub.qos)
            if count < run.count:
                sub.cut(run, count)
            item = Range(run.offset, count, run.attempt + 1)
            if sub.qos and batch.qos:
                sub.redeliver(run, order.deadline(sub, run.attempt + 1), order.consumer)
                self._journal.record(Event.DELIVERED, sub.id, now, item, order.remark)
            else:
                sub.settle(run, Event.DELIVERED)
                self._journal.record(Event.DELIVERED, sub.id, now, item, AT_MOST_ONCE)

    def _take_next(self, sub: Subscription, order: Order) -> None:
        now = order.now
        room = self._inflight_max - sub.in_flight
        if room <= 0 and not order.portions:
            self._take_parked(sub, order)
        sub.blocked = room < order.limit
        if sub.blocked:
            order.limit = room
        while order.limit > 0 and order.size_max > 0:
            batch = sub.batch
            if batch is None or sub.batch_expires <= now:
                batch = self._seek(sub, now)
            if sub.parked and sub.unpark(sub.cursor):
                self._take_ready(sub, order)
                continue
            if batch is None:
                break
            first = sub.cursor
            end = batch.base + batch.count
            if sub.parked:
                end = min(end, sub.next_tail() or end)
            count = order.fill(batch, first, end - first, sub.passed + 1, 1, sub.qos)
            if sub.qos and batch.qos:
                sub.deliver(first, count, order.deadline(sub, 1), order.consumer)
                self._journal.record(Event.DELIVERED, sub.id, now, Range(first, count, 1), order.remark)
            else:
                sub.skip(first, count, Event.DELIVERED)
                self._journal.record(Event.DELIVERED, sub.id, now, Range(first, count, 1), AT_MOST_ONCE)
        if sub.in_flight >= self._inflight_max:
            sub.blocked = True
        if sub.batch is not None:
            self._keep_warm(sub)

    def _take_parked(self, sub: Subscription, order: Order) -> None:
        """Do not wait for the cursor where it cannot move: what waits for it may be what fills all the room."""
        tail = sub.next_tail()
        if tail is not None and sub.unpark(tail):
            self._take_ready(sub, order)

    def _seek(self, sub: Subscription, now: int) -> Batch | None:
        """Bring the cursor to the next message that may be delivered now, passing what may not."""
        topic = sub.topic
        sub.batch = None
        while sub.cursor < topic.end:
            batch = self._next_batch(sub, now)
            if batch is None:
                break
            first = max(sub.cursor, batch.base)
            expires = topic.expires(batch)
            due = topic.due(batch)
            if batch.fault:
                self._pass(sub, Range(first, batch.end - first, 0), Event.DROPPED, batch.fault, now)
            elif expires <= now:
                self._pass(sub, Range(first, batch.end - first, 0), Event.EXPIRED, "", now)
            elif due <= now:
                sub.cursor = first
                sub.batch = batch
                sub.batch_expires = expires
                return batch
            elif len(sub.runs) < self._inflight_max:
                item = Range(first, batch.end - first, 0)
                self._journal.record(Event.DEFERRED, sub.id, now, item)
                sub.defer(first, item.count, due)
            else:
                sub.blocked = True
                break
        return None

    def _keep_warm(self, sub: Subscription) -> None:
        """Let only the subscriptions read last keep the batch they are inside of."""
        warm = self._warm
        warm.pop(sub.id, None)
        warm[sub.id] = sub
        if len(warm) > WARM_MAX:
            warm.pop(next(iter(warm))).batch = None

    def ripen(self, sub: Subscription, now: int) -> int:
        """Take back what was not settled in time. Returns how many messages became ready."""
        ready = 0
        while (run := sub.pop_due(now)) is not None:
            if run.awaited:
                batch, _ = self._batch_of(sub, run)
                if batch is None or batch.fault:
                    self._discard(sub, run, batch, now)
                    continue
                if self._is_last_attempt(sub, run, batch, now):
                    self._bury(sub, run, batch, NOT_ACKNOWLEDGED, now)
                    continue
                if sub.definition.tail:
                    self.fail(sub, run, NOT_ACKNOWLEDGED, now)
                    ready += sub.unpark(sub.cursor)
                    continue
            sub.ripen(run)
            ready += run.count
        return ready

    def fail(self, sub: Subscription, run: Run, reason: str, now: int, *, dead: bool = False) -> None:
        """The run's delivery failed: it is due again after its backoff, or dead."""
        left: Run | None = run
        while left is not None:
            run = left
            batch, left = self._batch_of(sub, run)
            if batch is None or batch.fault:
                self._discard(sub, run, batch, now)
            else:
                self._fail(sub, run, batch, reason, now, dead=dead)

    def _fail(self, sub: Subscription, run: Run, batch: Batch, reason: str, now: int, *, dead: bool) -> None:
        step = next_step(run.attempt, now=now, policy=sub.topic.policy, max_attempts=batch.max_attempts)
        if dead or isinstance(step, GiveUp):
            self._bury(sub, run, batch, reason, now)
        else:
            self._journal.record(Event.NACKED, sub.id, now, run.as_range(), reason)
            if sub.definition.tail:
                sub.park(run, sub.topic.end, now)
            else:
                sub.postpone(run, step.due)

    def skip_expired(self, sub: Subscription, now: int) -> int:
        """Pass what has expired at the cursor. Returns when the next message there expires."""
        topic = sub.topic
        while sub.cursor < topic.end:
            batch = self._next_batch(sub, now)
            if batch is None:
                break
            expires = topic.expires(batch)
            if expires > now:
                return expires
            first = max(sub.cursor, batch.base)
            self._pass(sub, Range(first, batch.end - first, 0), Event.EXPIRED, "", now)
        return NEVER

    def trim(self, sub: Subscription, now: int) -> None:
        """Drop the oldest of a QoS 0 subscription's backlog that is over the limit."""
        topic = sub.topic
        if topic.end - sub.cursor <= self._qos0_pending_max:
            return
        excess = self._source.count_from(topic.name, sub.cursor) - self._qos0_pending_max
        while excess > 0:
            batch = self._next_batch(sub, now)
            if batch is None:
                break
            first = max(sub.cursor, batch.base)
            count = min(excess, batch.end - first)
            self._pass(sub, Range(first, count, 0), Event.DROPPED, OVERFLOW, now)
            excess -= count

    def forget_before(self, sub: Subscription, offset: int, now: int) -> None:
        """Give up what the subscription still has below an offset that is about to be deleted."""
        for run in [run for run in sub.runs if run.offset < offset]:
            for lost in sub.isolate(run.first, min(run.count, offset - run.offset)):
                self._discard(sub, lost, None, now, RETENTION)
        if sub.cursor < offset:
            name = sub.topic.name
            missing = self._source.count_from(name, sub.cursor) - self._source.count_from(name, offset)
            if missing:
                self._pass(sub, Range(sub.cursor, missing, 0), Event.DROPPED, RETENTION, now)
                self._pass(sub, Range(offset, 0, 0), Event.DROPPED, RETENTION, now)

    def _next_batch(self, sub: Subscription, now: int) -> Batch | None:
        """The batch at the cursor or the next one behind it; what damage took of those between is dropped, and said."""
        topic, cursor = sub.topic, sub.cursor
        batch = self._source.batch_at(topic.name, cursor)
        behind = topic.end if batch is None else batch.base
        if behind > cursor:
            for first, count in self._source.lost_between(topic.name, cursor, behind):
                self._pass(sub, Range(first, count, 0), Event.DROPPED, DAMAGED, now)
        return batch

    def _batch_of(self, sub: Subscription, run: Run) -> tuple[Batch | None, Run | None]:
        """The batch a run is part of; None when it is no longer stored.

        A batch that was not sound comes back in pieces. A run that is longer than its piece is cut there; the rest,
        which is where the run was, is the second result.
        """
        batch = self._source.batch_at(sub.topic.name, run.offset)
        if batch is None or batch.base > run.offset:
            return None, None
        return batch, sub.cut(run, batch.end - run.offset) if run.offset + run.count > batch.end else None

    def _is_last_attempt(self, sub: Subscription, run: Run, batch: Batch, now: int) -> bool:
        step = next_step(run.attempt, now=now, policy=sub.topic.policy, max_attempts=batch.max_attempts)
        return isinstance(step, GiveUp)

    def _pass(self, sub: Subscription, item: Range, event: Event, reason: str, now: int) -> None:
        sub.skip(item.first, item.count, event)
        self._journal.record(event, sub.id, now, item, reason)

    def _discard(self, sub: Subscription, run: Run, batch: Batch | None, now: int, reason: str = GONE) -> None:
        """End a run nobody can be given any more: its batch is gone, was not sound, or has expired."""
        if batch is None or batch.fault:
            reason = batch.fault if batch is not None else reason
            self._journal.record(Event.DROPPED, sub.id, now, run.as_range(), reason)
            sub.settle(run, Event.DROPPED)
        else:
            self._journal.record(Event.EXPIRED, sub.id, now, run.as_range())
            sub.settle(run, Event.EXPIRED)

    def _bury(self, sub: Subscription, run: Run, batch: Batch, reason: str, now: int) -> None:
        copy = dead_letters(
            batch, run.offset - batch.base, run.count,
            subscription=sub.id, attempts=run.attempt, reason=reason, now=now,
        )  # fmt: skip
        self._journal.dead(sub.id, now, run.as_range(), reason, copy)
        sub.settle(run, Event.DEAD)
