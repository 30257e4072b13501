"""One segment file as the rest of the log sees it: its offsets, its valid bytes, and where its topics are.

The active segment has its map in memory; a sealed one has the directory of its sidecar and fetches arrays on demand.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.log.disk import Disk, File
from headrace.log.extents import Extents, SegmentMap
from headrace.log.format import (
    INDEX_SUFFIX,
    SEGMENT_HEADER_SIZE,
    SEGMENT_SUFFIX,
    SegmentHeader,
    decode_segment_header,
    numbered_name,
)
from headrace.log.hop import Hopper
from headrace.log.index import BadIndex, Directory, encode_index, read_directory
from headrace.model.batch import HEADER_SIZE, PART_BATCH
from headrace.model.events import PART_EVENT

_PART_START = struct.Struct("<IB3xIH")
"""Size, kind, and of a batch how many messages and how long a topic."""


@dataclass(slots=True, eq=False)
class Segment:
    """Offsets `first` to `end` in the first `size` bytes of the file at `path`."""

    path: Path
    header: SegmentHeader
    end: int
    size: int
    map: SegmentMap | None = None
    directory: Directory | None = None

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self.header.first

    @property
    def index_path(self) -> Path:
        """Where the sidecar is or will be."""
        return self.path.with_suffix(INDEX_SUFFIX)

    def encode_index(self) -> bytes:
        """The sidecar's bytes, from the map in memory."""
        assert self.map is not None
        return encode_index(self.map, segment=self.header.identity, first=self.first, end=self.end, size=self.size)


def segment_path(directory: Path, first: int) -> Path:
    """Where the segment that begins with this offset lives."""
    return directory / numbered_name(first, SEGMENT_SUFFIX)


def read_segment_header(file: File) -> SegmentHeader:
    """The header of an open segment; raises BadHeader or NewerFormat."""
    return decode_segment_header(file.pread(SEGMENT_HEADER_SIZE, 0))


class Tally(NamedTuple):
    """What a walk met; `lost` are offsets that an earlier repair gave up."""

    records: int
    messages: int
    events: int
    lost: int


def map_records(hopper: Hopper, segment_map: SegmentMap) -> Tally:
    """Walk to the end, noting in the map where everything is. Costs about a microsecond and a half for a record."""
    known: dict[bytes, Extents] = {}
    records = messages = events = lost = 0
    for found in hopper:
        position, size, base, span, buffer, start, end = found
        records += 1
        segment_map.note_record(position, base)
        while start < end:
            part_size, kind, count, topic_size = _PART_START.unpack_from(buffer, start)
            if kind == PART_BATCH:
                name = buffer[start + HEADER_SIZE : start + HEADER_SIZE + topic_size]
                extents = known.get(name)
                if extents is None:
                    extents = known[name] = segment_map.extents_of(name.decode(errors="replace"))
                extents.add(position, size, base, count)
                base += count
                messages += count
            elif kind == PART_EVENT:
                base += 1
                events += 1
            else:
                lost += span
            start += part_size
    return Tally(records, messages, events, lost)


def load_directory(segment: Segment, disk: Disk) -> Directory:
    """The directory of the segment's sidecar.

    Raises BadIndex when it is damaged or made from other bytes, OSError when it cannot be read.
    """
    file = disk.open(segment.index_path)
    try:
        directory, _ = read_directory(file.pread)
    finally:
        file.close()
    if directory.segment != segment.header.identity or directory.first != segment.first:
        raise BadIndex("made from another segment")
    return directory
