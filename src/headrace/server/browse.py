"""Looking into a topic without consuming: a page of messages, and where each stands in the topic's subscriptions.

Where a message stands is known to the broker; how it got there (which attempt, acked or dead) is in the log, of which a
bounded part is walked.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import aclosing

from headrace.broker.views import Status
from headrace.log import Log
from headrace.model.batch import Batch
from headrace.model.events import Event
from headrace.server.engine import Engine
from headrace.server.pages import PAGE_BYTES_MAX, SCAN_BYTES_MAX, Page
from headrace.server.shapes import message_view
from headrace.server.walk import Turns, Walk, batches_from

WALK_COST_MAX = 64 << 20
STATES_MAX = 50
"""How many subscriptions a page tells of: more of them are asked for one at a time."""

SHOWN = {
    Status.PENDING: "pending",
    Status.DEFERRED: "delayed",
    Status.IN_FLIGHT: "in flight",
    Status.WAITING: "to be retried",
    Status.SETTLED: "settled",
}
FATES = {Event.ACKED: "acked", Event.EXPIRED: "expired", Event.DEAD: "dead", Event.DROPPED: "dropped"}

Fate = tuple[Event, int]
Place = tuple[Batch, int]


async def browse(
    engine: Engine, topic: str, start: int, page: Page, limit: int, value_max: int, subscription: int | None = None
) -> int:
    """Fill a page with up to `limit` messages of the topic from an offset on, with their states by subscription.

    Returns the offset from which the next page goes on. With `subscription` only that one's states are told.
    """
    turns = Turns()
    found = await _places(engine.log, topic, start, limit, value_max, turns)
    shown, left_out = _subscriptions(engine, topic, subscription)
    offsets = [batch.base + index for batch, index in found]
    fates = await fates_of(engine.log, offsets, shown) if shown else {}
    reached = start
    for batch, index in found:
        offset = batch.base + index
        states = _states(engine, offset, shown, fates)
        if not page.add(message_view(batch, index, value_max=value_max, states=states, states_left_out=left_out)):
            break
        reached = offset + 1
        await turns.step(value_max, 1 + len(shown))
    return reached


async def _places(log: Log, topic: str, start: int, limit: int, value_max: int, turns: Turns) -> list[Place]:
    """Where the messages of a page are, no more of them than a page may hold."""
    found: list[Place] = []
    scanned = shown = 0
    for batch in batches_from(log, topic, start):
        scanned += batch.size
        for index in range(max(0, start - batch.base), batch.count):
            if len(found) == limit or shown > PAGE_BYTES_MAX:
                return found
            found.append((batch, index))
            shown += min(value_max, batch.value_size(index))
            await turns.step()
        if len(found) == limit or scanned > SCAN_BYTES_MAX:
            return found
        await turns.step(batch.size)
    return found


def _subscriptions(engine: Engine, topic: str, subscription: int | None) -> tuple[list[int], int]:
    """The subscriptions whose states are told, and how many others the topic has."""
    known = engine.broker.topic(topic)
    if known is None:
        return [], 0
    if subscription is not None:
        found = engine.broker.placed(topic, subscription, 1)
        shown = [number for name, number in found if name == topic and number == subscription]
    else:
        shown = [number for name, number in engine.broker.placed(topic, 0, STATES_MAX) if name == topic]
    return shown, known.subscriptions - len(shown)


async def fates_of(log: Log, offsets: Sequence[int], subscriptions: Collection[int]) -> dict[tuple[int, int], Fate]:
    """The last thing the walked part of the log tells about these messages, by (subscription, offset).

    `offsets` must be in ascending order.
    """
    fates: dict[tuple[int, int], Fate] = {}
    if not offsets:
        return fates
    wanted = frozenset(subscriptions)
    async with aclosing(Walk(log, offsets[0], cost_max=WALK_COST_MAX).records()) as records:
        async for record in records:
            for part in record.parts():
                if isinstance(part, Batch) or part[1].subscription not in wanted:
                    continue
                _, event = part
                for first, count, attempt in event.ranges:
                    for index in range(bisect_left(offsets, first), bisect_left(offsets, first + count)):
                        fates[event.subscription, offsets[index]] = event.event, attempt
    return fates


def _states(
    engine: Engine, offset: int, subscriptions: Sequence[int], fates: dict[tuple[int, int], Fate]
) -> dict[str, str]:
    states = {}
    for subscription in subscriptions:
        status = engine.broker.status_of(subscription, offset)
        if status is not None and status is not Status.OUTSIDE:
            states[str(subscription)] = _state(status, fates.get((subscription, offset)))
    return states


def _state(status: Status, fate: Fate | None) -> str:
    """`acked`, `in flight, attempt 2`, …; without a known fate what the broker says alone."""
    if fate is None or status in (Status.PENDING, Status.DEFERRED):
        return SHOWN[status]
    event, attempt = fate
    if status is Status.SETTLED:
        return FATES.get(event, "delivered" if event is Event.DELIVERED else SHOWN[status])
    return f"{SHOWN[status]}, attempt {attempt}"
