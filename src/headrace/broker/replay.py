"""Folds recorded events into a subscription: the same changes of state, decided before. Decides nothing itself.

A log whose damage was accepted may have lost events. Then messages are rather delivered once more than lost: what an
event skips without a record of it is kept as due at once, and settling what is unknown changes nothing.
"""

from headrace.broker.alarms import NEVER
from headrace.broker.dispatch import AT_MOST_ONCE, HELD
from headrace.broker.retry import backoff_us
from headrace.broker.subscription import Subscription
from headrace.model.delivery import BatchSource
from headrace.model.events import Event, EventPart

PASSING = frozenset((Event.DEFERRED, Event.DELIVERED, Event.EXPIRED, Event.DROPPED))
ENDING = frozenset((Event.ACKED, Event.EXPIRED, Event.DEAD, Event.DROPPED))


def fold(sub: Subscription, event: EventPart, source: BatchSource) -> None:
    """Apply one event to its subscription."""
    for first, count, attempt in event.ranges:
        if first < sub.cursor:
            _fold_behind(sub, event, first, count, attempt)
        elif event.event in PASSING:
            if count and first > sub.cursor:
                _keep_unrecorded(sub, first, event.timestamp_us, source)
            _fold_at_cursor(sub, event, first, count, source)


def _fold_at_cursor(sub: Subscription, event: EventPart, first: int, count: int, source: BatchSource) -> None:
    """What happened to messages the cursor stands before."""
    now = event.timestamp_us
    if event.event == Event.DEFERRED:
        batch = source.batch_at(sub.topic.name, first)
        sub.defer(first, count, sub.topic.due(batch) if batch is not None else now)
    elif event.event == Event.DELIVERED and event.reason != AT_MOST_ONCE:
        sub.deliver(first, count, NEVER if event.reason == HELD else sub.topic.deadline(1, now), None)
    else:
        sub.skip(first, count, event.event)


def _fold_behind(sub: Subscription, event: EventPart, first: int, count: int, attempt: int) -> None:
    """What happened to messages the cursor has passed."""
    now = event.timestamp_us
    kind = event.event
    for identity, size in sub.runs.ids_at(first, count):
        if kind in ENDING or event.reason == AT_MOST_ONCE:
            sub.settle_ids(identity, size, kind)
            continue
        for run in sub.isolate(identity, size):
            if kind == Event.DELIVERED:
                sub.redeliver(run, NEVER if event.reason == HELD else sub.topic.deadline(attempt, now), None)
                run.attempt = attempt
            elif kind == Event.NACKED and sub.definition.tail:
                sub.park(run, sub.topic.end, now)
            elif kind == Event.NACKED:
                sub.postpone(run, now + backoff_us(attempt, sub.topic.policy))


def _keep_unrecorded(sub: Subscription, until: int, due: int, source: BatchSource) -> None:
    """Keep the messages between the cursor and an offset, of which no event tells, as due at once."""
    name = sub.topic.name
    if source.count_from(name, sub.cursor) == source.count_from(name, until):
        return
    while sub.cursor < until:
        batch = source.batch_at(name, sub.cursor)
        if batch is None or batch.base >= until:
            break
        first = max(sub.cursor, batch.base)
        sub.defer(first, min(batch.end, until) - first, due)
