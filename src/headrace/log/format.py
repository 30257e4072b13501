"""The bytes of a segment file: its header, its records, its names. Knows no disk and keeps no state.

Everything is little-endian; docs/log-format.md is this page in prose.
"""

import importlib
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

from headrace.model.batch import HEADER_SIZE, PART_BATCH, Buffer
from headrace.model.events import EVENT_HEADER, PART_EVENT
from headrace.model.mending import adds_up
from headrace.model.parts import PART_HEAD, RECORD_HEADER_SIZE


def _fastest_crc32() -> Callable[..., int]:
    try:
        found: Callable[..., int] = importlib.import_module("isal.isal_zlib").crc32
    except ImportError:
        found = zlib.crc32
    return found


crc32 = _fastest_crc32()

SEGMENT_MAGIC = b"HEADRACE"
SEGMENT_VERSION = 2
SEGMENT_VERSION_NAMELESS = 1
"""Segments of before there was a catalog: their headers do not say which log they belong to."""
SEGMENT_HEADER_SIZE = 64
LOG_ID_SIZE = 16

_START = struct.Struct("<8sIIQq")

SEGMENT_SUFFIX = ".seg"
INDEX_SUFFIX = ".idx"
SNAPSHOT_SUFFIX = ".snap"
CATALOG_SUFFIX = ".catalog"
TEMPORARY_SUFFIX = ".tmp"
LOCK_NAME = "lock"

SYNCED_MARK = 1
"""In a record's length: all bytes of the segment before this record were synced before it was written."""

RECORD_SIZE_MAX = 1 << 30

PART_LOST = 3
LOST_PART = struct.Struct("<IB3xQ")
"""Stands where repair found damage: size, kind, how many offsets were lost."""

_ID_AND_SIZE = struct.Struct("<QI")
_CHECKED_SIZE = _ID_AND_SIZE.size
_COUNT = struct.Struct("<I")
_BATCH_START = struct.Struct("<IB3xIH")
_TIMESTAMP = struct.Struct("<q")
_ANY_SIZE = (_START.size, _START.size + LOG_ID_SIZE)
_SIZES = {SEGMENT_VERSION_NAMELESS: _ANY_SIZE[:1], SEGMENT_VERSION: _ANY_SIZE[1:]}

assert RECORD_HEADER_SIZE == _CHECKED_SIZE + 4


class SegmentHeader(NamedTuple):
    """What a segment says about itself; `generation` grows by one each time repair rewrites it.

    `log` is the id of the log it belongs to, empty in segments of format version 1.
    """

    first: int
    created_us: int
    generation: int = 0
    log: bytes = b""

    def encode(self) -> bytes:
        """The 64 bytes at the head of the file."""
        fields = self._packed()
        return (fields + _COUNT.pack(crc32(fields))).ljust(SEGMENT_HEADER_SIZE, b"\0")

    @property
    def identity(self) -> int:
        """The header's checksum: tells this writing of the segment from others, for what is derived from it."""
        return crc32(self._packed())

    def _packed(self) -> bytes:
        version = SEGMENT_VERSION if self.log else SEGMENT_VERSION_NAMELESS
        start = _START.pack(SEGMENT_MAGIC, version, self.generation, self.first, self.created_us)
        return start + self.log


class BadHeader(ValueError):
    """A segment header that fails its checks."""


class NewerFormat(ValueError):
    """An intact header written by a later version than this one."""


def decode_segment_header(data: bytes) -> SegmentHeader:
    """The header at the start of `data`.

    Raises BadHeader when it fails its checks, NewerFormat when it is intact and not for us: a later version has its
    checksum where one of the known versions has it.
    """
    if len(data) < SEGMENT_HEADER_SIZE:
        raise BadHeader("shorter than a segment header")
    magic, version, generation, first, created_us = _START.unpack_from(data)
    size = next((size for size in _SIZES.get(version, _ANY_SIZE) if _checked(data, size)), None)
    if magic != SEGMENT_MAGIC or size is None:
        raise BadHeader("segment header fails its checksum")
    if version not in _SIZES:
        raise NewerFormat(f"format version {version}, this program reads {SEGMENT_VERSION}")
    if any(data[size + _COUNT.size : SEGMENT_HEADER_SIZE]):
        raise BadHeader("segment header is not padded with zeros")
    return SegmentHeader(first, created_us, generation, bytes(data[_START.size : size]))


def _checked(data: bytes, size: int) -> bool:
    """Whether these bytes are followed by their checksum."""
    return bool(_COUNT.unpack_from(data, size)[0] == crc32(data[:size]))


def stamp(record: bytearray, first: int, *, mark: int = 0) -> None:
    """Fill in the header of a record whose payload follows RECORD_HEADER_SIZE free bytes."""
    size = len(record) - RECORD_HEADER_SIZE
    _ID_AND_SIZE.pack_into(record, 0, first, size | mark)
    view = memoryview(record)
    crc = crc32(view[RECORD_HEADER_SIZE:], crc32(view[:_CHECKED_SIZE]))
    _COUNT.pack_into(record, _CHECKED_SIZE, crc)


def record_intact(view: memoryview, at: int, end: int, crc: int) -> bool:
    """Whether the record occupying `view[at:end]` has this checksum."""
    return crc32(view[at + RECORD_HEADER_SIZE : end], crc32(view[at : at + _CHECKED_SIZE])) == crc


def record_span(buffer: Buffer, start: int, end: int) -> int:
    """How many offsets the parts in `buffer[start:end]` take; 0 when they do not add up."""
    if end - start >= HEADER_SIZE:
        size, kind, count, topic_size = _BATCH_START.unpack_from(buffer, start)
        if size == end - start and kind == PART_BATCH:
            return int(count) if adds_up(size, count, topic_size) else 0
    span = 0
    while end - start >= PART_HEAD.size:
        size, kind = PART_HEAD.unpack_from(buffer, start)
        if size % 8 or not PART_HEAD.size < size <= end - start:
            return 0
        if kind == PART_BATCH and size >= HEADER_SIZE:
            _, _, count, topic_size = _BATCH_START.unpack_from(buffer, start)
            if not adds_up(size, count, topic_size):
                return 0
            span += count
        elif kind == PART_EVENT and size >= EVENT_HEADER.size:
            span += 1
        elif kind == PART_LOST and size == LOST_PART.size:
            span += LOST_PART.unpack_from(buffer, start)[2]
        else:
            return 0
        start += size
    return span if start == end else 0


def part_timestamp(buffer: Buffer, start: int) -> int:
    """When the batch or event whose part begins at `start` was made, in microseconds."""
    return int(_TIMESTAMP.unpack_from(buffer, start + (16 if buffer[start + 4] == PART_BATCH else 8))[0])


def is_lost(buffer: Buffer, start: int) -> bool:
    """Whether the part at `start` stands for lost offsets."""
    return buffer[start + 4] == PART_LOST


def lost_record(first: int, count: int) -> bytearray:
    """A record that takes the place of `count` lost offsets."""
    record = bytearray(RECORD_HEADER_SIZE) + LOST_PART.pack(LOST_PART.size, PART_LOST, count)
    stamp(record, first)
    return record


def numbered_name(number: int, suffix: str) -> str:
    """The name of the file that begins at, or covers, this offset."""
    return f"{number:020}{suffix}"


def name_number(name: str, suffix: str) -> int | None:
    """The offset in a file's name, None when the name is not of this kind."""
    stem = name.removesuffix(suffix)
    return int(stem) if len(stem) == 20 and stem.isdecimal() and name.endswith(suffix) else None
