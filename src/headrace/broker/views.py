"""What the broker tells about itself: values without a way back into its state. Changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappush, heappushpop
from itertools import islice

from headrace.broker.registry import Registry
from headrace.broker.subscription import Subscription
from headrace.broker.topic import Topic
from headrace.model.delivery import BatchSource
from headrace.model.events import Event

RUNS_MAX = 100_000
"""How many runs of a subscription are looked at for what is told of it: about ten milliseconds' worth."""


class Status(Enum):
    """Where a message stands in one subscription. What became of a settled one is in the log."""

    OUTSIDE = "outside"
    PENDING = "pending"
    DEFERRED = "deferred"
    IN_FLIGHT = "in flight"
    WAITING = "waiting"
    SETTLED = "settled"


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicInfo:
    """A topic."""

    name: str
    published: int
    end: int
    subscriptions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionInfo:
    """A subscription.

    `pending` counts what the cursor has yet to come to, `deferred` what it passed because it is not due yet,
    `in_flight` what was delivered and is not settled; `attempts` is the highest attempt among those. `delivered`
    counts every delivery, `redelivered` those after the first of a message.
    """

    id: int
    topic: str
    name: str
    owner: str
    qos: int
    cursor: int
    pending: int
    deferred: int
    in_flight: int
    attempts: int
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    expired: int
    dead: int
    dropped: int
    waiting_consumers: int
    last_used_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Totals over all topics and subscriptions, removed ones included; `inflight` is of this moment."""

    published: int
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    expired: int
    dead: int
    dropped: int
    inflight: int


NOTHING = Counters(published=0, delivered=0, redelivered=0, acked=0, nacked=0, expired=0, dead=0, dropped=0, inflight=0)


def topic_info(topic: Topic) -> TopicInfo:
    """What there is to know about a topic."""
    return TopicInfo(name=topic.name, published=topic.published, end=topic.end, subscriptions=len(topic.subscriptions))


def subscription_info(sub: Subscription, source: BatchSource) -> SubscriptionInfo:
    """What there is to know about a subscription."""
    tally = sub.tally
    runs = list(islice(sub.runs, RUNS_MAX))
    return SubscriptionInfo(
        id=sub.id,
        topic=sub.topic.name,
        name=sub.definition.name,
        owner=sub.owner,
        qos=sub.qos,
        cursor=sub.cursor,
        pending=source.count_from(sub.topic.name, sub.cursor),
        deferred=sum(run.count for run in runs if not run.attempt),
        in_flight=sub.in_flight,
        attempts=max((run.attempt for run in runs), default=0),
        delivered=tally[Event.DELIVERED] + sub.redelivered,
        redelivered=sub.redelivered,
        acked=tally[Event.ACKED],
        nacked=tally[Event.NACKED],
        expired=tally[Event.EXPIRED],
        dead=tally[Event.DEAD],
        dropped=tally[Event.DROPPED],
        waiting_consumers=len(sub.waiters),
        last_used_us=sub.last_used,
    )


def status_of(sub: Subscription, offset: int) -> Status:
    """Where a message of its topic stands in a subscription."""
    if offset < sub.definition.cursor:
        return Status.OUTSIDE
    if offset >= sub.cursor:
        return Status.PENDING
    run = sub.runs.at_offset(offset)
    if run is None:
        return Status.SETTLED
    if not run.attempt:
        return Status.DEFERRED
    return Status.IN_FLIGHT if run.awaited and not run.ready else Status.WAITING


class Survey:
    """Everything counted, a step at a time, while the broker goes on: what is counted never falls from one to the next.

    Once `steps` has come to its end, `counters` are totals, `published` and `backlog` hold the numbers of the
    `named_max` topics with the most messages by name, and those of all others under `OTHERS`.
    """

    OTHERS = ""

    def __init__(self, registry: Registry, source: BatchSource, named_max: int) -> None:
        self.published: dict[str, int] = {}
        self.backlog: dict[str, int] = {}
        self.counters = NOTHING
        self._topics = list(registry.topics())
        self._subscriptions = list(registry.subscriptions.values())
        self._tally = registry.removed
        self._redelivered = registry.removed_redelivered
        self._source = source
        self._named_max = named_max

    @property
    def topics(self) -> int:
        """How many topics there are."""
        return len(self._topics)

    @property
    def subscriptions(self) -> int:
        """How many subscriptions there are."""
        return len(self._subscriptions)

    def steps(self) -> Iterator[None]:
        """Count; other work may be done after each step."""
        busiest: list[tuple[int, str]] = []
        total = 0
        for topic in self._topics:
            total += topic.published
            if len(busiest) < self._named_max:
                heappush(busiest, (topic.published, topic.name))
            elif busiest and busiest[0][0] < topic.published:
                heappushpop(busiest, (topic.published, topic.name))
            yield
        published = {name: count for count, name in busiest}
        if len(self._topics) > len(published):
            published[self.OTHERS] = total - sum(published.values())
        self.published = published
        yield from self._subscribed(total)

    def _subscribed(self, published: int) -> Iterator[None]:
        tally, redelivered, inflight = self._tally, self._redelivered, 0
        backlog = dict.fromkeys(self.published, 0)
        for sub in self._subscriptions:
            tally = [a + b for a, b in zip(tally, sub.tally, strict=True)]
            redelivered += sub.redelivered
            inflight += sub.in_flight
            name = sub.topic.name if sub.topic.name in self.published else self.OTHERS
            waiting = sum(run.count for run in islice(sub.runs, RUNS_MAX))
            backlog[name] = backlog.get(name, 0) + waiting + self._source.count_from(sub.topic.name, sub.cursor)
            yield
        self.backlog = backlog
        self.counters = Counters(
            published=published,
            delivered=tally[Event.DELIVERED] + redelivered,
            redelivered=redelivered,
            acked=tally[Event.ACKED],
            nacked=tally[Event.NACKED],
            expired=tally[Event.EXPIRED],
            dead=tally[Event.DEAD],
            dropped=tally[Event.DROPPED],
            inflight=inflight,
        )
