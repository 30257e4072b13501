"""Messages a cursor has passed and nobody has settled, as runs of neighbours. Knows neither time nor the log.

One run is made for each portion taken, so state grows with takes, not with messages. A run is split when its
messages come to differ: a part is settled, or a part is delivered again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter

from headrace.model.events import Range

Consumer = Hashable


class Run:
    """`count` neighbouring messages of one batch that share their fate.

    attempt   deliveries so far; 0 while only deferred
    due       when it is to be delivered (again) unless settled before
    awaited   whether its consumer may still ack or nack it; false once nacked, and while only deferred
    ready     whether `due` has come
    holder    the consumer to ask back from when it goes away; None when only the timer can
    tail      the offset the cursor has to reach first; 0 when it does not wait for the cursor
    """

    __slots__ = ("attempt", "awaited", "count", "due", "first", "holder", "offset", "ready", "tail")

    def __init__(
        self, first: int, count: int, offset: int, attempt: int, due: int, awaited: bool, holder: Consumer | None
    ) -> None:
        self.first = first
        self.count = count
        self.offset = offset
        self.attempt = attempt
        self.due = due
        self.awaited = awaited
        self.holder = holder
        self.ready = False
        self.tail = 0

    def as_range(self) -> Range:
        """The run as events name it."""
        return Range(self.offset, self.count, self.attempt)


_first_of = attrgetter("first")
_offset_of = attrgetter("offset")


class Runs:
    """Runs in order of delivery id, which is also the order of offset."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __getitem__(self, index: slice) -> list[Run]:
        return self._runs[index]

    @property
    def lowest_offset(self) -> int | None:
        """The offset of the oldest message, None when there is none."""
        return self._runs[0].offset if self._runs else None

    def append(self, run: Run) -> None:
        """Add a run behind all others."""
        self._runs.append(run)

    def all_awaited(self, ranges: Sequence[tuple[int, int]], attempt: int = 0, holder: Consumer | None = None) -> bool:
        """Whether all these delivery ids are awaited, at this attempt and from this holder if given, none twice."""
        if len(ranges) == 1:
            return self._awaited(*ranges[0], attempt, holder)
        end = 0
        for first, count in sorted(ranges):
            if first < end or not self._awaited(first, count, attempt, holder):
                return False
            end = first + count
        return True

    def _awaited(self, first: int, count: int, attempt: int, holder: Consumer | None) -> bool:
        if count < 1:
            return False
        runs = self._runs
        if not runs or first < runs[0].first:
            return False
        index = bisect_right(runs, first, key=_first_of) - 1
        reached = first
        end = first + count
        while reached < end:
            if index == len(runs):
                return False
            run = runs[index]
            if not run.awaited or attempt not in (0, run.attempt) or not run.first <= reached < run.first + run.count:
                return False
            if holder is not None and run.holder != holder:
                return False
            reached = run.first + run.count
            index += 1
        return True

    def split(self, at: int) -> tuple[int, Run | None]:
        """Make delivery id `at` the first of a run if it is inside one.

        Returns the index of the first run that begins at `at` or later, and the new run that begins there, if one
        was made: the old one keeps the front, and with it its place in every queue.
        """
        runs = self._runs
        if not runs or at <= runs[0].first:
            return 0, None
        index = bisect_left(runs, at, key=_first_of)
        run = runs[index - 1]
        size = at - run.first
        if size >= run.count:
            return index, None
        rest = Run(at, run.count - size, run.offset + size, run.attempt, run.due, run.awaited, run.holder)
        rest.ready = run.ready
        rest.tail = run.tail
        run.count = size
        runs.insert(index, rest)
        return index, rest

    def remove(self, low: int, high: int) -> list[Run]:
        """Take out the runs of these indices."""
        gone = self._runs[low:high]
        del self._runs[low:high]
        return gone

    def discard(self, run: Run) -> None:
        """Take out one run."""
        del self._runs[bisect_left(self._runs, run.first, key=_first_of)]

    def ids_at(self, offset: int, count: int) -> list[tuple[int, int]]:
        """The delivery ids, as (first, count), of those of these messages that are in a run."""
        runs = self._runs
        end = offset + count
        found = []
        for index in range(max(bisect_right(runs, offset, key=_offset_of) - 1, 0), len(runs)):
            run = runs[index]
            if run.offset >= end:
                break
            low = max(offset, run.offset)
            high = min(end, run.offset + run.count)
            if low < high:
                found.append((run.first + low - run.offset, high - low))
        return found

    def at_offset(self, offset: int) -> Run | None:
        """The run that holds the message, if any does."""
        index = bisect_right(self._runs, offset, key=_offset_of) - 1
        if index >= 0 and offset < self._runs[index].offset + self._runs[index].count:
            return self._runs[index]
        return None
