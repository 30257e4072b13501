"""Splitting offset ranges: into partitions by size, and off the front by limits. Pure; ends are exclusive."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from headrace.feed.client import Part
from headrace.spark.source.offsets import Pending

SMALL_BYTES = 8 << 20
"""What one task reads faster than Spark starts two."""

PARTITION_BYTES = 128 << 20
PARTITIONS_MAX = 10_000


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """What one task reads: the rows from `start` up to, not including, `end`."""

    start: int
    end: int


def pending(start: int, end: int, parts: Sequence[Part]) -> Pending:
    """What the feed's split of this range says is waiting in it."""
    filled = [part for part in parts if part.rows]
    first = max(start, filled[0].start) if filled else end
    return Pending(start, end, first, sum(part.rows for part in filled), sum(part.bytes for part in filled))


def partition_count(
    rows: int,
    size: int,
    *,
    partitions_min: int | None = None,
    records_max: int | None = None,
    partition_bytes: int = PARTITION_BYTES,
    cores: int | None = None,
) -> int:
    """Into how many partitions so many rows and bytes go.

    One when they are few; else as many as there are cores, and more when one would exceed `partition_bytes` or
    `records_max` rows. Not fewer than `partitions_min`, which wins over everything but the rows there are.
    """
    if cores is None:
        cores = os.cpu_count() or 1
    wanted = 1 if size <= SMALL_BYTES else max(cores, -(-size // partition_bytes))
    if records_max is not None:
        wanted = max(wanted, -(-rows // records_max))
    wanted = max(wanted, partitions_min or 1)
    return max(1, min(wanted, rows, PARTITIONS_MAX))


def partitions(start: int, end: int, parts: Sequence[Part], *, records_max: int | None = None) -> list[OffsetRange]:
    """The feed's parts as partitions: ranges with nothing in them left out, none with more than `records_max` offsets.

    Together they hold every row from `start` to `end` once.
    """
    ranges: list[OffsetRange] = []
    for part in parts:
        if not part.rows:
            continue
        first, last = max(start, part.start), min(end, part.end)
        if records_max is None or part.rows <= records_max:
            ranges.append(OffsetRange(first, last))
            continue
        pieces = -(-part.rows // records_max)
        step = max(1, min(records_max, (last - first) // pieces))
        cuts = [*range(first, last, step), last]
        ranges += [OffsetRange(a, b) for a, b in pairwise(cuts) if a < b]
    return ranges


def front(parts: Sequence[Part], *, rows_max: int | None, bytes_max: int | None) -> int | None:
    """Where the longest run of parts from the front within both limits ends; None when the first exceeds one."""
    end = None
    rows = size = 0
    for part in parts:
        rows += part.rows
        size += part.bytes
        if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
            return end
        end = part.end
    return end


def pieces(waiting: Pending, *, rows_max: int | None, bytes_max: int | None) -> int:
    """Into how many parts to split what is waiting so that a few of them make up one micro-batch; 1 when all fits."""
    by_rows = waiting.rows / rows_max if rows_max else 0.0
    by_bytes = waiting.bytes / bytes_max if bytes_max else 0.0
    times = max(by_rows, by_bytes)
    return 1 if times <= 1 else min(PARTITIONS_MAX, int(times * 2) + 2)
