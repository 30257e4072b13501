"""Filters as bounds."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
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
        LessThan(("timestamp",), NOON),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),
    ],
)
def test_what_cannot_be_taken_over_is_left_to_spark(each: Filter) -> None:
    assert push([each]) == (Bounds(), [each])


def test_a_time_moves_the_beginning_and_spark_checks_again() -> None:
    later = NOON.astimezone(timezone(timedelta(hours=2))) + timedelta(microseconds=1)
    filters: list[Filter] = [GreaterThanOrEqual(("timestamp",), NOON), GreaterThan(("timestamp",), later)]
    assert push(filters) == (Bounds(since_us=NOON_US + 1), filters)
    before_1970: list[Filter] = [GreaterThan(("timestamp",), datetime(1960, 1, 1, tzinfo=UTC))]
    assert push(before_1970)[0].since_us == 0


def test_wanted_topics_narrow_the_selection() -> None:
    wanted = frozenset({"a", "b", "c1"})
    assert choose(("a", "x"), None, wanted) == (("a",), None)
    assert choose(None, "c.|a", wanted) == (("a", "c1"), None)
    assert choose(None, None, wanted) == (("a", "b", "c1"), None)
    assert choose(("a",), None, None) == (("a",), None)
    assert choose(("x",), None, wanted) == ((), None)
