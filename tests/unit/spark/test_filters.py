"""Filters as bounds."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.spark.source.filters import TOPICS_MAX, Bounds, choose, push

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = 1767268800_000_000


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([EqualTo(("topic",), "a")], Bounds(topics=frozenset("a"))),
        ([In(("topic",), ("a", "b")), EqualTo(("topic",), "b")], Bounds(topics=frozenset("b"))),
        ([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], Bounds(topics=frozenset())),
        ([GreaterThan(("offset",), 5), LessThan(("offset",), 9)], Bounds(start=6, end=9)),
        ([GreaterThanOrEqual(("offset",), 5), LessThanOrEqual(("offset",), 9)], Bounds(start=5, end=10)),
        ([EqualTo(("offset",), 5)], Bounds(start=5, end=6)),
    ],
)
def test_topics_and_offsets_are_taken_over_whole(filters: list[Filter], bounds: Bounds) -> None:
    assert push(filters) == (bounds, [])


@pytest.mark.parametrize(
    "each",
    [
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "a")),
        StringStartsWith(("topic",), "a"),
        In(("topic",), ("a", None)),
        In(("topic",), tuple(map(str, range(TOPICS_MAX + 1)))),
        EqualTo(("topic",), None),
        EqualTo(("value",), b"a"),
        EqualTo(("headers", "key"), "a"),
        In(("offset",), (1, 2)),
        In(("timestamp",), (NOON,)),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),
    ],
)
def test_what_cannot_be_taken_over_is_left_to_spark(each: Filter) -> None:
    assert push([each]) == (Bounds(), [each])


def test_times_narrow_and_spark_checks_again() -> None:
    later = NOON.astimezone(timezone(timedelta(hours=2))) + timedelta(microseconds=1)
    filters: list[Filter] = [
        GreaterThanOrEqual(("timestamp",), NOON),
        GreaterThan(("timestamp",), later),
        LessThan(("timestamp",), NOON + timedelta(seconds=2)),
        LessThanOrEqual(("timestamp",), NOON + timedelta(seconds=1)),
    ]
    assert push(filters) == (Bounds(since_us=NOON_US + 1, until_us=NOON_US + 1_000_001), filters)
    same: list[Filter] = [EqualTo(("timestamp",), NOON)]
    assert push(same) == (Bounds(since_us=NOON_US, until_us=NOON_US + 1), same)
    before_1970: list[Filter] = [GreaterThan(("timestamp",), datetime(1960, 1, 1, tzinfo=UTC))]
    assert push(before_1970)[0].since_us == -315_619_200_000_000


def test_bounds_narrow_a_range() -> None:
    assert Bounds(start=5, end=9).between(0, 100, offset_at=int) == (5, 9)
    assert Bounds(start=50, end=9).between(0, 100, offset_at=int) == (50, 50)
    assert Bounds(start=5).between(7, 6, offset_at=int) == (7, 7)


HOUR = 3_600_000_000
DAYS = st.lists(st.integers(0, 10 * HOUR), min_size=1, max_size=30).map(lambda steps: list(accumulate(steps)))


@given(
    DAYS, st.integers(0, 29), st.integers(0, HOUR), st.integers(0, 300 * HOUR), st.integers(0, 300 * HOUR), st.data()
)
def test_no_wanted_row_is_left_out_though_the_clock_was_set_back(
    times: list[int], step_at: int, step_us: int, since: int, until: int, data: st.DataObject
) -> None:
    times = [time - step_us if number >= step_at else time for number, time in enumerate(times)]

    def offset_at(time_us: int) -> int:
        """Any place that has this time or a later one and an earlier one before it."""
        found = [n for n in range(len(times) + 1) if (n == len(times) or times[n] >= time_us)]
        pairs = [n for n in found if n == 0 or times[n - 1] < time_us]
        return data.draw(st.sampled_from(pairs or [len(times)]))

    start, end = Bounds(since_us=since, until_us=until).between(0, len(times), offset_at)
    assert {n for n, time in enumerate(times) if since <= time < until} <= set(range(start, end))


def test_wanted_topics_narrow_the_selection() -> None:
    wanted = frozenset({"a", "b", "c1"})
    assert choose(("a", "x"), None, wanted) == (("a",), None)
    assert choose(None, "c.|a", wanted) == (("a", "c1"), None)
    assert choose(None, None, wanted) == (("a", "b", "c1"), None)
    assert choose(("a",), None, None) == (("a",), None)
    assert choose(("x",), None, wanted) == ((), None)
