"""The gate: whether bytes are a batch as we make them. Whatever comes from a file goes through it before it is used.

The C types of every variable are in gate.pxd. Lines under `cython.compiled` look at cells one by one; their `else` does
the same with slices and the struct module. Behind the gate other kernels trust what a batch says of itself.
"""

import struct
from enum import IntEnum
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.model.batch import HEADER_SIZE, PART_BATCH, TIME_MAX_US, Buffer, Column, Protocol

if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled


class Fault(IntEnum):
    """What is wrong with a batch."""

    SOUND = 0
    HEADER = 1
    TOPIC = 2
    SIZES = 3
    ORDER = 4
    PADDING = 5
    HEADERS = 6
    TEXT = 7


REASONS = {
    Fault.HEADER: "a field of the batch's header is not what it may be",
    Fault.TOPIC: "the topic is not text",
    Fault.SIZES: "the columns are not as long as the batch says",
    Fault.ORDER: "cells are in no order",
    Fault.PADDING: "the padding is not zero",
    Fault.HEADERS: "headers that are none",
    Fault.TEXT: "a text that is not UTF-8",
}
"""The faults in words."""

_SOUND, _HEADER, _TOPIC, _SIZES = Fault.SOUND, Fault.HEADER, Fault.TOPIC, Fault.SIZES
_ORDER, _PADDING, _HEADERS, _TEXT = Fault.ORDER, Fault.PADDING, Fault.HEADERS, Fault.TEXT
_HEADER_SIZE, _KIND, _TIME_MAX = HEADER_SIZE, PART_BATCH, TIME_MAX_US
_PROTOCOL_MAX, _COLUMNS_MAX = max(Protocol), sum(Column)
_U16, _U32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<q")


def check_part(buf: Buffer, start: int, end: int) -> int:
    """Whether the part that begins at `start`, and ends at `end` at the latest, is a batch as we make them: a Fault.

    Everything is looked at: the header's fields, the topic, the order of all cells and that they fill the part, the
    padding, the structure of headers, and that text is UTF-8.
    """
    assert 0 <= start <= end <= len(buf)
    if end - start < _HEADER_SIZE:
        return _SIZES
    if cython.compiled:
        return fault_of(cython.address(buf[0]), start, end)
    return fault_of(buf, start, end)


def fault_of(data: Pointer, start: int, end: int) -> int:
    """The same for who knows that there are as many bytes as a header has."""
    size = _u32(data, start)
    count = _u32(data, start + 8)
    topic_size = _u16(data, start + 12)
    flags = data[start + 7]
    if size & 7 or size < _HEADER_SIZE or size > end - start:
        return _SIZES
    if data[start + 4] != _KIND or data[start + 5] > _PROTOCOL_MAX or data[start + 6] > 1 or flags > _COLUMNS_MAX:
        return _HEADER
    if not count or _u32(data, start + 44):
        return _HEADER
    if not _is_time(data, start + 16) or not _is_time(data, start + 24) or not _is_time(data, start + 32):
        return _HEADER
    after = start + size
    at = start + _HEADER_SIZE
    if _padded(topic_size) > after - at:
        return _SIZES
    if not topic_size or not is_text_at(data, at, at + topic_size):
        return _TOPIC
    if not _is_zero(data, at + topic_size, at + _padded(topic_size)):
        return _PADDING
    return _columns(data, start, at + _padded(topic_size), after, count, flags)


def _columns(data: Pointer, start: int, columns_at: int, after: int, count: int, flags: int) -> int:
    """What is wrong with the columns, which are to fill the part."""
    at = columns_at
    ends_size = _padded(4 * (count + 1))
    for column in range(4):
        if column and not flags >> (column - 1) & 1:
            continue
        if ends_size > after - at:
            return _SIZES
        cells_at = at + ends_size
        size = _u32(data, at + 4 * count)
        if size > after - cells_at or (not column and size != _u32(data, start + 40)):
            return _SIZES
        if not _in_order(data, at, count):
            return _ORDER
        if not _is_zero(data, at + 4 * (count + 1), cells_at):
            return _PADDING
        if not _is_zero(data, cells_at + size, cells_at + _padded(size)):
            return _PADDING
        if column == 2:
            fault = _headers_fault(data, at, count, cells_at)
            if fault != _SOUND:
                return fault
        elif column == 3 and not _are_texts(data, at, count, cells_at, size):
            return _TEXT
        at = cells_at + _padded(size)
    return _SOUND if at == after else _SIZES


def _in_order(data: Pointer, ends_at: int, count: int) -> bool:
    """Whether ends begin with 0 and never fall."""
    if cython.compiled:
        wrong = _u32(data, ends_at) != 0
        for i in range(count):
            wrong |= _u32(data, ends_at + 4 * i + 4) < _u32(data, ends_at + 4 * i)
        return not wrong
    ends = struct.unpack_from(f"<{count + 1}I", data, ends_at)
    return not ends[0] and list(ends) == sorted(ends)


def _is_time(data: Pointer, at: int) -> bool:
    return bool(0 <= _i64(data, at) <= _TIME_MAX)


def _is_zero(data: Pointer, at: int, end: int) -> bool:
    for i in range(at, end):  # noqa: SIM110 - a loop in C
        if data[i]:
            return False
    return True


def _are_texts(data: Pointer, ends_at: int, count: int, cells_at: int, size: int) -> bool:
    """Whether each cell by itself is UTF-8."""
    if _is_ascii(data, cells_at, cells_at + size):
        return True
    first = 0
    for i in range(1, count + 1):
        last = _u32(data, ends_at + 4 * i)
        if not is_text_at(data, cells_at + first, cells_at + last):
            return False
        first = last
    return True


def _headers_fault(data: Pointer, ends_at: int, count: int, cells_at: int) -> int:
    """What is wrong with cells that are to be headers."""
    at = cells_at
    for row in range(1, count + 1):
        after = cells_at + _u32(data, ends_at + 4 * row)
        while at < after:
            if after - at < 6:
                return _HEADERS
            size = _u16(data, at)
            at += 2
            if size > after - at - 4:
                return _HEADERS
            if not is_text_at(data, at, at + size):
                return _TEXT
            at += size
            size = _u32(data, at)
            at += 4
            if size > after - at:
                return _HEADERS
            at += size
    return _SOUND


def _is_ascii(data: Pointer, at: int, end: int) -> bool:
    if not cython.compiled:
        return bytes(data[at:end]).isascii()
    seen = 0
    for i in range(at, end):
        seen |= data[i]
    return seen < 0x80


def is_text(buf: Buffer, start: int, end: int) -> bool:
    """Whether these bytes are UTF-8, as Python has it."""
    assert 0 <= start <= end <= len(buf)
    if start == end:
        return True
    if cython.compiled:
        return is_text_at(cython.address(buf[0]), start, end)
    return is_text_at(buf, start, end)


def is_text_at(data: Pointer, at: int, end: int) -> bool:
    """The same for who knows that the bytes are there."""
    if not cython.compiled:
        try:
            bytes(data[at:end]).decode()
        except UnicodeDecodeError:
            return False
        return True
    while at < end:
        byte = data[at]
        at += 1
        if byte < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if more > end - at or data[at] < low or data[at] > high:
            return False
        for i in range(1, more):
            if data[at + i] & 0xC0 != 0x80:
                return False
        at += more
    return True


def _padded(size: int) -> int:
    return (size + 7) & ~7


def _u16(data: Pointer, at: int) -> int:
    if cython.compiled:
        return data[at] | data[at + 1] << 8  # type: ignore[no-any-return]
    return _U16.unpack_from(data, at)[0]  # type: ignore[no-any-return]


def _u32(data: Pointer, at: int) -> int:
    if cython.compiled:
        word = 0
        memcpy(cython.address(word), data + at, 4)
        return word
    return _U32.unpack_from(data, at)[0]  # type: ignore[no-any-return]


def _i64(data: Pointer, at: int) -> int:
    if cython.compiled:
        word = 0
        memcpy(cython.address(word), data + at, 8)
        return word
    return _I64.unpack_from(data, at)[0]  # type: ignore[no-any-return]
