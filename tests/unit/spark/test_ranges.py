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
    Limits,
    front,
    partition_count,
    partitions,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("rows", "size", "wanted"),
    [
        (0, 0, 1),
        (1, 100, 1),
        (50_000, SMALL_BYTES, 1),
        (50_000, SMALL_BYTES + 1, 4),
        (50_000, 4 * PARTITION_BYTES, 4),
        (50_000, 4 * PARTITION_BYTES + 1, 8),
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


@given(parts_of_log, st.integers(1, 60) | st.none(), st.integers(1, 60) | st.none())
def test_partitions_hold_every_filled_offset_once(
    parts: list[Part], partitions_min: int | None, records_max: int | None
) -> None:
    start, end = parts[0].start, parts[-1].end
    ranges = partitions(start, end, parts, partitions_min=partitions_min, records_max=records_max)
    offsets = [offset for each in ranges for offset in range(each.start, each.end)]
    assert offsets == [offset for part in parts if part.rows for offset in range(part.start, part.end)]
    assert all(each.start < each.end for each in ranges)
    if records_max is not None:
        assert all(each.end - each.start <= records_max for each in ranges)


@pytest.mark.parametrize(("wanted", "found"), [(None, 1), (5, 5), (7, 7), (26, 26), (99, 50)])
def test_a_small_range_is_cut_by_offsets(wanted: int | None, found: int) -> None:
    assert len(partitions(0, 50, [Part(0, 50, 50, 500)], partitions_min=wanted)) == found


@given(parts_of_log, st.integers(1, 300))
def test_the_front_is_the_longest_within_the_limit(parts: list[Part], limit: int) -> None:
    longest = max(count for count in range(len(parts) + 1) if sum(part.rows for part in parts[:count]) <= limit)
    assert front(parts, limit, lambda part: part.rows) == (parts[longest - 1].end if longest else None)


@given(parts_of_log, st.integers(1, 300) | st.none(), st.integers(1, 3000) | st.none(), st.booleans())
def test_a_batch_keeps_its_limits_and_goes_on(
    parts: list[Part], rows_max: int | None, bytes_max: int | None, single: bool
) -> None:
    while parts and not parts[0].rows:
        parts = parts[1:]
    if not parts:
        return
    rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    waiting = Pending(0, parts[-1].end, parts[0].start, 1, rows, size)
    end = Limits(rows_max, bytes_max).end(waiting, parts, single=single)
    assert waiting.first < end <= waiting.end
    rows = sum(max(0, min(part.end, end) - part.start) for part in parts if part.rows)
    if single and rows_max is not None:
        assert rows <= rows_max
    if end > parts[0].end and bytes_max is not None:
        assert 10 * rows <= bytes_max


def test_a_dense_topic_fills_its_batches() -> None:
    waiting = Pending(0, 100, 0, 1, 100, 1000)
    parts = [Part(start, start + 7, 7, 70) for start in range(0, 98, 7)] + [Part(98, 100, 2, 20)]
    assert Limits(20, None).end(waiting, parts, single=True) == 20
    assert Limits(20, None).end(waiting, parts, single=False) == 14
    assert Limits(None, 150).end(waiting, parts, single=True) == 14
    assert Limits(3, None).end(waiting, parts, single=False) == 7


def test_what_fits_is_not_split() -> None:
    waiting = Pending(0, 100, 0, 1, 100, 1000)
    assert Limits(None, None).pieces(waiting) == 1
    assert Limits(100, 1000).pieces(waiting) == 1
    assert Limits(10, None).pieces(waiting) == 22
    assert Limits(10, 10).pieces(waiting) == 202
    assert Limits(1, None).pieces(Pending(0, 1 << 40, 0, 1, 1 << 40, 1)) == PARTITIONS_MAX
