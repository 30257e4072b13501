"""Cells of stored batches and events, collected into the buffers of Arrow columns.

The C types of every variable are in columns.pxd. Lines under `cython.compiled` move bytes with pointers; their `else`
does the same with slices. Works on the tables that records.py makes, and trusts them; knows no Arrow.
"""

import struct
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.records import (
    BATCH_COLUMNS,
    BATCH_COUNT,
    BATCH_SKIPPED,
    EVENT_RANGES,
    EVENT_RANGES_AT,
    ROWS,
    WIDTH,
)
from headrace.model.batch import Buffer
from headrace.model.events import RANGE

if cython.compiled:
    from cython.cimports.libc.string import memcpy, memset  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled

VALUE, KEY, HEADERS, MESSAGE_ID = range(4)

_WIDTH, _ROWS, _SKIPPED, _COUNT, _COLUMNS = WIDTH, ROWS, BATCH_SKIPPED, BATCH_COUNT, BATCH_COLUMNS
_RANGES, _RANGES_AT, _RANGE_SIZE = EVENT_RANGES, EVENT_RANGES_AT, RANGE.size
_HEAD, _SIZE = struct.Struct("<H"), struct.Struct("<I")


def gather_cells(buf: Buffer, table: Any, parts: int, column: int, ends: Any, cells: Any) -> None:
    """Copy the chosen cells of one column of every batch in the table back to back into `cells`.

    `ends` gets one number for each row: where its cell ends as the batch itself counts, 0 where the batch has no such
    column. Both are as big as the table says.
    """
    if not parts:
        return
    if cython.compiled:
        data = cython.address(buf[0])
        ends_out = cython.address(ends[0])
        cells_out = cython.address(cells[0]) if len(cells) else cython.NULL
    at = row = 0
    for part in range(parts):
        entry = part * _WIDTH
        slot = entry + _COLUMNS + 3 * column
        rows, ends_at = table[entry + _ROWS], table[slot]
        if not ends_at:
            if cython.compiled:
                memset(ends_out + row, 0, 4 * rows)
            else:
                ends[row : row + rows] = _zeros(rows)
            row += rows
            continue
        size = table[slot + 2]
        first = ends_at + 4 * (table[entry + _SKIPPED] + 1)
        start = ends_at + ((4 * (table[entry + _COUNT] + 1) + 7) & ~7) + table[slot + 1]
        if cython.compiled:
            memcpy(ends_out + row, data + first, 4 * rows)
            memcpy(cells_out + at, data + start, size)
        else:
            ends[row : row + rows] = memoryview(buf)[first : first + 4 * rows].cast("I")
            cells[at : at + size] = buf[start : start + size]
        row += rows
        at += size


def _zeros(count: int) -> memoryview:
    return memoryview(bytes(4 * count)).cast("I")


def gather_ranges(buf: Buffer, table: Any, parts: int, ranges: Any) -> None:
    """Copy the ranges of every event in the table back to back."""
    at = 0
    if cython.compiled:
        data = cython.address(buf[0]) if len(buf) else cython.NULL
        out = cython.address(ranges[0]) if len(ranges) else cython.NULL
    for part in range(parts):
        entry = part * _WIDTH
        size = _RANGE_SIZE * table[entry + _RANGES]
        start = table[entry + _RANGES_AT]
        if cython.compiled:
            memcpy(out + at, data + start, size)
        else:
            ranges[at : at + size] = buf[start : start + size]
        at += size


def measure_headers(ends: Any, cells: Buffer) -> tuple[int, int, int]:
    """How many headers are in these cells, and the bytes of their keys and of their values.

    `ends` begins with 0. Negative numbers when a cell is not headers, or the ends are in no order.
    """
    count = keys_size = values_size = 0
    if cython.compiled:  # noqa: SIM108 - only one of them is compiled
        data = cython.address(cells[0]) if len(cells) else cython.NULL
    else:
        data = cells
    for row in range(len(ends) - 1):
        at, end = ends[row], ends[row + 1]
        if not 0 <= at <= end <= len(cells):
            return -1, -1, -1
        while at < end:
            if end - at < 6:
                return -1, -1, -1
            key_size = _key_size(data, at)
            if end - at < 6 + key_size:
                return -1, -1, -1
            value_size = _value_size(data, at + 2 + key_size)
            at += 6 + key_size + value_size
            if at > end:
                return -1, -1, -1
            count += 1
            keys_size += key_size
            values_size += value_size
    return count, keys_size, values_size


def split_headers(
    ends: Any, cells: Buffer, list_ends: Any, key_ends: Any, keys: Any, value_ends: Any, values: Any
) -> None:
    """Take measured cells apart: how many headers there are up to each row, and every key and every value.

    All the ends have one number more than what they count, the first of them 0.
    """
    number = key_at = value_at = 0
    list_ends[0] = key_ends[0] = value_ends[0] = 0
    if cython.compiled:
        data = cython.address(cells[0]) if len(cells) else cython.NULL
        keys_out = cython.address(keys[0]) if len(keys) else cython.NULL
        values_out = cython.address(values[0]) if len(values) else cython.NULL
    else:
        data = cells
    for row in range(len(ends) - 1):
        at, end = ends[row], ends[row + 1]
        while at < end:
            key_size = _key_size(data, at)
            value_size = _value_size(data, at + 2 + key_size)
            at += 2
            if cython.compiled:
                memcpy(keys_out + key_at, data + at, key_size)
                memcpy(values_out + value_at, data + at + key_size + 4, value_size)
            else:
                keys[key_at : key_at + key_size] = cells[at : at + key_size]
                values[value_at : value_at + value_size] = cells[at + key_size + 4 : at + key_size + 4 + value_size]
            at += key_size + 4 + value_size
            key_at += key_size
            value_at += value_size
            number += 1
            key_ends[number] = key_at
            value_ends[number] = value_at
        list_ends[row + 1] = number


def _key_size(data: Pointer, at: int) -> int:
    if cython.compiled:
        return data[at] | data[at + 1] << 8  # type: ignore[no-any-return]
    return _HEAD.unpack_from(data, at)[0]  # type: ignore[no-any-return]


def _value_size(data: Pointer, at: int) -> int:
    if cython.compiled:
        word = 0
        memcpy(cython.address(word), data + at, 4)
        return word
    return _SIZE.unpack_from(data, at)[0]  # type: ignore[no-any-return]
