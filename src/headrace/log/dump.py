"""A log as rows for people and scripts: one for each part of each record, and one for each hole."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from headrace.log.disk import Disk
from headrace.log.format import LOST_PART, SEGMENT_HEADER_SIZE, is_lost
from headrace.log.hop import Found, Hole, Hopper
from headrace.log.recovery import segment_firsts
from headrace.log.segment import segment_path
from headrace.model.batch import Batch
from headrace.model.parts import iter_parts


class Row(NamedTuple):
    """`span` offsets from `offset` on; `kind` is batch, lost, damage, or the event's name in small letters."""

    segment: str
    position: int
    offset: int
    span: int
    kind: str
    topic: str
    timestamp_us: int
    detail: str


def dump(directory: Path, disk: Disk, *, offset: int = 0, to: int | None = None) -> Iterator[Row]:
    """The rows whose offsets are at or after `offset` and before `to`. Raises OSError when files cannot be read."""
    firsts = segment_firsts(disk.list(directory))
    for first, limit in zip_longest(firsts, firsts[1:]):
        if (limit is None or limit > offset) and (to is None or first < to):
            for row in _segment_rows(segment_path(directory, first), disk, first, limit):
                if row.offset + max(row.span, 1) > offset and (to is None or row.offset < to):
                    yield row


def _segment_rows(path: Path, disk: Disk, first: int, limit: int | None) -> Iterator[Row]:
    file = disk.open(path)
    try:
        hopper = Hopper(file, SEGMENT_HEADER_SIZE, file.size(), first, limit)
        told = 0
        for found in hopper:
            yield from (_hole_row(path.name, hole) for hole in hopper.holes[told:])
            told = len(hopper.holes)
            yield from _record_rows(path.name, found)
        yield from (_hole_row(path.name, hole) for hole in hopper.holes[told:])
    finally:
        file.close()


def _hole_row(segment: str, hole: Hole) -> Row:
    detail = f"{hole.end - hole.start} bytes that are no record"
    return Row(segment, hole.start, hole.first, hole.lost or 0, "damage", "", 0, detail)


def _record_rows(segment: str, found: Found) -> Iterator[Row]:
    if is_lost(found.buffer, found.payload):
        count = LOST_PART.unpack_from(found.buffer, found.payload)[2]
        yield Row(segment, found.position, found.first, count, "lost", "", 0, "")
        return
    for part in iter_parts(found.buffer, found.payload, found.payload_end, found.first):
        if isinstance(part, Batch):
            detail = f"qos {part.qos}, {part.values_size} bytes"
            yield Row(segment, found.position, part.base, part.count, "batch", part.topic, part.timestamp_us, detail)
        else:
            offset, event = part
            ranges = " ".join(f"{r.first}+{r.count}" for r in event.ranges)
            detail = " ".join(filter(None, (f"subscription {event.subscription}", ranges, event.reason)))
            yield Row(segment, found.position, offset, 1, event.event.name.lower(), "", event.timestamp_us, detail)
