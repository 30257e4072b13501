"""Filters that Spark offers to a scan, as bounds on topics, offsets and times. Pure.

A condition on `topic` or `offset` is taken over whole. One on `timestamp` narrows the range, and Spark looks at the
rows again: times in the log follow the broker's clock, which may have been set back between two starts. Bounds leave
room for as much as `CLOCK_SLACK_US`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan
from pyspark.sql.datasource import LessThanOrEqual as AtMost

from headrace.spark.source.values import OFFSET_MAX

TOPICS_MAX = 1000
CLOCK_SLACK_US = 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Rows that can matter: of these topics (None: all), from `start` to `end`, from `since_us` to `until_us`."""

    topics: frozenset[str] | None = None
    start: int = 0
    end: int = OFFSET_MAX
    since_us: int | None = None
    until_us: int | None = None

    def between(self, start: int, end: int, offset_at: Callable[[int], int]) -> tuple[int, int]:
        """The part of a range that the bounds leave; `offset_at` finds the first offset at or after a time.

        An offset so found has such a time, and the one before it has not. With room for the clock on both sides,
        every row that is wanted lies in between.
        """
        start, end = max(start, self.start), min(end, self.end)
        if self.since_us is not None and start < end:
            start = max(start, offset_at(self.since_us - CLOCK_SLACK_US))
        if self.until_us is not None and start < end:
            end = min(end, offset_at(self.until_us + CLOCK_SLACK_US))
        return start, max(start, end)


def push(filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """The bounds that the filters amount to, and the filters that Spark still has to look at."""
    bounds = Bounds()
    left: list[Filter] = []
    for each in filters:
        column = getattr(each, "attribute", None)
        value = getattr(each, "value", None)
        narrowed, whole = _NARROW.get(column, _nothing)(bounds, each, value) if column else (bounds, False)
        bounds = narrowed
        if not whole:
            left.append(each)
    return bounds, left


def choose(
    topics: tuple[str, ...] | None, pattern: str | None, wanted: frozenset[str] | None
) -> tuple[tuple[str, ...] | None, str | None]:
    """The selection by names or pattern, narrowed to the wanted topics."""
    if wanted is None:
        return topics, pattern
    if topics is not None:
        return tuple(name for name in topics if name in wanted), None
    return tuple(name for name in sorted(wanted) if pattern is None or re.fullmatch(pattern, name)), None


Narrowed = tuple[Bounds, bool]


def _nothing(bounds: Bounds, _each: Filter, _value: Any) -> Narrowed:
    return bounds, False


def _by_topic(bounds: Bounds, each: Filter, value: Any) -> Narrowed:
    if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
        names = frozenset((value,))
    elif isinstance(each, In) and len(value) <= TOPICS_MAX and all(isinstance(name, str) for name in value):
        names = frozenset(value)
    else:
        return bounds, False
    return replace(bounds, topics=names if bounds.topics is None else bounds.topics & names), True


def _by_offset(bounds: Bounds, each: Filter, value: Any) -> Narrowed:
    if not isinstance(value, int) or isinstance(value, bool):
        return bounds, False
    start, end = bounds.start, bounds.end
    if isinstance(each, EqualTo | EqualNullSafe):
        start, end = max(start, value), min(end, value + 1)
    elif isinstance(each, GreaterThan):
        start = max(start, value + 1)
    elif isinstance(each, GreaterThanOrEqual):
        start = max(start, value)
    elif isinstance(each, LessThan):
        end = min(end, value)
    elif isinstance(each, AtMost):
        end = min(end, value + 1)
    else:
        return bounds, False
    return replace(bounds, start=start, end=end), True


def _by_time(bounds: Bounds, each: Filter, value: Any) -> Narrowed:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return bounds, False
    elapsed = value - _EPOCH
    time_us = (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
    if isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        since_us = time_us if bounds.since_us is None else max(bounds.since_us, time_us)
        bounds = replace(bounds, since_us=since_us)
    if isinstance(each, EqualTo | EqualNullSafe | LessThan | AtMost):
        until_us = time_us + 1 if bounds.until_us is None else min(bounds.until_us, time_us + 1)
        bounds = replace(bounds, until_us=until_us)
    return bounds, False


_NARROW: dict[tuple[str, ...], Callable[[Bounds, Filter, Any], Narrowed]] = {
    ("topic",): _by_topic,
    ("offset",): _by_offset,
    ("timestamp",): _by_time,
}
