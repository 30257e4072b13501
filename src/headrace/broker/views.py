"""What the broker tells about itself: values without a way back into its state. Changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.broker.readers import Reader
from headrace.broker.registry import Registry
from headrace.broker.subscription import Subscription
from headrace.broker.topic import Topic
from headrace.model.delivery import BatchSource
from headrace.model.events import Event


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
class ReaderInfo:
    """A reader outside the broker; `lag` counts the messages of its topics (None: all) from `offset` on."""

    reader: str
    owner: str
    topics: Sequence[str] | None
    offset: int
    lag: int
    reported_us: int


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


def topic_info(topic: Topic) -> TopicInfo:
    """What there is to know about a topic."""
    return TopicInfo(name=topic.name, published=topic.published, end=topic.end, subscriptions=len(topic.subscriptions))


def subscription_info(sub: Subscription, source: BatchSource) -> SubscriptionInfo:
    """What there is to know about a subscription."""
    tally = sub.tally
    return SubscriptionInfo(
        id=sub.id,
        topic=sub.topic.name,
        name=sub.definition.name,
        owner=sub.owner,
        qos=sub.qos,
        cursor=sub.cursor,
        pending=source.count_from(sub.topic.name, sub.cursor),
        deferred=sum(run.count for run in sub.runs if not run.attempt),
        in_flight=sub.in_flight,
        attempts=max((run.attempt for run in sub.runs), default=0),
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


def reader_info(reader: Reader, every_topic: Sequence[str], source: BatchSource) -> ReaderInfo:
    """What there is to know about a reader."""
    offset = reader.offset or 0
    chosen = every_topic if reader.topics is None else reader.topics
    return ReaderInfo(
        reader=reader.reader,
        owner=reader.owner,
        topics=reader.topics,
        offset=offset,
        lag=sum(source.count_from(topic, offset) for topic in chosen),
        reported_us=reader.reported_us,
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


def count_all(registry: Registry) -> Counters:
    """Totals over everything."""
    tally = registry.removed
    redelivered = registry.removed_redelivered
    inflight = 0
    for sub in registry.subscriptions.values():
        tally = [a + b for a, b in zip(tally, sub.tally, strict=True)]
        redelivered += sub.redelivered
        inflight += sub.in_flight
    return Counters(
        published=sum(topic.published for topic in registry.topics()),
        delivered=tally[Event.DELIVERED] + redelivered,
        redelivered=redelivered,
        acked=tally[Event.ACKED],
        nacked=tally[Event.NACKED],
        expired=tally[Event.EXPIRED],
        dead=tally[Event.DEAD],
        dropped=tally[Event.DROPPED],
        inflight=inflight,
    )
