"""Splitting ranges: every offset once, by size and by limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed.client import Part
from headrace.spark.source.offsets import Pending
from headrace.spark.source.ranges import (
    PARTITION_BYTES,
    PARTITIONS_MAX,
    SMALL_BYTES,
    front,
    partition_count,
    partitions,
    pending,
    pieces,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("rows", "size", "wanted"),
    [
        (0, 0, 1),
        (1, 100, 1),
        (50_000, SMALL_BYTES, 1),
        (50_000, SMALL_BYTES + 1, 4),
        (50_000, 4 * PARTITION_BYTES + 1, 5),
        (3, 100 * MIB, 3),
        (1 << 40, 1 << 60, PARTITIONS_MAX),
    ],
)
def test_partitions_by_size(rows: int, size: int, wanted: int) -> None:
    assert partition_count(rows, size, cores=4) == wanted


def test_partitions_by_the_users_word() -> None:
    assert partition_count(1000, 10, partitions_min=7, cores=4) == 7
    assert partition_count(3, 10, partitions_min=7, cores=4) == 3
    assert partition_count(1000, 10, records_max=300, cores=4) == 4


parts_of_log = st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=20).map(
    lambda pieces: [
        Part(
            start := 100 + sum(size for size, _ in pieces[:index]),
            start + size,
            size if filled else 0,
            10 * size if filled else 0,
        )
        for index, (size, filled) in enumerate(pieces)
    ]
)


@given(parts_of_log, st.integers(1, 60) | st.none())
def test_partitions_hold_every_filled_offset_once(parts: list[Part], records_max: int | None) -> None:
    start, end = parts[0].start, parts[-1].end
    ranges = partitions(start, end, parts, records_max=records_max)
    offsets = [offset for each in ranges for offset in range(each.start, each.end)]
    assert offsets == [offset for part in parts if part.rows for offset in range(part.start, part.end)]
    assert all(each.start < each.end for each in ranges)
    if records_max is not None:
        assert all(each.end - each.start <= records_max for each in ranges)


@given(parts_of_log, st.integers(1, 300) | st.none(), st.integers(1, 3000) | st.none())
def test_the_front_is_the_longest_within_the_limits(
    parts: list[Part], rows_max: int | None, bytes_max: int | None
) -> None:
    def fits(taken: list[Part]) -> bool:
        rows, size = sum(part.rows for part in taken), sum(part.bytes for part in taken)
        return (rows_max is None or rows <= rows_max) and (bytes_max is None or size <= bytes_max)

    end = front(parts, rows_max=rows_max, bytes_max=bytes_max)
    longest = max(count for count in range(len(parts) + 1) if fits(parts[:count]))
    assert end == (parts[longest - 1].end if longest else None)


def test_what_is_waiting() -> None:
    parts = [Part(0, 10, 0, 0), Part(10, 20, 4, 40), Part(20, 30, 2, 20)]
    assert pending(0, 30, parts) == Pending(0, 30, 10, 6, 60)
    assert pending(12, 30, parts).first == 12
    assert pending(0, 30, []) == Pending(0, 30, 30, 0, 0)


def test_what_fits_is_not_split() -> None:
    waiting = Pending(0, 100, 0, 100, 1000)
    assert pieces(waiting, rows_max=None, bytes_max=None) == 1
    assert pieces(waiting, rows_max=100, bytes_max=1000) == 1
    assert pieces(waiting, rows_max=10, bytes_max=None) == 22
    assert pieces(waiting, rows_max=10, bytes_max=10) == 202
    assert pieces(Pending(0, 1 << 40, 0, 1 << 40, 1), rows_max=1, bytes_max=None) == PARTITIONS_MAX
