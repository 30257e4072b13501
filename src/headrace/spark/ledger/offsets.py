"""Runs of offsets: where a range is empty, what lies between, how a range is asked for. Pure; ends are exclusive."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from headrace.model.errors import HeadraceError

STRETCH = 4096
"""So many neighbouring offsets are compared by one number first, and one by one only where that differs."""


class Run(NamedTuple):
    """The offsets from `start` up to `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets they are."""
        return self.end - self.start


class BadRange(HeadraceError):
    """A range that makes no sense; the text says why."""


def place(text: str, offset_at: Callable[[int], int]) -> int:
    """The offset meant by a number, or by a time as in ISO 8601: the first one at or after it. Raises BadRange.

    A time without a zone is in UTC.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return offset_at(round(aware.timestamp() * 1_000_000))
    except (ValueError, OverflowError):
        raise BadRange(f"{text!r} is neither an offset nor a time such as 2026-03-01T12:00:00+01:00") from None


def clipped(start: int | None, end: int | None, *, earliest: int, latest: int) -> Run:
    """The part of the range that the log can tell about. Raises BadRange when the range ends before it begins."""
    if start is not None and end is not None and end < start:
        raise BadRange(f"the range ends at offset {end}, before it begins at {start}")
    first = earliest if start is None else min(max(start, earliest), latest)
    last = latest if end is None else min(max(end, first), latest)
    return Run(first, last)


def incomplete(run: Run, filled: Mapping[int, int]) -> tuple[list[Run], list[int]]:
    """What is missing, given how many offsets of each stretch there are: stretches that are empty, as runs, and the
    numbers of those that have holes."""
    empty: list[Run] = []
    holed: list[int] = []
    for number in range(run.start // STRETCH, -(-run.end // STRETCH)):
        part = stretch(number, run)
        found = filled.get(number, 0)
        if not found and part.size:
            empty.append(part)
        elif found < part.size:
            holed.append(number)
    return empty, holed


def stretch(number: int, run: Run) -> Run:
    """The offsets of a stretch that are in the run."""
    return Run(max(number * STRETCH, run.start), min((number + 1) * STRETCH, run.end))


def holes(present: Iterable[int], run: Run) -> Iterator[Run]:
    """The offsets of a run that are not among those present, which come in order."""
    at = run.start
    for offset in present:
        if offset > at:
            yield Run(at, offset)
        at = max(at, offset + 1)
    if at < run.end:
        yield Run(at, run.end)


def joined(runs: Iterable[Run]) -> list[Run]:
    """The runs in order, neighbours as one."""
    found: list[Run] = []
    for run in sorted(runs):
        if found and run.start <= found[-1].end:
            found[-1] = Run(found[-1].start, max(run.end, found[-1].end))
        else:
            found.append(run)
    return found
