"""The sidecar of a sealed segment: its topics' extents and its sparse index, each part with its checksum.

Layout: magic, u32 directory size, u32 crc32 of the directory, the directory in MessagePack, then the arrays one after
another. Everything in it can be rebuilt from the segment, so whatever fails its checks is simply not used. The same
bytes go into snapshots to spare recovery the active segment.
"""

import struct
from array import array
from collections.abc import Callable

import msgspec

from headrace.log.extents import Extents, SegmentMap
from headrace.log.format import crc32

_MAGIC = b"HEADRIDX"
_HEAD = struct.Struct("<8sII")
INDEX_HEAD_SIZE = _HEAD.size

Read = Callable[[int, int], bytes]
"""Given a size and a position, the bytes there."""


class BadIndex(ValueError):
    """An index that fails its checks; rebuild it."""


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Where the arrays of one topic begin after the directory, how many entries they have, their checksum."""

    at: int
    entries: int
    crc: int


class TopicEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a segment holds of one topic: `messages` of them from offset `first`, all before `end`."""

    first: int
    end: int
    messages: int
    block: Block


class Directory(msgspec.Struct, frozen=True):
    """What an index says without its arrays. `segment` is the identity of the segment header it was made from."""

    segment: int
    first: int
    end: int
    size: int
    sparse: Block
    topics: dict[str, TopicEntry]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Directory).decode


def encode_index(segment_map: SegmentMap, *, segment: int, first: int, end: int, size: int) -> bytes:
    """The whole file."""
    blocks: list[bytes] = []
    at = 0

    def _add(entries: int, *columns: "array[int]") -> Block:
        nonlocal at
        data = b"".join(column.tobytes() for column in columns)
        block = Block(at, entries, crc32(data))
        blocks.append(data)
        at += len(data)
        return block

    sparse = _add(len(segment_map.ids), segment_map.ids, segment_map.positions)
    topics = {
        name: TopicEntry(e.bases[0], e.end, e.messages, _add(len(e), e.positions, e.bases, e.sizes, e.counts))
        for name, e in segment_map.topics.items()
        if len(e)
    }
    directory = _encode(Directory(segment=segment, first=first, end=end, size=size, sparse=sparse, topics=topics))
    return b"".join((_HEAD.pack(_MAGIC, len(directory), crc32(directory)), directory, *blocks))


def read_directory(read: Read) -> tuple[Directory, int]:
    """The directory, and where the arrays begin.

    Raises BadIndex when it fails its checks.
    """
    head = read(_HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise BadIndex("shorter than an index")
    magic, size, crc = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise BadIndex("not an index")
    data = read(size, _HEAD.size)
    if len(data) != size or crc32(data) != crc:
        raise BadIndex("directory fails its checksum")
    try:
        return _decode(data), _HEAD.size + size
    except msgspec.MsgspecError as error:
        raise BadIndex(str(error)) from error


def read_extents(read: Read, start: int, entry: TopicEntry) -> Extents:
    """The extents of one topic, its arrays beginning `start` bytes into the file.

    Raises BadIndex when they fail their checks.
    """
    positions, bases, sizes, counts = _read_columns(read, start, entry.block, "QQII")
    return Extents(positions, sizes, bases, counts, entry.end, entry.messages)


def read_sparse(read: Read, start: int, directory: Directory) -> "tuple[array[int], array[int]]":
    """The sparse index: offsets and the positions of the records that begin with them.

    Raises BadIndex when it fails its checks.
    """
    ids, positions = _read_columns(read, start, directory.sparse, "QQ")
    return ids, positions


def read_map(data: bytes) -> tuple[Directory, SegmentMap]:
    """Everything in an index at once.

    Raises BadIndex when any of it fails its checks.
    """

    def _read(size: int, position: int) -> bytes:
        return data[position : position + size]

    directory, start = read_directory(_read)
    topics = {name: read_extents(_read, start, entry) for name, entry in directory.topics.items()}
    return directory, SegmentMap(topics, *read_sparse(_read, start, directory))


def _read_columns(read: Read, start: int, block: Block, types: str) -> "list[array[int]]":
    columns = [array(kind) for kind in types]
    size = block.entries * sum(column.itemsize for column in columns)
    data = read(size, start + block.at)
    if len(data) != size or crc32(data) != block.crc:
        raise BadIndex("arrays fail their checksum")
    at = 0
    for column in columns:
        column.frombytes(data[at : at + block.entries * column.itemsize])
        at += block.entries * column.itemsize
    return columns
