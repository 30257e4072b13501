"""Looking into a topic without consuming: a page of messages, and where each stands in every subscription.

Where a message stands is known to the broker; how it got there (which attempt, acked or dead) is in the log, of which a
bounded part is walked.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from headrace.broker.views import Status
from headrace.log import Log
from headrace.model.batch import Batch, Message
from headrace.model.events import Event
from headrace.server.engine import Engine
from headrace.server.shapes import MessageView, message_view
from headrace.server.walk import Walk, messages_from

WALK_COST_MAX = 64 << 20
SHOWN = {
    Status.PENDING: "pending",
    Status.DEFERRED: "delayed",
    Status.IN_FLIGHT: "in flight",
    Status.WAITING: "to be retried",
    Status.SETTLED: "settled",
}
FATES = {Event.ACKED: "acked", Event.EXPIRED: "expired", Event.DEAD: "dead", Event.DROPPED: "dropped"}

Fate = tuple[Event, int]


async def browse(engine: Engine, topic: str, start: int, limit: int, value_max: int) -> list[MessageView]:
    """Up to `limit` messages of the topic from an offset on, with their states by subscription."""
    found = list(islice(messages_from(engine.log, topic, start), limit))
    subscriptions = [info.id for info in engine.broker.subscriptions() if info.topic == topic]
    fates = await fates_of(engine.log, [m.offset for m in found]) if subscriptions else {}
    return [
        message_view(message, value_max=value_max, states=_states(engine, message, subscriptions, fates))
        for message in found
    ]


async def fates_of(log: Log, offsets: Sequence[int]) -> dict[tuple[int, int], Fate]:
    """The last thing the walked part of the log tells about these messages, by (subscription, offset).

    `offsets` must be in ascending order.
    """
    fates: dict[tuple[int, int], Fate] = {}
    if not offsets:
        return fates
    async for record in Walk(log, offsets[0], cost_max=WALK_COST_MAX).records():
        for part in record.parts():
            if isinstance(part, Batch):
                continue
            _, event = part
            for first, count, attempt in event.ranges:
                for index in range(bisect_left(offsets, first), bisect_left(offsets, first + count)):
                    fates[event.subscription, offsets[index]] = event.event, attempt
    return fates


def _states(
    engine: Engine, message: Message, subscriptions: Sequence[int], fates: dict[tuple[int, int], Fate]
) -> dict[str, str]:
    states = {}
    for subscription in subscriptions:
        status = engine.broker.status_of(subscription, message.offset)
        if status is not None and status is not Status.OUTSIDE:
            states[str(subscription)] = _state(status, fates.get((subscription, message.offset)))
    return states


def _state(status: Status, fate: Fate | None) -> str:
    """`acked`, `in flight, attempt 2`, …; without a known fate what the broker says alone."""
    if fate is None or status in (Status.PENDING, Status.DEFERRED):
        return SHOWN[status]
    event, attempt = fate
    if status is Status.SETTLED:
        return FATES.get(event, "delivered" if event is Event.DELIVERED else SHOWN[status])
    return f"{SHOWN[status]}, attempt {attempt}"
