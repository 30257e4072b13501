"""Fujin WRITEs by the run: pipelined WRITE commands into batches.

The C types of every variable are in fujin.pxd. Lines under `cython.compiled` move bytes with pointers; interpreted,
fujin_collect does the same with slices. Interpreted, `bytes` are read fastest.

Nothing here refuses anything: a scan stops before the first command that is not plainly valid.
"""

from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.blipmq import topic_name
from headrace.kernels.fujin_collect import Collected, batch_header
from headrace.model.batch import HEADER_SIZE, Buffer
from headrace.model.names import NAME_SIZE_MAX
from headrace.model.parts import RECORD_HEADER_SIZE
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

_WRITE = 3
_WRITTEN = 2
_LEAST = 14
_TOPIC_MAX = NAME_SIZE_MAX
_KEY_MAX = 0xFFFF
_PART_AT = RECORD_HEADER_SIZE
_TOPIC_AT = RECORD_HEADER_SIZE + HEADER_SIZE
_NO_GROUP = -1


class Group:
    """The writes of one scan that name one topic in one way; they become one batch.

    `prefix` is the topic with its size, as it is in their commands; `follower` the group of the command that came
    after the last run.
    """

    tag_out: Pointer
    end_out: Pointer
    value_out: Pointer
    value_end: int
    cell_end_out: Pointer
    cell_out: Pointer
    cell_end: int

    def __init__(self, topic: str, prefix: bytes) -> None:
        self.topic = topic
        self.prefix = prefix
        self.prefix_size = len(prefix)
        self.follower = _NO_GROUP
        self.superseded = False
        self.count = 0
        self.values_size = 0
        self.cells_size = 0
        self.collected: Any = None if cython.compiled else Collected(topic, prefix)


class Form:
    """What the WRITEs of a stream look like and may cost, and which topics their names stand for."""

    def __init__(
        self, with_headers: bool, message_max: int, headers_max: int, strings_max: int, routes: dict[bytes, str]
    ) -> None:
        self.with_headers = with_headers
        self.message_max = message_max
        self.headers_max = headers_max
        self.strings_max = strings_max
        self.routes = routes


def scan_writes(buf: Buffer, pos: int, end: int, form: Form, timestamp_us: int) -> tuple[int, list[Publish]]:
    """Turn the run of whole, valid WRITE commands from `pos` on into batches, to be confirmed.

    Returns the position of the first byte left alone, and the batches in the order in which they began, tagged with
    the code of their reply and the correlation ids (u32 big-endian). Messages of one topic keep their order, whatever
    name they use. The caller bounds both commands and batches by `end`.
    """
    assert 0 <= pos <= end <= len(buf)
    groups: list[Group] = []
    latest: dict[str, int] = {}
    group = Group("", b"")
    at = pos
    runs = 0
    if cython.compiled:
        data = cython.address(buf[0]) if len(buf) else cython.NULL
        scratch = PyBytes_FromStringAndSize(cython.NULL, 8 * ((end - pos) // _LEAST + 1))
        marks = cython.cast(cython.p_uint, PyBytes_AS_STRING(scratch))
    else:
        data = buf
    while end - at >= _LEAST and data[at] == _WRITE:
        prefix_size = _prefix_size(data, at, end)
        if prefix_size == 0 or _write_size(data, at, end, prefix_size, form) == 0:
            break
        number = group.follower
        if number == _NO_GROUP or not _belongs(data, at, end, groups[number]):
            number = _find_group(data, at, prefix_size, groups, latest, form)
            if number == _NO_GROUP:
                break
            group.follower = number
        group = groups[number]
        if cython.compiled:
            marks[2 * runs] = number
            marks[2 * runs + 1] = group.count
            at = _measure_run(data, at, end, group, form)
            marks[2 * runs + 1] = group.count - marks[2 * runs + 1]
            runs += 1
        else:
            at = group.collected.run(buf, at, end, form, _headers_size)
    if cython.compiled:
        return at, _copied(data, pos, groups, marks, runs, form, timestamp_us)
    return at, [each.collected.joined(timestamp_us) for each in groups]


def _prefix_size(data: Pointer, at: int, end: int) -> int:
    """The size of the topic of the WRITE at `at`, its size field included; 0 when it may not have such a topic."""
    topic_size = _u32(data, at + 5)
    if topic_size == 0 or topic_size > _TOPIC_MAX or topic_size > end - at - 9:
        return 0
    return 4 + topic_size


def _headers_size(data: Pointer, at: int, end: int, form: Form) -> int:
    """The size of the headers at `at`, their count included; 0 when they are not whole and valid."""
    if end - at < 2:
        return 0
    strings = data[at] << 8 | data[at + 1]
    if strings & 1 or strings > form.strings_max:
        return 0
    first = at + 2
    position = first
    for i in range(strings):
        if end - position < 4:
            return 0
        size = _u32(data, position)
        if size > form.headers_max - (position - first) or size > end - position - 4:
            return 0
        position += 4
        if i & 1 == 0 and (size > _KEY_MAX or not _is_text(data, position, size)):
            return 0
        position += size
    return position - at


def _is_text(data: Pointer, at: int, size: int) -> bool:
    """Whether these bytes are UTF-8."""
    if cython.compiled:
        for i in range(size):
            if data[at + i] > 0x7F:
                break
        else:
            return True
    try:
        bytes(data[at : at + size]).decode()
    except UnicodeDecodeError:
        return False
    return True


def _write_size(data: Pointer, at: int, end: int, prefix_size: int, form: Form) -> int:
    """The size of the WRITE at `at`; 0 when it is not whole and valid."""
    position = at + 5 + prefix_size
    if form.with_headers:
        headers_size = _headers_size(data, position, end, form)
        if headers_size == 0:
            return 0
        position += headers_size
    if end - position < 4:
        return 0
    size = _u32(data, position)
    if size > form.message_max or size > end - position - 4:
        return 0
    return position + 4 + size - at


def _belongs(data: Pointer, at: int, end: int, group: Group) -> bool:
    """Whether the WRITE at `at` names the topic of the group, which is still its topic's latest."""
    if group.superseded or end - at < 9 + group.prefix_size:
        return False
    if cython.compiled:
        return bool(memcmp(data + at + 5, PyBytes_AS_STRING(group.prefix), group.prefix_size) == 0)
    return bool(data[at + 5 : at + 5 + group.prefix_size] == group.prefix)


def _find_group(
    data: Pointer, at: int, prefix_size: int, groups: list[Group], latest: dict[str, int], form: Form
) -> int:
    """The number of the group the WRITE at `at` belongs to; _NO_GROUP when nobody may write to its topic."""
    prefix = bytes(data[at + 5 : at + 5 + prefix_size])
    raw = prefix[4:]
    topic: str = form.routes.get(raw) or topic_name(raw)
    if not topic:
        return _NO_GROUP
    number = latest.get(topic, _NO_GROUP)
    if number != _NO_GROUP:
        group = groups[number]
        if group.prefix == prefix:
            return number
        group.superseded = True
    groups.append(Group(topic, prefix))
    latest[topic] = len(groups) - 1
    return len(groups) - 1


def _measure_run(data: Pointer, at: int, end: int, group: Group, form: Form) -> int:
    """Count the group's commands from `at` on, the first of which is known to be one (compiled only)."""
    value_at = 9 + group.prefix_size
    while True:
        size = _write_size(data, at, end, group.prefix_size, form)
        if size == 0:
            return at
        group.count += 1
        group.values_size += size - value_at
        if form.with_headers:
            headers_at = at + 5 + group.prefix_size
            strings = data[headers_at] << 8 | data[headers_at + 1]
            group.values_size -= 2
            if strings != 0:
                headers_size = _headers_size(data, headers_at, end, form)
                group.values_size -= headers_size - 2
                group.cells_size += headers_size - 2 - strings
        at += size
        if end - at < value_at or data[at] != _WRITE:
            return at
        if memcmp(data + at + 5, PyBytes_AS_STRING(group.prefix), group.prefix_size) != 0:
            return at


def _copied(
    data: Pointer, at: int, groups: list[Group], marks: Pointer, runs: int, form: Form, timestamp_us: int
) -> list[Publish]:
    """The batches of all groups, each value copied once from its command to its place (compiled only).

    `marks` holds for each run of neighbouring commands the number of its group and how many commands it has.
    """
    publishes = [_reserved(group, timestamp_us) for group in groups]
    for run in range(runs):
        group = groups[marks[2 * run]]
        for _ in range(marks[2 * run + 1]):
            memcpy(group.tag_out, data + at + 1, 4)
            group.tag_out += 4
            at += 5 + group.prefix_size
            if form.with_headers:
                at = _copy_cell(data, at, group)
            size = _u32(data, at)
            memcpy(group.value_out, data + at + 4, size)
            group.value_out += size
            group.value_end += size
            _put_u32_le(group.end_out, group.value_end)
            group.end_out += 4
            at += 4 + size
    return publishes


def _copy_cell(data: Pointer, at: int, group: Group) -> int:
    """Copy the headers at `at` to their place; the position after them (compiled only)."""
    strings = data[at] << 8 | data[at + 1]
    at += 2
    for _ in range(strings // 2):
        size = _u32(data, at)
        group.cell_out[0], group.cell_out[1] = size & 0xFF, size >> 8
        memcpy(group.cell_out + 2, data + at + 4, size)
        group.cell_out += 2 + size
        group.cell_end += 2 + size
        at += 4 + size
        size = _u32(data, at)
        _put_u32_le(group.cell_out, size)
        memcpy(group.cell_out + 4, data + at + 4, size)
        group.cell_out += 4 + size
        group.cell_end += 4 + size
        at += 4 + size
    if group.cell_end_out != cython.NULL:
        _put_u32_le(group.cell_end_out, group.cell_end)
        group.cell_end_out += 4
    return at


def _reserved(group: Group, timestamp_us: int) -> Publish:
    """A batch of the group's size with everything but ends, values, headers and tags in it (compiled only)."""
    topic = group.topic.encode()
    topic_size = len(topic)
    ends_size = (4 * (group.count + 1) + 7) & ~7
    ends_at = _TOPIC_AT + ((topic_size + 7) & ~7)
    values_at = ends_at + ends_size
    cell_ends_at = values_at + ((group.values_size + 7) & ~7)
    size = cell_ends_at
    if group.cells_size != 0:
        size += ends_size + ((group.cells_size + 7) & ~7)
    record = PyByteArray_FromStringAndSize(cython.NULL, size)
    tags = PyBytes_FromStringAndSize(cython.NULL, 1 + 4 * group.count)
    header = batch_header(
        size - _PART_AT, group.cells_size != 0, group.count, topic_size, timestamp_us, group.values_size
    )
    out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(record))
    memset(out, 0, ends_at + 4)
    memcpy(out + _PART_AT, PyBytes_AS_STRING(header), _TOPIC_AT - _PART_AT)
    memcpy(out + _TOPIC_AT, PyBytes_AS_STRING(topic), topic_size)
    memset(out + values_at - 4, 0, 4)
    memset(out + values_at + group.values_size, 0, cell_ends_at - values_at - group.values_size)
    group.cell_end_out = cython.NULL
    if group.cells_size != 0:
        memset(out + cell_ends_at, 0, 4)
        memset(out + cell_ends_at + ends_size - 4, 0, 4)
        memset(out + cell_ends_at + ends_size + group.cells_size, 0, size - cell_ends_at - ends_size - group.cells_size)
        group.cell_end_out = out + cell_ends_at + 4
        group.cell_out = out + cell_ends_at + ends_size
        group.cell_end = 0
    group.tag_out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(tags))
    group.tag_out[0] = _WRITTEN
    group.tag_out += 1
    group.end_out = out + ends_at + 4
    group.value_out = out + values_at
    group.value_end = 0
    return Publish(group.topic, 1, group.count, record, tags, True)


def _u32(data: Pointer, at: int) -> int:
    if not cython.compiled:
        return int.from_bytes(data[at : at + 4])
    a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
    word: int = a << 24 | b << 16 | c << 8 | d
    return word


def _put_u32_le(out: Pointer, word: int) -> None:
    out[0], out[1], out[2], out[3] = word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFF, word >> 24 & 0xFF
