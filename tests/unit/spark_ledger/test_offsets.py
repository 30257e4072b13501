"""Runs of offsets: gaps, neighbours, ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.ledger.offsets import STRETCH, BadRange, Run, clipped, holes, incomplete, joined, place

NOON_US = 1_772_366_400_000_000


def test_a_place_is_an_offset_or_a_time() -> None:
    asked: list[int] = []

    def offset_at(moment_us: int) -> int:
        asked.append(moment_us)
        return 42

    assert place("17", offset_at) == 17
    assert asked == []
    assert place("2026-03-01T12:00:00", offset_at) == 42
    assert place("2026-03-01T13:00:00+01:00", offset_at) == 42
    assert asked == [NOON_US, NOON_US]


@pytest.mark.parametrize("text", ["", "-1", "yesterday", "1e3", "١٢", "2026-13-01"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(BadRange, match="neither an offset nor a time"):
        place(text, lambda _: 0)


def test_a_range_is_what_the_log_can_tell_about() -> None:
    assert clipped(None, None, earliest=10, latest=20) == Run(10, 20)
    assert clipped(0, 15, earliest=10, latest=20) == Run(10, 15)
    assert clipped(12, 99, earliest=10, latest=20) == Run(12, 20)
    assert clipped(50, 99, earliest=10, latest=20) == Run(20, 20)
    assert clipped(0, 5, earliest=10, latest=20) == Run(10, 10)
    with pytest.raises(BadRange, match="before it begins"):
        clipped(5, 4, earliest=0, latest=20)


def test_full_stretches_miss_nothing() -> None:
    run = Run(5, 2 * STRETCH + 10)
    filled = {0: STRETCH - 5, 1: STRETCH, 2: 10}
    assert incomplete(run, filled) == ([], [])
    assert incomplete(run, filled | {1: STRETCH - 1}) == ([], [1])
    assert incomplete(run, {0: STRETCH - 5, 2: 9}) == ([Run(STRETCH, 2 * STRETCH)], [2])
    assert incomplete(Run(7, 7), {}) == ([], [])


def test_neighbours_become_one() -> None:
    assert joined([Run(5, 7), Run(0, 3), Run(7, 9), Run(3, 4)]) == [Run(0, 4), Run(5, 9)]


@given(st.sets(st.integers(0, 60)), st.integers(0, 60), st.integers(0, 60))
def test_what_is_there_and_the_holes_make_up_the_run(present: set[int], one: int, other: int) -> None:
    run = Run(min(one, other), max(one, other))
    inside = sorted(offset for offset in present if run.start <= offset < run.end)
    missing = [offset for hole in holes(inside, run) for offset in range(*hole)]
    assert sorted([*inside, *missing]) == list(range(*run))
