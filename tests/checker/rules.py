"""What must hold of a history, whatever was done to the broker. Each rule is a function from a run to its violations.

The rules know only what clients were told. What a client was not told may have happened or not; what it was told holds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import zip_longest

from tests.checker.history import Final, History, Kind, Op, Outcome, place

ATTEMPTS_MAX = 5
DEATH, DISK = "kill", "disk"

Rule = Callable[[History, Final], Iterator[str]]


def nothing_acknowledged_is_lost(history: History, final: Final) -> Iterator[str]:
    """A confirmed publish is stored, unless the broker itself names it as lost."""
    stored = {value for values in final.stored.values() for value in values}
    for op in _published(history, Outcome.OK):
        for value in op.values:
            if value not in stored and value not in final.lost:
                yield f"{value} was confirmed at {op.ended:.3f} and is not stored"


def everything_stored_reaches_every_subscription(history: History, final: Final) -> Iterator[str]:
    """After draining, what is stored was delivered to, or is a dead letter of, each subscription that follows."""
    reached = _deliveries(history)
    for subscription, topic in final.followed.items():
        arrived = reached[subscription].keys() | set(final.dead.get(subscription, ()))
        for value in final.stored.get(topic, ()):
            if value not in arrived and value not in final.lost:
                yield f"{value} is stored, but neither delivered to {subscription} nor a dead letter of it"


def nothing_is_invented(history: History, final: Final) -> Iterator[str]:
    """What is stored or delivered was published, to that topic."""
    published = {value for op in history.ops if op.kind in (Kind.PUBLISH, Kind.TRANSACT) for value in op.values}
    for topic, values in final.stored.items():
        for value in values:
            if value not in published:
                yield f"{value} is stored in {topic} and nobody published it"
            elif place(value)[1] != topic:
                yield f"{value} is stored in {topic}"
    for op in history.ops:
        if op.kind is Kind.TAKE:
            yield from (f"{value} was delivered to {op.lane}, unpublished" for value in set(op.values) - published)


def nothing_is_doubled(history: History, final: Final) -> Iterator[str]:
    """Nobody published a value twice, so none is stored twice."""
    for topic, values in final.stored.items():
        for value, times in Counter(values).items():
            if times > 1:
                yield f"{value} is stored {times} times in {topic}"


def what_a_publisher_sent_in_order_is_stored_in_order(history: History, final: Final) -> Iterator[str]:
    """Of each publisher, and topic, the values stored stand in the order they were sent."""
    for topic, values in final.stored.items():
        last: dict[str, int] = {}
        for value in values:
            lane, _, number = place(value)
            if number < last.get(lane, -1):
                yield f"{value} is stored in {topic} behind number {last[lane]} of the same publisher"
            last[lane] = max(number, last.get(lane, -1))


def first_deliveries_come_in_the_order_stored(history: History, final: Final) -> Iterator[str]:
    """What comes as a first attempt is newer than whatever came in takes that were answered before it was asked for.

    Where a door does not tell attempts nothing can be said; nor across a death of the broker, which may forget that it
    handed something out, for that is no promise.
    """
    for subscription, topic in final.followed.items():
        rank = {value: position for position, value in enumerate(final.stored.get(topic, ()))}
        newest: list[tuple[float, int, str]] = []
        for op in sorted(_takes(history, subscription), key=lambda each: each.ended):
            for value, attempt in zip(op.values, op.attempts, strict=False):
                before = next((entry for entry in reversed(newest) if entry[0] < op.asked), None)
                if attempt > 1 or value not in rank or before is None or _deaths(history, before[0], op.ended):
                    continue
                if before[1] > rank[value]:
                    yield f"{value} came first to {subscription} after {before[2]}, which is newer"
            top = max((value for value in op.values if value in rank), key=rank.__getitem__, default=None)
            if top is not None and (not newest or rank[top] > newest[-1][1]):
                newest.append((op.ended, rank[top], top))


def what_is_settled_stays_settled(history: History, final: Final) -> Iterator[str]:
    """After an ack was confirmed the value is not handed out again, and is no dead letter of that subscription."""
    acked: dict[tuple[str, str], float] = {}
    for op in history.ops:
        if op.kind is Kind.ACK and op.outcome is Outcome.OK:
            for value in op.values:
                acked.setdefault((op.subscription, value), op.ended)
    for op in history.ops:
        if op.kind is Kind.TAKE:
            for value in op.values:
                settled = acked.get((op.subscription, value))
                if settled is not None and op.asked > settled:
                    yield f"{value} came to {op.subscription} at {op.ended:.3f}, acked for good at {settled:.3f}"
    for subscription, values in final.dead.items():
        for value in values:
            if (subscription, value) in acked:
                yield f"{value} was acked for good by {subscription} and is its dead letter"


def attempts_are_counted_and_bounded(history: History, final: Final) -> Iterator[str]:
    """No value is handed out more often than it may be, nor twice as the same attempt.

    That something was handed out is told to the disk some milliseconds later: each death of the broker may forget one.
    """
    came: defaultdict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for op in history.ops:
        if op.kind is Kind.TAKE:
            for value, attempt in zip_longest(op.values, op.attempts, fillvalue=0):
                came[op.subscription, str(value)].append((op.asked, op.ended, int(attempt)))
    for (subscription, value), times in came.items():
        deaths = _deaths(history, times[0][0], times[-1][1])
        if len(times) > ATTEMPTS_MAX + deaths:
            yield f"{value} was delivered to {subscription} {len(times)} times, with {deaths} deaths between"
        last: dict[int, tuple[float, float, int]] = {}
        for each in sorted(times):
            before = last.get(each[2])
            if each[2] and before is not None and not _deaths(history, before[0], each[1]):
                yield f"{value} came to {subscription} twice as attempt {each[2]}"
            last[each[2]] = each


def dead_letters_are_unique(history: History, final: Final) -> Iterator[str]:
    """A value dies at most once for each subscription."""
    for subscription, values in final.dead.items():
        for value, times in Counter(values).items():
            if times > 1:
                yield f"{value} is a dead letter of {subscription} {times} times"


def transactions_are_whole(history: History, final: Final) -> Iterator[str]:
    """All of a transaction is stored or nothing; nothing, once it was refused.

    A disk that failed to sync may have kept what it said it did not, which a restart then finds.
    """
    stored = {value for values in final.stored.values() for value in values}
    for op in history.ops:
        if op.kind is Kind.TRANSACT:
            there = [value for value in op.values if value in stored or value in final.lost]
            if there and len(there) < len(op.values):
                yield f"{len(there)} of {len(op.values)} values of {op.lane}'s transaction at {op.asked:.3f} are stored"
            if op.outcome is Outcome.REFUSED and there and not _overlap(history, DISK, op.asked, op.ended):
                yield f"{op.lane}'s transaction at {op.asked:.3f} was given up and is stored"


RULES: tuple[Rule, ...] = (
    nothing_acknowledged_is_lost,
    everything_stored_reaches_every_subscription,
    nothing_is_invented,
    nothing_is_doubled,
    what_a_publisher_sent_in_order_is_stored_in_order,
    first_deliveries_come_in_the_order_stored,
    what_is_settled_stays_settled,
    attempts_are_counted_and_bounded,
    dead_letters_are_unique,
    transactions_are_whole,
)


def violations(history: History, final: Final) -> list[str]:
    """Everything that should not be, with the rule it breaks."""
    return [f"{rule.__name__}: {found}" for rule in RULES for found in rule(history, final)]


def _published(history: History, outcome: Outcome) -> Iterator[Op]:
    return (op for op in history.ops if op.kind in (Kind.PUBLISH, Kind.TRANSACT) and op.outcome is outcome)


def _takes(history: History, subscription: str) -> Iterator[Op]:
    return (op for op in history.ops if op.kind is Kind.TAKE and op.subscription == subscription)


def _deaths(history: History, since: float, until: float) -> int:
    """How often the broker died between two times."""
    return _overlap(history, DEATH, since, until)


def _overlap(history: History, kind: str, since: float, until: float) -> int:
    """How many faults with this in their name were there between two times."""
    return sum(kind in fault.name and fault.ended >= since and fault.began <= until for fault in history.faults)


def _deliveries(history: History) -> defaultdict[str, Counter[str]]:
    """How often each value was delivered to each subscription."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for op in history.ops:
        if op.kind is Kind.TAKE:
            found[op.subscription].update(op.values)
    return found
