"""One subscription: a cursor, the runs behind it, their timers. Every change of state is a method here.

The broker decides and calls them; replay calls the same ones with what was decided before. Reads no log and writes
no event.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from headrace.broker.alarms import NEVER
from headrace.broker.runs import Consumer, Run, Runs
from headrace.broker.topic import Topic
from headrace.model.batch import Batch
from headrace.model.events import OUTCOMES, Event, Range

TIMERS_SLACK = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """What a subscription is, as recorded when it was made.

    `cursor` is where it began to read; with `tail` what failed goes behind everything there is, instead of coming back
    after a pause. `maker` is whose share it counts for, where that is not the owner's: one that all share has no owner.
    """

    topic: str
    qos: int
    owner: str
    name: str
    cursor: int
    tail: bool = False
    maker: str = ""


class Subscription:
    """A cursor over a topic.

    cursor      the offset it reads from next
    passed      messages it has passed; the next one's delivery id is one more
    runs        what it has passed and nobody has settled
    in_flight   how many of those were delivered at least once
    timers      (due, first delivery id, run) as a heap; entries whose run moved on are skipped
    ready       the same for runs whose time has come
    parked      (tail, first delivery id, run) as a heap: runs that wait for the cursor to reach the tail
    tally       messages by what happened to them, indexed by Event; DELIVERED counts first deliveries
    last_used   when somebody last took or settled, or when the time began to count after a restart
    untouched   whether it was recovered and nobody has used it since
    batch       the batch the cursor is inside of, while it is being read
    blocked     whether the last take stopped at the in-flight limit, or reached it
    """

    __slots__ = (
        "batch", "batch_expires", "blocked", "cursor", "definition", "id", "in_flight", "last_used",
        "owner", "parked", "passed", "qos", "ready", "redelivered", "runs", "tally", "timers", "topic", "untouched",
        "waiters",
    )  # fmt: skip

    def __init__(self, identity: int, definition: Definition, topic: Topic) -> None:
        self.id = identity
        self.definition = definition
        self.owner = definition.owner
        self.qos = definition.qos
        self.topic = topic
        self.cursor = definition.cursor
        self.passed = 0
        self.runs = Runs()
        self.in_flight = 0
        self.timers: list[tuple[int, int, Run]] = []
        self.ready: list[tuple[int, int, Run]] = []
        self.parked: list[tuple[int, int, Run]] = []
        self.tally = [0] * OUTCOMES
        self.redelivered = 0
        self.last_used = 0
        self.untouched = False
        self.batch: Batch | None = None
        self.batch_expires = NEVER
        self.blocked = False
        self.waiters: dict[Consumer, None] = {}

    def use(self, now: int) -> None:
        """Somebody uses the subscription."""
        self.last_used = now
        self.untouched = False

    def nothing_for(self, now: int) -> bool:
        """Whether a take would find nothing: the cursor is at the end, and nothing before it is due again."""
        if self.cursor < self.topic.end or self.ready or self.parked:
            return False
        return not self.timers or self.timers[0][0] > now

    # The cursor

    def rewind(self, offset: int) -> None:
        """Begin no later than here: one that began behind messages the log then refused would miss others."""
        if self.cursor > offset:
            self.cursor = offset
            self.definition = replace(self.definition, cursor=offset)

    def skip(self, first: int, count: int, event: Event) -> int:
        """Pass these messages, which the cursor stands before. Returns the delivery id of the first."""
        delivery = self.passed + 1
        self.passed += count
        self.cursor = cursor = first + count
        self.tally[event] += count
        if self.batch is not None and cursor >= self.batch.base + self.batch.count:
            self.batch = None
        return delivery

    def defer(self, first: int, count: int, due: int) -> None:
        """Pass these messages and come back to them when they are due."""
        self.add(Run(self.skip(first, count, Event.DEFERRED), count, first, 0, due, False, None))

    def deliver(self, first: int, count: int, due: int, holder: Consumer | None) -> None:
        """Pass these messages, now at a consumer that is to settle them before they are due again."""
        run = Run(self.skip(first, count, Event.DELIVERED), count, first, 1, due, True, holder)
        self.in_flight += count
        self.runs.append(run)
        self._queue(run)

    def needed_from(self) -> int:
        """The lowest offset it still needs; NEVER when it needs nothing that is visible."""
        behind = self.runs.lowest_offset
        if behind is not None:
            return behind
        return self.cursor if self.cursor < self.topic.end else NEVER

    # The runs

    def add(self, run: Run) -> None:
        """Put a run behind all others."""
        if run.attempt:
            self.in_flight += run.count
        self.runs.append(run)
        self._queue(run)

    def redeliver(self, run: Run, due: int, holder: Consumer | None) -> None:
        """The run is at a consumer (again)."""
        if run.attempt:
            self.redelivered += run.count
        else:
            self.tally[Event.DELIVERED] += run.count
            self.in_flight += run.count
        run.attempt += 1
        run.awaited = True
        run.holder = holder
        run.tail = 0
        self._reschedule(run, due)

    def postpone(self, run: Run, due: int) -> None:
        """The run's consumer gave it up; it waits until it is due."""
        self.tally[Event.NACKED] += run.count
        run.awaited = False
        run.holder = None
        self._reschedule(run, due)

    def park(self, run: Run, tail: int, now: int) -> None:
        """The run's consumer gave it up; it waits until the cursor has reached the tail."""
        self.tally[Event.NACKED] += run.count
        run.awaited = False
        run.holder = None
        run.tail = tail
        self._reschedule(run, now)

    def settle(self, run: Run, event: Event) -> None:
        """The run is over. A deferred run that is delivered at most once ends as DELIVERED."""
        self.runs.discard(run)
        self._end(run, event)

    def settle_ids(self, first: int, count: int, event: Event) -> list[Range]:
        """These delivery ids, all of which are in runs, are over. Returns the messages they stood for."""
        gone = self.runs.remove(*self._bounds(first, count))
        ranges = [run.as_range() for run in gone]
        for run in gone:
            self._end(run, event)
        self._prune()
        return ranges

    def isolate(self, first: int, count: int) -> list[Run]:
        """The runs that hold these delivery ids and no others."""
        low, high = self._bounds(first, count)
        return self.runs[low:high]

    def cut(self, run: Run, count: int) -> Run | None:
        """Leave the run only its first messages; the others, if any, stay where it was, as a run of their own."""
        _, rest = self.runs.split(run.first + count)
        if rest is not None:
            self._queue(rest)
        return rest

    def held_by(self, consumer: Consumer) -> list[Run]:
        """What the consumer holds, the oldest first."""
        return [run for run in self.runs if run.holder == consumer and run.awaited]

    def orphans(self) -> list[Run]:
        """What is held without a timer by nobody who is there, the oldest first."""
        return [run for run in self.runs if run.awaited and run.due == NEVER and run.holder is None]

    # Time

    def ripen(self, run: Run) -> None:
        """The run's time has come: it waits for the next take."""
        run.ready = True
        run.holder = None
        heappush(self.ready, (run.due, run.first, run))

    def unpark(self, reached: int) -> int:
        """Make what waited for the cursor to come this far ready. Returns how many messages that were."""
        count = 0
        while (tail := self.next_tail()) is not None and tail <= reached:
            run = heappop(self.parked)[2]
            run.tail = 0
            self.ripen(run)
            count += run.count
        return count

    def next_tail(self) -> int | None:
        """The offset before which the cursor is to stop, for what is parked there."""
        parked = self.parked
        while parked:
            tail, _, run = parked[0]
            if run.count and run.tail == tail:
                return tail
            heappop(parked)
        return None

    def pop_due(self, now: int) -> Run | None:
        """The next run whose time has come, taken off the timers."""
        timers = self.timers
        while timers and timers[0][0] <= now:
            due, _, run = heappop(timers)
            if run.count and run.due == due and not run.ready and not run.tail:
                return run
        return None

    def peek_ready(self) -> Run | None:
        """The run to deliver again first; it stays where it is."""
        ready = self.ready
        while ready:
            due, _, run = ready[0]
            if run.count and run.ready and run.due == due:
                return run
            heappop(ready)
        return None

    def next_due(self) -> int:
        """When the next run is due."""
        timers = self.timers
        return timers[0][0] if timers else NEVER

    # How the above is done

    def _bounds(self, first: int, count: int) -> tuple[int, int]:
        """The indices of the runs that hold exactly these ids, after splitting at both ends.

        What begins at the lower end may be in no queue: the caller ends or reschedules it.
        """
        low, _ = self.runs.split(first)
        return low, self._split(first + count)

    def _split(self, at: int) -> int:
        index, rest = self.runs.split(at)
        if rest is not None:
            self._queue(rest)
        return index

    def _end(self, run: Run, event: Event) -> None:
        self.tally[event] += run.count
        if run.attempt:
            self.in_flight -= run.count
        run.count = 0

    def _reschedule(self, run: Run, due: int) -> None:
        run.due = due
        run.ready = False
        self._queue(run)

    def _queue(self, run: Run) -> None:
        if run.tail:
            heappush(self.parked, (run.tail, run.first, run))
        else:
            heappush(self.ready if run.ready else self.timers, (run.due, run.first, run))

    def _prune(self) -> None:
        """Keep the timers in proportion to the runs."""
        timers = self.timers
        while timers and not timers[0][2].count:
            heappop(timers)
        if len(timers) > TIMERS_SLACK + 2 * len(self.runs):
            timers[:] = _current(timers)
            heapify(timers)


def _current(timers: Iterable[tuple[int, int, Run]]) -> list[tuple[int, int, Run]]:
    return [
        (due, first, run)
        for due, first, run in timers
        if run.count and run.due == due and not run.ready and not run.tail
    ]
