"""Finds places in a followed log: the offset of a time, the shares of a range, the neighbourhood of an offset."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from headrace.kernels.records import BATCHES, EVENTS, OFFSET, TIMESTAMP, WIDTH
from headrace.log.disk import File
from headrace.log.followed import Followed, TopicCodes
from headrace.log.follower import Choice, Follower
from headrace.log.format import LOST_PART, is_lost, part_timestamp
from headrace.log.walk import Gone
from headrace.model.batch import HEADER_SIZE
from headrace.model.parts import RECORD_HEADER_SIZE

_BLOCK_MARKS = 16


class Cell(NamedTuple):
    """The offsets from `first` up to `end`, and about how many bytes and rows of what was asked for are in them."""

    first: int
    end: int
    bytes: int
    rows: int


def offset_at(follower: Follower, timestamp_us: int) -> int:
    """The first offset whose batch or event has this time or a later one; the newest offset when there is none.

    Found by bisection, so it is exact as long as the times in the log do not go back. Where the broker's clock was set
    back, the offset found has such a time and the one before it has not, but there may be an earlier pair like that.
    """
    latest = follower.committed().latest
    segments = follower.segments()
    number = bisect_right(segments, timestamp_us - 1, key=lambda each: each.segment.header.created_us) - 1
    for followed in segments[max(number, 0) :]:
        found = _offset_in(follower, followed, timestamp_us, latest)
        if found is not None:
            return found
    return latest


def _offset_in(follower: Follower, followed: Followed, timestamp_us: int, latest: int) -> int | None:
    ids, positions = follower.marks(followed)
    file = follower.open(followed)
    try:
        number = bisect_right(positions, timestamp_us - 1, key=lambda position: _timestamp(file, position)) - 1
    finally:
        file.close()
    start = ids[number] if number >= 0 else followed.first
    end = latest if followed.limit is None else followed.limit
    for found in follower.walk(start, end, Choice(BATCHES | EVENTS, TopicCodes())):
        if isinstance(found, Gone):
            continue
        table = found.table
        for row in range(0, WIDTH * found.parts, WIDTH):
            if table[row + TIMESTAMP] >= timestamp_us:
                return table[row + OFFSET]
    return None


def _timestamp(file: File, position: int) -> int:
    """When the record at a position was made; of offsets given up, that of the record behind them."""
    while True:
        data = file.pread(RECORD_HEADER_SIZE + HEADER_SIZE, position)
        if len(data) < RECORD_HEADER_SIZE + LOST_PART.size:
            return 0
        if not is_lost(data, RECORD_HEADER_SIZE):
            return part_timestamp(data, RECORD_HEADER_SIZE)
        position += RECORD_HEADER_SIZE + LOST_PART.size


def cells(follower: Follower, start: int, end: int, wants: Callable[[str], bool] | None) -> list[Cell]:
    """The stretches of about 64 KiB in these offsets, in order; of sealed segments those that hold a wanted topic."""
    found: list[Cell] = []
    for followed in follower.segments():
        limit = end if followed.limit is None else min(end, followed.limit)
        if max(start, followed.first) >= limit:
            continue
        directory = followed.segment.directory
        if wants is None or directory is None:
            found += _all_cells(follower, followed, start, limit)
        else:
            names = list(filter(wants, directory.topics))
            found += sorted(cell for name in names for cell in _topic_cells(follower, followed, name, start, limit))
    return found


def _all_cells(follower: Follower, followed: Followed, start: int, limit: int) -> list[Cell]:
    ids, positions = follower.marks(followed)
    ends = [(first, position) for first, position in zip(ids, positions, strict=True) if first < limit]
    ends.append((limit, positions[len(ends)] if len(ends) < len(positions) else followed.segment.size))
    return [
        Cell(max(first, start), after, stop - position, after - max(first, start))
        for (first, position), (after, stop) in pairwise(ends)
        if after > start
    ]


def _topic_cells(follower: Follower, followed: Followed, topic: str, start: int, limit: int) -> list[Cell]:
    extents = follower.extents(followed, topic)
    found = []
    for number in range(extents.first_holding(start), len(extents)):
        first = extents.bases[number]
        after = extents.bases[number + 1] if number + 1 < len(extents) else extents.end
        if first < limit and after > start:
            found.append(Cell(max(first, start), min(after, limit), extents.sizes[number], extents.counts[number]))
    return found


def block(follower: Follower, offset: int) -> tuple[int, int]:
    """The stretch of about a MiB around an offset that is there: its first offset, and the one behind it."""
    latest = follower.committed().latest
    followed = follower.holding(offset)
    if followed is None or followed.first > offset:
        return offset, offset + 1
    follower.segments()
    ids, _ = follower.marks(followed)
    number = max(0, bisect_right(ids, offset) - 1) // _BLOCK_MARKS * _BLOCK_MARKS
    after = number + _BLOCK_MARKS
    end = latest if followed.limit is None else followed.limit
    return (ids[number] if number else followed.first), (ids[after] if after < len(ids) else end)
