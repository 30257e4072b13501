"""The broker: topics, subscriptions and who waits for what, as a state machine. No clock, no socket, no disk.

Every call takes plain values and `now` (microseconds). What is to be remembered comes out of `drain`, who can take
something out of `drain_ready`; the caller appends the one to the log and tells the others.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Self

import msgspec

from headrace.broker import snapshot, views
from headrace.broker.alarms import NEVER, Alarms
from headrace.broker.dispatch import Dispatch
from headrace.broker.identities import Identities
from headrace.broker.journal import Journal
from headrace.broker.readers import Reader, Readers
from headrace.broker.registry import Registry
from headrace.broker.replay import fold
from headrace.broker.runs import Consumer
from headrace.broker.settings import BrokerSettings
from headrace.broker.subscription import Definition, Subscription
from headrace.broker.topic import Topic
from headrace.broker.views import Counters, Status, SubscriptionInfo, Survey, TopicInfo
from headrace.broker.waiting import WaitingRoom
from headrace.broker.writers import Chunk, Writers
from headrace.model.batch import Batch
from headrace.model.delivery import BatchSource, Portion
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event, EventPart
from headrace.model.requests import Start

IDLE = "not used for too long"
CONNECTION_LOST = "connection lost"
NACKED = "nacked"
REASON_MAX = 1000
SWEEP_INTERVAL_US = 1_000_000


class Broker:
    """All topics and subscriptions, and everything that can be done with them.

    writers      who writes in transactions
    readers      who follows the log from outside
    identities   which ids of messages were seen lately
    """

    def __init__(self, source: BatchSource, settings: BrokerSettings) -> None:
        self._source = source
        self._expiry_us = settings.subscription_expiry_s * 1_000_000
        self._overflow_check = max(settings.qos0_pending_max // 2, 1)
        self._registry = Registry(source, settings)
        self._subscriptions = self._registry.subscriptions
        self._journal = Journal()
        self._dispatch = Dispatch(source, settings, self._journal)
        self.writers = Writers()
        self.readers = Readers(self._journal)
        self.identities = Identities(settings)
        self._waiting = WaitingRoom()
        self._holding: dict[Consumer, dict[int, Subscription]] = {}
        self._wakes: Alarms[int] = Alarms()
        self._sweeps: Alarms[str] = Alarms()

    def bound(self, *, topics: int, subscriptions: int, readers: int, writers: int) -> None:
        """From now on nobody may have more of these by further requests; 0 is no bound."""
        self._registry.topic_shares.most = topics
        self._registry.subscription_shares.most = subscriptions
        self.readers.shares.most = readers
        self.writers.shares.most = writers

    # Subscriptions

    def subscribe(
        self, topic: str, *, qos: int, owner: str, name: str = "", start: Start = Start.LATEST, tail: bool = False,
        maker: str = "", at: int, now: int,
    ) -> int:  # fmt: skip
        """Make a subscription and return its id, or find the one that is meant.

        `at` is the offset the next message will get. With a name, everybody of the same owner shares one, and it stays
        until it is removed. Without, a subscription of the same owner, topic and QoS that nobody has used since a
        restart is handed back. A new one counts for the share of its `maker`, or else of its owner.
        Raises BrokerError(LIMIT).
        """
        registry = self._registry
        sub = registry.shared(owner, topic, name) if name else registry.found_again(owner, topic, qos)
        if sub is None:
            cursor = at if start is Start.LATEST else 0
            registry.subscription_shares.check(maker or owner)
            definition = Definition(topic=topic, qos=qos, owner=owner, name=name, cursor=cursor, tail=tail, maker=maker)
            sub = registry.create(definition)
            self._journal.subscription(Event.SUBSCRIBED, sub.id, now, detail=msgspec.json.encode(definition))
        sub.use(now)
        self._schedule(sub)
        return sub.id

    def unsubscribe(self, subscription: int, reason: str, now: int) -> None:
        """Remove a subscription with all it has pending; an unknown one is nothing to do."""
        sub = self._subscriptions.get(subscription)
        if sub is not None:
            self._journal.subscription(Event.UNSUBSCRIBED, sub.id, now, reason[:REASON_MAX])
            self._waiting.call(sub, len(sub.waiters))
            self._wakes.cancel(sub.id)
            self._registry.remove(sub)

    def knows(self, topic: str) -> bool:
        """Whether the topic is there, or about to be made."""
        return self._registry.knows(topic)

    def claim(self, topics: Iterable[str], maker: str) -> None:
        """Somebody is about to make those of these topics that are not there: they count for their share.

        A snapshot remembers it; a topic read back from the log alone counts for nobody.
        Raises OverQuota; then none is counted.
        """
        self._registry.claim(topics, maker)

    # Deliveries

    def take(
        self,
        subscription: int,
        limit: int,
        *,
        owner: str,
        consumer: Consumer | None = None,
        size_max: int = NEVER,
        timed: bool = True,
        ack_wait_us: int = 0,
        now: int,
    ) -> list[Portion]:
        """Deliver up to `limit` messages: those due again first, then the next ones.

        `size_max` bounds their bytes by the average of each batch; one message is delivered whatever its size.
        An unknown subscription, or somebody else's, has none. With a consumer the messages can be given back by
        `release`; unless `timed`, nothing else gives them back while this process lives. `ack_wait_us`, where given,
        is how long this consumer has, in place of the topic's rule.
        """
        sub = self._subscriptions.get(subscription)
        if sub is None or sub.owner != owner:
            return []
        sub.use(now)
        was_blocked = sub.blocked
        portions = self._dispatch.take(sub, limit, consumer, now, size_max, timed, ack_wait_us)
        if sub.timers:
            self._wakes.wake_by(sub.id, sub.timers[0][0])
        if sub.waiters and portions and was_blocked and not sub.blocked:
            self._waiting.call(sub, len(sub.waiters))
        elif sub.waiters and sub.peek_ready() is not None:
            self._waiting.call(sub, len(sub.ready))
        if consumer is not None:
            self._waiting.answer(sub, consumer)
            if portions:
                self._holding.setdefault(consumer, {})[sub.id] = sub
        return portions

    def has_more(self, subscription: int, now: int) -> bool:
        """Whether another `take` might find something; cheaper than trying."""
        sub = self._subscriptions.get(subscription)
        return sub is not None and not sub.nothing_for(now)

    def caught_up(self, subscription: int, owner: str) -> Definition | None:
        """This owner's subscription if its cursor is at the end of its topic, so that the next batch there is its."""
        sub = self._subscriptions.get(subscription)
        return sub.definition if sub and sub.owner == owner and sub.cursor >= sub.topic.end else None

    def ack(
        self, subscription: int, ranges: Sequence[tuple[int, int]], *, owner: str, attempt: int = 0,
        consumer: Consumer | None = None, now: int,
    ) -> None:  # fmt: skip
        """Settle deliveries, given as ranges of (first delivery id, count): all of them or none.

        What the retry timer took back may still be acked until it is delivered again; with `attempt`, only by who had
        that attempt; with `consumer`, only what that one holds. Raises BrokerError(UNKNOWN) when any is unknown,
        already settled or named twice.
        """
        sub = self._awaiting(subscription, ranges, owner, attempt, consumer)
        sub.use(now)
        for first, count in ranges:
            self._journal.acked(sub.id, now, sub.settle_ids(first, count, Event.ACKED))
        if sub.blocked and sub.waiters:
            self._waiting.call(sub, sum(count for _, count in ranges))

    def nack(
        self, subscription: int, ranges: Sequence[tuple[int, int]], *, owner: str, attempt: int = 0,
        consumer: Consumer | None = None, reason: str = "", dead: bool = False, now: int,
    ) -> None:  # fmt: skip
        """These deliveries failed: they are due again after their backoff, or become dead letters; if `dead`, at once.

        Raises BrokerError(UNKNOWN) as `ack` does.
        """
        sub = self._awaiting(subscription, ranges, owner, attempt, consumer)
        sub.use(now)
        for first, count in ranges:
            for run in sub.isolate(first, count):
                self._dispatch.fail(sub, run, reason[:REASON_MAX] or NACKED, now, dead=dead)
        self._after_failure(sub)

    def release(self, consumer: Consumer, now: int) -> None:
        """The consumer is gone: what it holds has failed, and it waits for nothing any more."""
        holding = self._holding.get(consumer, {})
        self.forget(consumer)
        for sub in holding.values():
            if sub.id in self._subscriptions:
                for run in sub.held_by(consumer):
                    self._dispatch.fail(sub, run, CONNECTION_LOST, now)
                self._after_failure(sub)

    def forget(self, consumer: Consumer) -> None:
        """The consumer is gone; what it holds is left to the retry timer, and it waits for nothing any more."""
        self._waiting.leave(consumer)
        self._holding.pop(consumer, None)

    def stop_waiting(self, consumer: Consumer, *, but_for: Collection[int] = ()) -> None:
        """The consumer waits for nothing any more but these; where it was called, the next one is called instead."""
        self._waiting.leave(consumer, but_for)

    def wait(self, subscription: int, consumer: Consumer) -> None:
        """Call the consumer, through `drain_ready`, when the subscription may have something for it.

        To be used after a take that gave nothing. Consumers are called in the order they came, each once; one that
        is called takes, and waits again if that gives nothing. If it leaves instead, the next one is called. One whose
        subscription is unknown or removed is called at once.
        """
        sub = self._subscriptions.get(subscription)
        if sub is None:
            self._waiting.call_now(consumer)
        else:
            self._waiting.enter(sub, consumer)

    # What comes from outside

    def on_published(self, batch: Batch, now: int) -> None:
        """A batch has become visible."""
        topic = self._registry.topic(batch.topic)
        topic.saw(batch)
        if topic.has_qos0:
            self._check_overflow(topic, batch.count, now)
        if topic.subscriptions and (batch.expires_us or topic.ttl_us):
            self._sweeps.wake_by(topic.name, topic.expires(batch))
        if topic.waiting:
            for sub in list(topic.waiting.values()):
                self._waiting.call(sub, batch.count)

    def tick(self, now: int) -> None:
        """Do what is due: take back unsettled messages, expire messages and abandoned subscriptions."""
        while (identity := self._wakes.pop(now)) is not None:
            self._wake(self._subscriptions[identity], now)
        while (name := self._sweeps.pop(now)) is not None:
            self._sweep(self._registry.topic(name), now)

    def next_deadline(self) -> int | None:
        """When `tick` next has something to do, None for never."""
        due = min(self._wakes.next_due(), self._sweeps.next_due())
        return None if due == NEVER else due

    def rewound(self, offset: int) -> None:
        """The log refused what it had not made durable and gives the offsets from here on again."""
        for sub in self._subscriptions.values():
            sub.rewind(offset)

    def forget_before(self, offset: int, now: int) -> None:
        """The log is about to delete everything below the offset; what somebody still needs of it is dropped.

        To be called before a deletion that does not respect `needed_from`.
        """
        for sub in self._subscriptions.values():
            self._dispatch.forget_before(sub, offset, now)
            if sub.blocked and sub.waiters:
                self._waiting.call(sub, len(sub.waiters))

    def damaged(self, detail: bytes, now: int) -> None:
        """Bytes of the log were found bad; `detail` says which, as JSON."""
        self._journal.told(Event.DAMAGED, now, detail)

    # What comes out

    @property
    def recorded(self) -> int:
        """How many events there were so far, drained or not."""
        return self._journal.recorded

    def drain(self) -> list[bytes]:
        """The payloads to append to the log, in order: each the parts of one record."""
        return self._journal.drain()

    def drain_ready(self) -> list[Consumer]:
        """The waiting consumers that may find something now, in the order they came."""
        return self._waiting.drain()

    def needed_from(self) -> int:
        """The lowest offset any subscription or reader still needs; NEVER when none needs anything."""
        needed = min((sub.needed_from() for sub in self._subscriptions.values()), default=NEVER)
        return min(needed, self.readers.needed_from())

    # Memory

    def apply_event(self, event: EventPart, offset: int) -> None:
        """Fold a recorded event, found at this offset, into the state. Only before the broker is used."""
        if event.event == Event.SUBSCRIBED:
            sub = self._registry.create(msgspec.json.decode(event.detail, type=Definition), event.subscription)
            sub.rewind(offset)
            self._recover(sub)
        elif event.event == Event.COMMITTED:
            self.writers.committed(msgspec.json.decode(event.detail, type=Chunk), event.timestamp_us)
        elif event.event == Event.REPORTED:
            self.readers.reported(msgspec.json.decode(event.detail, type=Reader))
        elif (known := self._subscriptions.get(event.subscription)) is not None:
            if event.event == Event.UNSUBSCRIBED:
                self._wakes.cancel(known.id)
                self._registry.remove(known)
            else:
                fold(known, event, self._source)

    def recovered(self, now: int) -> None:
        """Everything recorded is applied. Readers that held messages are gone with the process they read from."""
        for sub in self._subscriptions.values():
            for run in sub.orphans():
                self._dispatch.fail(sub, run, CONNECTION_LOST, now)
            self._schedule(sub)

    def apply_batch(self, batch: Batch, *, copied: bool = False) -> None:
        """Fold a recorded batch into the state; one the state has counted changes nothing.

        A snapshot counts what was visible when it was taken, so this begins at the batches that were not. What is
        `copied` from dead letters has ids that were published before.
        """
        self._registry.topic(batch.topic).saw(batch)
        if not copied:
            self.identities.note(batch)

    def snapshot(self) -> bytes:
        """The state, everything drained so far included: events from the next record on are not in it."""
        return snapshot.encode(self._registry, self.writers, self.readers, self.identities)

    @classmethod
    def restore(cls, state: bytes, source: BatchSource, settings: BrokerSettings) -> Self:
        """The broker a snapshot was taken of, events after it still to be applied. Raises BadSnapshot for others."""
        broker = cls(source, settings)
        for sub in snapshot.load(state, broker._registry, broker.writers, broker.readers, broker.identities):
            broker._recover(sub)
        return broker

    # Views

    @property
    def counters(self) -> Counters:
        """Totals over everything, counted at once; see `survey` for a broker that must go on meanwhile."""
        survey = self.survey(0)
        for _ in survey.steps():
            continue
        return survey.counters

    def survey(self, named_max: int) -> Survey:
        """Everything to be counted, with numbers of their own for the `named_max` busiest topics."""
        return Survey(self._registry, self._source, named_max)

    @property
    def topic_count(self) -> int:
        """How many topics were published or subscribed to."""
        return len(self._registry.names)

    @property
    def subscription_count(self) -> int:
        """How many subscriptions there are."""
        return len(self._subscriptions)

    def topics(self) -> list[TopicInfo]:
        """Every topic published to or subscribed to, in order; for few topics."""
        return [views.topic_info(self._registry.topic(name)) for name in self._registry.names]

    def topic_names(self, start: str, limit: int) -> list[str]:
        """The first names of topics from `start` on, in order, at most so many."""
        return self._registry.names.page(start, limit)

    def topic(self, name: str) -> TopicInfo | None:
        """One topic, None when it is unknown."""
        topic = self._registry.known(name)
        return None if topic is None else views.topic_info(topic)

    def subscriptions(self) -> list[SubscriptionInfo]:
        """Every subscription; for few of them."""
        return [views.subscription_info(sub, self._source) for sub in self._subscriptions.values()]

    def placed(self, topic: str, subscription: int, limit: int) -> list[tuple[str, int]]:
        """The first subscriptions from this topic and id on, as (topic, id) in that order, at most so many."""
        return self._registry.placed.page((topic, subscription), limit)

    def subscription(self, subscription: int) -> SubscriptionInfo | None:
        """One subscription, None when it is unknown."""
        sub = self._subscriptions.get(subscription)
        return None if sub is None else views.subscription_info(sub, self._source)

    def definition(self, subscription: int) -> Definition | None:
        """What a subscription is, None when it is unknown; costs next to nothing."""
        sub = self._subscriptions.get(subscription)
        return None if sub is None else sub.definition

    def status_of(self, subscription: int, offset: int) -> Status | None:
        """Where a message of its topic stands in a subscription, None when that is unknown."""
        sub = self._subscriptions.get(subscription)
        return None if sub is None else views.status_of(sub, offset)

    # How the above is done

    def _awaiting(
        self, subscription: int, ranges: Sequence[tuple[int, int]], owner: str, attempt: int, consumer: Consumer | None
    ) -> Subscription:
        sub = self._subscriptions.get(subscription)
        if sub is None or sub.owner != owner or not sub.runs.all_awaited(ranges, attempt, consumer):
            raise BrokerError(Code.UNKNOWN, "unknown subscription or delivery")
        return sub

    def _after_failure(self, sub: Subscription) -> None:
        """Something of the subscription is due again at some time, or has made room."""
        self._schedule(sub)
        if sub.waiters:
            self._waiting.call(sub, len(sub.waiters) if sub.blocked else sub.unpark(sub.cursor))

    def _recover(self, sub: Subscription) -> None:
        """Make a recovered subscription claimable and have the first tick start its clock."""
        sub.untouched = True
        self._registry.offer(sub)
        self._schedule(sub)

    def _schedule(self, sub: Subscription) -> None:
        """Have `tick` look at the subscription when its next timer is due."""
        self._wakes.wake_by(sub.id, min(sub.next_due(), self._expiry(sub)))

    def _expiry(self, sub: Subscription) -> int:
        """When it is removed unless somebody uses it; at once after a restart, for its time to begin to count."""
        if not sub.last_used:
            return 0
        return NEVER if sub.definition.name else sub.last_used + self._expiry_us

    def _wake(self, sub: Subscription, now: int) -> None:
        if not sub.last_used:
            sub.last_used = now
            self._sweeps.wake_by(sub.topic.name, now)
        elif now >= self._expiry(sub):
            self.unsubscribe(sub.id, IDLE, now)
            return
        ready = self._dispatch.ripen(sub, now)
        if sub.waiters:
            self._waiting.call(sub, len(sub.waiters) if sub.blocked else ready)
        self._schedule(sub)

    def _sweep(self, topic: Topic, now: int) -> None:
        """Pass what has expired at the topic's cursors."""
        subscriptions = topic.subscriptions.values()
        due = min((self._dispatch.skip_expired(sub, now) for sub in subscriptions), default=NEVER)
        if due != NEVER:
            self._sweeps.wake_by(topic.name, max(due, now + SWEEP_INTERVAL_US))

    def _check_overflow(self, topic: Topic, count: int, now: int) -> None:
        """Now and then drop what QoS 0 subscriptions left lying; a take does it exactly."""
        topic.unchecked += count
        if topic.unchecked >= self._overflow_check:
            topic.unchecked = 0
            for sub in topic.subscriptions.values():
                if not sub.qos:
                    self._dispatch.trim(sub, now)
