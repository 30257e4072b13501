"""BlipMQ messages by the run: PUBLISH frames into batches, stored batches into PUBLISH frames.

The C types of every variable are in blipmq.pxd. Lines under `cython.compiled` move bytes with pointers; their `else`
does the same with the struct module, which is what is fast when interpreted. Interpreted, `bytes` are read fastest.

Nothing here refuses anything: a scan stops before the first frame that is not plainly valid.
"""

import struct
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.strides import alike, check_order, gather, interleave, numbered, words
from headrace.model.batch import HEADER, HEADER_SIZE, PART_BATCH, Buffer, Protocol
from headrace.model.errors import BrokerError
from headrace.model.names import NAME_SIZE_MAX, check_topic
from headrace.model.parts import DISORDER, RECORD_HEADER_SIZE, MalformedPart
from headrace.model.requests import Publish

if cython.compiled:
    from cython.cimports.cpython.bytearray import (  # type: ignore[import-untyped]
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
    )
    from cython.cimports.cpython.bytes import (  # type: ignore[import-untyped]
        PyBytes_AS_STRING,
        PyBytes_FromStringAndSize,
    )
    from cython.cimports.libc.string import memcmp, memcpy, memset  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled

PUBLISH = 3
_PART_AT = RECORD_HEADER_SIZE
_TOPIC_AT = RECORD_HEADER_SIZE + HEADER_SIZE
_NO_GROUP = -1


class Group:
    """The publishes of one scan that share QoS and topic; they become one batch.

    `prefix` is what their payloads begin with; `follower` the group of the frame that came after the last run.
    """

    tag_out: Pointer
    end_out: Pointer
    value_out: Pointer
    value_end: int

    def __init__(self, topic: str, prefix: bytes) -> None:
        self.topic = topic
        self.prefix = prefix
        self.prefix_size = len(prefix)
        self.follower = _NO_GROUP
        self.superseded = False
        self.count = 0
        self.values_size = 0
        self.tags: list[int] = []
        self.sizes: list[int] = []
        self.values: list[Buffer] = []


@lru_cache(maxsize=4096)
def topic_name(raw: bytes) -> str:
    """The topic these bytes name, or an empty string when no client may use it."""
    try:
        return check_topic(raw.decode())
    except (UnicodeDecodeError, BrokerError):
        return ""


def scan_publishes(buf: Buffer, pos: int, end: int, timestamp_us: int) -> tuple[int, list[Publish]]:
    """Turn the run of whole, valid PUBLISH frames from `pos` on into batches.

    Returns the position of the first byte left alone, and the batches in the order in which they began. Messages of
    one topic keep their order: a topic whose QoS changes begins another batch. The caller bounds both frames and
    batches by `end`.
    """
    assert 0 <= pos <= end <= len(buf)
    groups: list[Group] = []
    latest: dict[bytes, int] = {}
    group = Group("", b"")
    at = pos
    runs = 0
    if cython.compiled:
        data = cython.address(buf[0]) if len(buf) else cython.NULL
        scratch = PyBytes_FromStringAndSize(cython.NULL, 8 * ((end - pos) // 17 + 1))
        marks = cython.cast(cython.p_uint, PyBytes_AS_STRING(scratch))
    else:
        data = buf
    while end - at >= 16:
        length = _u32(data, at)
        if data[at + 4] != PUBLISH or length > end - at - 4:
            break
        number = group.follower
        if number == _NO_GROUP or not _belongs(data, at, length, groups[number]):
            number = _find_group(data, at, length, groups, latest)
            if number == _NO_GROUP:
                break
            group.follower = number
        group = groups[number]
        if cython.compiled:
            marks[2 * runs] = number
            marks[2 * runs + 1] = group.count
            at = _measure_run(data, at, end, group)
            marks[2 * runs + 1] = group.count - marks[2 * runs + 1]
            runs += 1
        else:
            at = _collect_run(buf, at, end, group)
    if cython.compiled:
        return at, _copied(data, pos, groups, marks, runs, timestamp_us)
    return at, [_joined(group, timestamp_us) for group in groups]


def _measure_run(data: Pointer, at: int, end: int, group: Group) -> int:
    """Count the group's frames from `at` on, the first of which is known to be one (compiled only)."""
    least = 9 + group.prefix_size
    first = at
    length = _u32(data, at)
    while True:
        group.count += 1
        group.values_size += length - least
        at += 4 + length
        if end - at < 4 + least:
            return at
        length = _u32(data, at)
        if data[at + 4] != PUBLISH or length < least or length > end - at - 4:
            return at
        if memcmp(data + at + 13, data + first + 13, group.prefix_size) != 0:
            return at


@lru_cache(maxsize=256)
def _publish_head(prefix_size: int) -> struct.Struct:
    return struct.Struct(f">IBQ{prefix_size}s")


def _collect_run(buf: Buffer, at: int, end: int, group: Group) -> int:
    """Keep tag and value of the group's frames from `at` on (interpreted only)."""
    expected = group.prefix
    least = 9 + len(expected)
    value_at = 4 + least
    at = _collect_alike(buf, at, end, group)
    unpack = _publish_head(len(expected)).unpack_from
    add_tag = group.tags.append
    add_size = group.sizes.append
    add_value = group.values.append
    while end - at >= value_at:
        length, kind, tag, prefix = unpack(buf, at)
        following = at + 4 + length
        if prefix != expected or kind != PUBLISH or length < least or following > end:
            return at
        add_tag(tag)
        add_size(length - least)
        add_value(buf[at + value_at : following])
        at = following
    return at


def _collect_alike(buf: Buffer, at: int, end: int, group: Group) -> int:
    """Keep tag and value of the group's frames from `at` on that are as long as the first (interpreted only).

    Looks no further when already the second differs, as it does where topics take turns.
    """
    size = 4 + int.from_bytes(buf[at : at + 4])
    second = at + size
    if buf[second : second + 4] != buf[at : at + 4] or not _belongs(buf, second, size - 4, group):
        return at
    count = alike(buf, at, end, size, (3, *range(13, 13 + group.prefix_size), 4, 2, 1, 0))
    value_at = 13 + group.prefix_size
    group.tags += struct.unpack(f">{count}Q", words(buf, at + 5, count, size))
    group.values.append(gather(buf, at + value_at, count, size, size - value_at))
    group.sizes += [size - value_at] * count
    return at + count * size


def _u32(data: Pointer, at: int) -> int:
    if not cython.compiled:
        return int.from_bytes(data[at : at + 4])
    a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
    word: int = a << 24 | b << 16 | c << 8 | d
    return word


def _belongs(data: Pointer, at: int, length: int, group: Group) -> bool:
    """Whether the PUBLISH frame at `at` has the QoS and topic of the group, which is still its topic's latest."""
    if group.superseded or length < 9 + group.prefix_size:
        return False
    if cython.compiled:
        return bool(memcmp(data + at + 13, PyBytes_AS_STRING(group.prefix), group.prefix_size) == 0)
    return bool(data[at + 13 : at + 13 + group.prefix_size] == group.prefix)


def _find_group(data: Pointer, at: int, length: int, groups: list[Group], latest: dict[bytes, int]) -> int:
    """The number of the group the PUBLISH frame at `at` belongs to; _NO_GROUP when the frame is not valid."""
    qos = data[at + 13]
    topic_size = data[at + 14] << 8 | data[at + 15]
    if qos > 1 or topic_size == 0 or topic_size > NAME_SIZE_MAX or topic_size > length - 12:
        return _NO_GROUP
    prefix = bytes(data[at + 13 : at + 16 + topic_size])
    raw = prefix[3:]
    number = latest.get(raw, _NO_GROUP)
    if number != _NO_GROUP:
        group = groups[number]
        if group.prefix == prefix:
            return number
        group.superseded = True
    topic = topic_name(raw)
    if not topic:
        return _NO_GROUP
    groups.append(Group(topic, prefix))
    latest[raw] = len(groups) - 1
    return len(groups) - 1


def _joined(group: Group, timestamp_us: int) -> Publish:
    """The batch of a group whose values were collected one by one."""
    count = len(group.sizes)
    ends = struct.pack(f"<{count + 1}I", *accumulate(group.sizes, initial=0))
    values = b"".join(group.values)
    topic = group.prefix[3:]
    pads = bytes(-len(topic) % 8), bytes(-len(ends) % 8), bytes(-len(values) % 8)
    size = HEADER_SIZE + sum(map(len, (topic, ends, values, *pads)))
    header = _batch_header(size, group.prefix[0], count, len(topic), timestamp_us, len(values))
    record = bytearray().join((bytes(RECORD_HEADER_SIZE), header, topic, pads[0], ends, pads[1], values, pads[2]))
    return Publish(group.topic, group.prefix[0], count, record, struct.pack(f">{count}Q", *group.tags))


def _batch_header(size: int, qos: int, count: int, topic_size: int, timestamp_us: int, values_size: int) -> bytes:
    return HEADER.pack(
        size, PART_BATCH, Protocol.BLIPMQ, qos, 0, count, topic_size, 0, timestamp_us, 0, 0, values_size, 0
    )


def _copied(data: Pointer, at: int, groups: list[Group], marks: Pointer, runs: int, timestamp_us: int) -> list[Publish]:
    """The batches of all groups, each value copied once from its frame to its place (compiled only).

    `marks` holds for each run of neighbouring frames the number of its group and how many frames it has.
    """
    publishes = [_reserved(group, timestamp_us) for group in groups]
    for run in range(runs):
        group = groups[marks[2 * run]]
        value_at = 13 + group.prefix_size
        for _ in range(marks[2 * run + 1]):
            frame_size = 4 + _u32(data, at)
            memcpy(group.tag_out, data + at + 5, 8)
            group.tag_out += 8
            memcpy(group.value_out, data + at + value_at, frame_size - value_at)
            group.value_out += frame_size - value_at
            group.value_end += frame_size - value_at
            _put_u32_le(group.end_out, group.value_end)
            group.end_out += 4
            at += frame_size
    return publishes


def _reserved(group: Group, timestamp_us: int) -> Publish:
    """A batch of the group's size with everything but ends, values and tags in it (compiled only)."""
    topic_size = group.prefix_size - 3
    ends_at = _TOPIC_AT + ((topic_size + 7) & ~7)
    values_at = ends_at + ((4 * (group.count + 1) + 7) & ~7)
    size = values_at + ((group.values_size + 7) & ~7)
    record = PyByteArray_FromStringAndSize(cython.NULL, size)
    tags = PyBytes_FromStringAndSize(cython.NULL, 8 * group.count)
    header = _batch_header(size - _PART_AT, group.prefix[0], group.count, topic_size, timestamp_us, group.values_size)
    out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(record))
    memset(out, 0, ends_at + 4)
    memcpy(out + _PART_AT, PyBytes_AS_STRING(header), _TOPIC_AT - _PART_AT)
    memcpy(out + _TOPIC_AT, PyBytes_AS_STRING(group.prefix) + 3, topic_size)
    memset(out + values_at - 4, 0, 4)
    memset(out + values_at + group.values_size, 0, size - values_at - group.values_size)
    group.tag_out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(tags))
    group.end_out = out + ends_at + 4
    group.value_out = out + values_at
    group.value_end = 0
    return Publish(group.topic, group.prefix[0], group.count, record, tags)


def encode_deliveries(
    buffer: Buffer, start: int, index: int, count: int, qos: int, first_tag: int, tags: bytes
) -> bytes:
    """PUBLISH frames for `count` messages, from message `index` on, of the batch whose part is at `start`.

    Correlation ids are taken from `tags` (u64 big-endian), or count up from `first_tag` where `tags` is empty.
    Raises MalformedPart, which no batch that came through the gate leads to.
    """
    data: Pointer = cython.address(buffer[0]) if cython.compiled else buffer
    topic_size = data[start + 12] | data[start + 13] << 8
    topic_at = start + _TOPIC_AT - _PART_AT
    ends_at = topic_at + ((topic_size + 7) & ~7)
    values_at = ends_at + ((4 * (_u32_le(data, start + 8) + 1) + 7) & ~7)
    assert len(tags) in (0, 8 * count)
    if values_at > len(buffer) or index + count > _u32_le(data, start + 8):
        raise MalformedPart(DISORDER)
    if cython.compiled:
        tag_in = cython.cast(cython.p_uchar, PyBytes_AS_STRING(tags)) if tags else cython.NULL
        first = _u32_le(data, ends_at + 4 * index)
        final = last = _u32_le(data, ends_at + 4 * (index + count))
        if first > last or last > len(buffer) - values_at:
            raise MalformedPart(DISORDER)
        frames: bytes = PyBytes_FromStringAndSize(cython.NULL, count * (16 + topic_size) + last - first)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(frames))
        for i in range(count):
            last = _u32_le(data, ends_at + 4 * (index + i + 1))
            if first > last or last > final:
                raise MalformedPart(DISORDER)
            _put_u32(out, 12 + topic_size + last - first)
            out[4] = PUBLISH
            if tag_in != cython.NULL:
                memcpy(out + 5, tag_in + 8 * i, 8)
            else:
                _put_u32(out + 5, (first_tag + i) >> 32)
                _put_u32(out + 9, first_tag + i)
            out[13] = qos
            out[14] = topic_size >> 8
            out[15] = topic_size & 0xFF
            memcpy(out + 16, data + topic_at, topic_size)
            memcpy(out + 16 + topic_size, data + values_at + first, last - first)
            out += 16 + topic_size + last - first
            first = last
        return frames
    prefix = struct.pack(">BH", qos, topic_size) + bytes(data[topic_at : topic_at + topic_size])
    ends = struct.unpack_from(f"<{count + 1}I", data, ends_at + 4 * index)
    check_order(ends, len(buffer) - values_at)
    values = bytes(memoryview(data)[values_at + ends[0] : values_at + ends[-1]])
    named = tags or struct.pack(f">{count}Q", *range(first_tag, first_tag + count))
    return _framed(prefix, values, ends, named)


def _framed(prefix: bytes, values: bytes, ends: tuple[int, ...], tags: bytes) -> bytes:
    """The frames of encode_deliveries, put together from heads and values (interpreted only)."""
    overhead = 9 + len(prefix)
    size = len(values) * 8 // len(tags) if tags else 0
    if size and ends == tuple(range(ends[0], ends[0] + len(values) + 1, size)):
        head = _publish_head(len(prefix)).pack(overhead + size, PUBLISH, 0, prefix)
        return interleave(numbered(head, 5, tags), len(head), values, size)
    pack = _publish_head(len(prefix)).pack
    frames = []
    for (tag,), (first, last) in zip(struct.iter_unpack(">Q", tags), pairwise(ends), strict=True):
        frames.append(pack(overhead + last - first, PUBLISH, tag, prefix))
        frames.append(values[first - ends[0] : last - ends[0]])
    return b"".join(frames)


def _u32_le(data: Pointer, at: int) -> int:
    a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
    word: int = a | b << 8 | c << 16 | d << 24
    return word


def _put_u32(out: Pointer, word: int) -> None:
    out[0], out[1], out[2], out[3] = word >> 24 & 0xFF, word >> 16 & 0xFF, word >> 8 & 0xFF, word & 0xFF


def _put_u32_le(out: Pointer, word: int) -> None:
    out[0], out[1], out[2], out[3] = word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFF, word >> 24 & 0xFF
