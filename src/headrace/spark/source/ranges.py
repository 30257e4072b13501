"""Splitting offset ranges: into partitions by size, and off the front by limits. Pure; ends are exclusive."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from headrace.feed.client import Part
from headrace.feed.whereabouts import Whereabouts
from headrace.spark.source.offsets import Pending

SMALL_BYTES = 8 << 20
"""What one task reads faster than Spark starts two."""

PARTITION_BYTES = 256 << 20
PARTITIONS_MAX = 10_000


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """What one task reads: the rows from `start` up to, not including, `end`, of the log at `place` if that is near."""

    start: int
    end: int
    place: Whereabouts | None = None


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

    One when they are few; else as many as there are cores, or twice, thrice as many, so that none exceeds
    `partition_bytes` and no core is left over; more when one would exceed `records_max` rows. Not fewer than
    `partitions_min`, which wins over everything but the rows there are.
    """
    if cores is None:
        cores = os.cpu_count() or 1
    wanted = 1 if size <= SMALL_BYTES else cores * -(-size // (cores * partition_bytes))
    if records_max is not None:
        wanted = max(wanted, -(-rows // records_max))
    wanted = max(wanted, partitions_min or 1)
    return max(1, min(wanted, rows, PARTITIONS_MAX))


def partitions(
    start: int, end: int, parts: Sequence[Part], *, partitions_min: int | None = None, records_max: int | None = None
) -> list[OffsetRange]:
    """The feed's parts as partitions: those with nothing in them left out, the others cut further where that is asked.

    Together they hold every row from `start` to `end` once. The feed splits between stretches of some size; cutting by
    offsets gives as many partitions as are wanted of a small range, too.
    """
    filled = [OffsetRange(max(start, part.start), min(end, part.end)) for part in parts if part.rows]
    each = -(-(partitions_min or 1) // max(1, len(filled)))
    ranges: list[OffsetRange] = []
    for whole in filled:
        offsets = whole.end - whole.start
        pieces = min(offsets, max(each, -(-offsets // (records_max or offsets))))
        cuts = [whole.start + offsets * number // pieces for number in range(pieces + 1)]
        ranges += [OffsetRange(first, last) for first, last in pairwise(cuts)]
    return ranges


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch may take; None is no limit."""

    rows_max: int | None
    bytes_max: int | None

    def pieces(self, waiting: Pending) -> int:
        """Into how many parts to split what is waiting so that a few of them make up a batch; 1 when all fits."""
        by_rows = waiting.rows / self.rows_max if self.rows_max else 0.0
        by_bytes = waiting.bytes / self.bytes_max if self.bytes_max else 0.0
        times = max(by_rows, by_bytes)
        return 1 if times <= 1 else min(PARTITIONS_MAX, int(times * 2) + 2)

    def end(self, waiting: Pending, parts: Sequence[Part], *, single: bool) -> int:
        """Where the batch ends, given the parts of what is waiting; never without progress.

        `single` when no offset has more than one row, so that a limit on rows can be kept to the row. Otherwise, and
        for bytes, a batch is whole parts, and one part when that alone exceeds the limit.
        """
        by_rows = by_bytes = waiting.end
        if self.rows_max is not None:
            by_rows = front(parts, self.rows_max, lambda part: part.rows) or (0 if single else parts[0].end)
            by_rows = max(by_rows, waiting.first + self.rows_max) if single else by_rows
        if self.bytes_max is not None:
            by_bytes = front(parts, self.bytes_max, lambda part: part.bytes) or parts[0].end
        return min(max(min(by_rows, by_bytes), waiting.first + 1), waiting.end)


def front(parts: Sequence[Part], limit: int, size: Callable[[Part], int]) -> int | None:
    """Where the longest run of parts from the front within the limit ends; None when the first exceeds it."""
    total = 0
    end = None
    for part in parts:
        total += size(part)
        if total > limit:
            break
        end = part.end
    return end
