"""Records of the log, many at a time: walked, checked, and their parts listed in a table.

The C types of every variable are in records.pxd. Lines under `cython.compiled` read with pointers; their `else` does
the same with the struct module. Knows the layout of records and parts; reads no file and keeps no part.

A table is rows of WIDTH signed 64-bit numbers, one row a part, in the order of their offsets. Every kind of part has

    KIND       PART_BATCH or PART_EVENT
    OFFSET     of its first row; an event's own
    ROWS       of a batch the messages chosen; of an event the messages it is about, at least 1
    TIMESTAMP  in microseconds
    CODE       of a batch the topic's code; of an event which one
    PLACE      where in the buffer the part begins

and then, depending on the kind, what is named BATCH_* or EVENT_* below. A batch has (ends, first, size) for each of its
four columns from BATCH_COLUMNS on: where the array of ends begins (0: the batch has no such column), where the chosen
cells begin behind the array, and how many bytes they are.
"""

import struct
from collections.abc import Callable
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.model.batch import HEADER_SIZE, PART_BATCH, Buffer
from headrace.model.events import EVENT_HEADER, PART_EVENT, RANGE
from headrace.model.parts import RECORD_HEADER_SIZE

if cython.compiled:
    from cython.cimports.headrace.kernels.gate import fault_of  # type: ignore[import-untyped]
    from cython.cimports.libc.string import memcmp, memcpy  # type: ignore[import-untyped]
else:
    from headrace.kernels.gate import check_part as fault_of

Pointer = Any

COMPILED: bool = cython.compiled

WIDTH = 24
KIND, OFFSET, ROWS, TIMESTAMP, CODE, PLACE = range(6)
BATCH_PROTOCOL, BATCH_SKIPPED, BATCH_COUNT = 6, 7, 8
BATCH_COLUMNS = 9
EVENT_SUBSCRIPTION, EVENT_RANGES, EVENT_RANGES_AT, EVENT_REASON_SIZE, EVENT_DETAIL_SIZE = range(6, 11)

MORE, FULL, LIMIT, BAD, LOST = range(5)
"""Why a walk stopped: the buffer ended, there was no room, the limit was reached, no record or a batch that does not
get through the gate, lost offsets."""

BATCHES, EVENTS = 1, 2

PART_LOST = 3
RECORD_SIZE_MAX = 1 << 30
MARK_BYTES = 64 * 1024

_RECORD, _PART_HEAD, _BATCH, _EVENT, _RANGE = RECORD_HEADER_SIZE, 8, HEADER_SIZE, EVENT_HEADER.size, RANGE.size
_LOST_SIZE = 16
_ID_SIZE = 12
_SYNCED_MARK, _FLAGS = 1, 7
_BATCH_KIND, _EVENT_KIND, _LOST_KIND, _WIDTH, _MARK_BYTES = PART_BATCH, PART_EVENT, PART_LOST, WIDTH, MARK_BYTES
_MORE, _FULL, _LIMIT, _BAD, _LOST, _ON = MORE, FULL, LIMIT, BAD, LOST, 5
_WANT_BATCHES, _WANT_EVENTS = BATCHES, EVENTS
_RECORD_MAX = RECORD_SIZE_MAX
_SMALL = 4096
_POLYNOMIAL = 0xEDB88320
_U16, _U32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<q")


class Walk:
    """Where a walk over records is, what it wants, and how far it came.

    `at` is where in the buffer the record that begins with offset `expected` is; the caller moves it when it gives
    another buffer, whose first byte is `origin` bytes into the file. Parts before offset `next` are left out. `kinds`
    says which parts are listed, `topics` maps a topic's bytes to its code, negative for one that is not wanted.

    After LOST, `lost_first` and `lost_count` say which offsets are gone; after MORE, `needed` how many bytes the next
    record takes, as far as that is known. After BAD, `unsound_at` is 0 where there is no record, else where the batch
    is that is not as we make them; it begins with offset `unsound_first`, and the walk goes on once `next` is behind
    it. `marks` are (offset, position in the file) of records here and there.
    """

    def __init__(self, crc32: Callable[..., int], kinds: int, topics: Any) -> None:
        self.at = self.origin = self.checked = 0
        self.expected = self.next = 0
        self.kinds = kinds
        self.lost_first = self.lost_count = 0
        self.unsound_at = self.unsound_first = 0
        self.needed = 0
        self.rows = self.bytes = 0
        self.parts = 0
        self.marks: list[tuple[int, int]] = []
        self._marked = -MARK_BYTES
        self._crc32 = crc32
        self._topics = topics
        self._topic = b""
        self._code = -1


def scan(buf: Buffer, end: int, walk: Walk, limit: int, rows_max: int, bytes_max: int, table: Any) -> int:
    """List the parts of the records from `walk.at` on with offsets below `limit`; returns why it stopped.

    `walk.parts`, `walk.rows` and `walk.bytes` say what is in the table then; bytes are those of values. A batch that
    does not fit is cut, a single message always does.
    """
    assert 0 <= walk.at <= end <= len(buf)
    walk.parts = walk.rows = walk.bytes = 0
    walk.unsound_at = 0
    room = len(table) // _WIDTH
    if cython.compiled:  # noqa: SIM108 - only one of them is compiled
        data = cython.address(buf[0]) if end else cython.NULL
    else:
        data = buf
    while True:
        at = walk.at
        if walk.expected >= limit or walk.next >= limit:
            return _LIMIT
        walk.needed = _RECORD
        if end - at < _RECORD:
            return _MORE
        sized = _u32(data, at + 8)
        size = sized & ~_FLAGS
        if _i64(data, at) != walk.expected or sized & _FLAGS > _SYNCED_MARK or not 0 < size <= _RECORD_MAX:
            return _BAD
        after = at + _RECORD + size
        walk.needed = after - at
        if after > end:
            return _MORE
        if after > walk.checked:
            if not _intact(buf, data, at, after, walk) or not _adds_up(data, at + _RECORD, after):
                return _BAD
            walk.checked = after
            if walk.origin + at - walk._marked >= _MARK_BYTES:
                walk._marked = walk.origin + at
                walk.marks.append((walk.expected, walk.origin + at))
        reason = _list_parts(data, at + _RECORD, after, walk, limit, rows_max, bytes_max, table, room)
        if reason != _ON:
            return reason


def tally(table: Any, parts: int, tallies: Any) -> None:
    """Add the batches of a table up by their topics' codes: four numbers each.

    The offset of the first message if it was 0 messages before, the offset after the last, how many, bytes of values.
    """
    for part in range(parts):
        row = part * _WIDTH
        if table[row] != _BATCH_KIND:
            continue
        entry = 4 * table[row + 4]
        if not tallies[entry + 2]:
            tallies[entry] = table[row + 1]
        tallies[entry + 1] = table[row + 1] + table[row + 2]
        tallies[entry + 2] += table[row + 2]
        tallies[entry + 3] += table[row + 11]


def _list_parts(
    data: Pointer, at: int, after: int, walk: Walk, limit: int, rows_max: int, bytes_max: int, table: Any, room: int
) -> int:
    """The parts of one checked record; the walk moves behind it once all of them are listed or passed over."""
    base = walk.expected
    while at < after:
        kind = data[at + 4]
        if kind == _BATCH_KIND:
            span = _u32(data, at + 8)
        elif kind == _EVENT_KIND:
            span = 1
        else:
            span = _i64(data, at + 8)
        if base + span > walk.next:
            if base >= limit:
                return _LIMIT
            if kind == _LOST_KIND:
                walk.lost_first = base if base > walk.next else walk.next
                walk.lost_count = (base + span if base + span < limit else limit) - walk.lost_first
                walk.next = base + span
                return _LOST
            if kind == _EVENT_KIND:
                if walk.kinds & _WANT_EVENTS:
                    if walk.parts >= room or walk.rows >= rows_max:
                        return _FULL
                    if not _list_event(data, at, base, walk, table):
                        return _BAD
                walk.next = base + 1
            elif not walk.kinds & _WANT_BATCHES or _topic_code(data, at, walk) < 0:
                walk.next = base + span
            else:
                if walk.parts >= room or walk.rows >= rows_max or walk.bytes >= bytes_max:
                    return _FULL
                if fault_of(data, at, at + _u32(data, at)):
                    walk.unsound_at, walk.unsound_first = at, base
                    return _BAD
                if not _list_batch(data, at, base, walk, limit, rows_max, bytes_max, table):
                    return _BAD
                if walk.next < base + span:
                    return _LIMIT if walk.next >= limit else _FULL
        base += span
        at += _u32(data, at)
    walk.at = after
    walk.expected = base
    return _ON


def _list_batch(
    data: Pointer, at: int, base: int, walk: Walk, limit: int, rows_max: int, bytes_max: int, table: Any
) -> bool:
    """List as much of a batch as there is room for; False when its columns do not fit into it."""
    after = at + _u32(data, at)
    count = _u32(data, at + 8)
    flags = data[at + 7]
    skipped = walk.next - base if walk.next > base else 0
    rows = (count if base + count <= limit else limit - base) - skipped
    if rows > rows_max - walk.rows:
        rows = rows_max - walk.rows
    row = walk.parts * _WIDTH
    column_at = at + _BATCH + _padded(_u16(data, at + 12))
    ends_size = _padded(4 * (count + 1))
    for column in range(4):
        slot = row + 9 + 3 * column
        if column and not flags >> (column - 1) & 1:
            table[slot] = table[slot + 1] = table[slot + 2] = 0
            continue
        if column_at + ends_size > after:
            return False
        size = _u32(data, column_at + 4 * count)
        if column_at + ends_size + size > after:
            return False
        first = _u32(data, column_at + 4 * skipped)
        if not column:
            rows = _rows_within(data, column_at, skipped, rows, first + bytes_max - walk.bytes)
        last = _u32(data, column_at + 4 * (skipped + rows))
        if not first <= last <= size:
            return False
        table[slot] = column_at
        table[slot + 1] = first
        table[slot + 2] = last - first
        column_at += ends_size + _padded(size)
    table[row] = _BATCH_KIND
    table[row + 1] = base + skipped
    table[row + 2] = rows
    table[row + 3] = _i64(data, at + 16)
    table[row + 4] = walk._code
    table[row + 5] = at
    table[row + 6] = data[at + 5]
    table[row + 7] = skipped
    table[row + 8] = count
    walk.parts += 1
    walk.rows += rows
    walk.bytes += table[row + 11]
    walk.next = base + skipped + rows
    return True


def _rows_within(data: Pointer, ends: int, skipped: int, rows: int, end_max: int) -> int:
    """How many of the rows behind the skipped ones end by `end_max`, at least one."""
    low, high = 1, rows
    while low < high:
        middle = (low + high + 1) // 2
        if _u32(data, ends + 4 * (skipped + middle)) <= end_max:
            low = middle
        else:
            high = middle - 1
    return low


def _list_event(data: Pointer, at: int, base: int, walk: Walk, table: Any) -> bool:
    """List an event; False when its contents do not fit into it."""
    ranges = _u32(data, at + 24)
    reason_size = _u16(data, at + 6)
    detail_size = _u32(data, at + 28)
    if _EVENT + _RANGE * ranges + reason_size + detail_size > _u32(data, at):
        return False
    rows = 0
    for number in range(ranges):
        rows += _u32(data, at + _EVENT + _RANGE * number + 8)
    rows = rows if rows else 1
    row = walk.parts * _WIDTH
    table[row] = _EVENT_KIND
    table[row + 1] = base
    table[row + 2] = rows
    table[row + 3] = _i64(data, at + 8)
    table[row + 4] = data[at + 5]
    table[row + 5] = at
    table[row + 6] = _i64(data, at + 16)
    table[row + 7] = ranges
    table[row + 8] = at + _EVENT
    table[row + 9] = reason_size
    table[row + 10] = detail_size
    walk.parts += 1
    walk.rows += rows
    return True


def _topic_code(data: Pointer, at: int, walk: Walk) -> int:
    """The code of a batch's topic; neighbours mostly have the same."""
    size = _u16(data, at + 12)
    name_at = at + _BATCH
    known = walk._topic
    if cython.compiled:
        if len(known) == size and size and not memcmp(cython.cast("const char*", known), data + name_at, size):
            return walk._code
        name = data[name_at : name_at + size]
    else:
        name = bytes(data[name_at : name_at + size])
    walk._code = walk._topics[name]
    walk._topic = name
    return walk._code


def _intact(buf: Buffer, data: Pointer, at: int, after: int, walk: Walk) -> bool:
    """Whether a record has the checksum it says it has."""
    said = _u32(data, at + _ID_SIZE)
    if cython.compiled:
        crc = _crc(data, at, at + _ID_SIZE, 0)
        if after - at <= _SMALL:
            return _crc(data, at + _RECORD, after, crc) == said
        return walk._crc32(buf[at + _RECORD : after], crc) == said
    view = memoryview(buf)
    return walk._crc32(view[at + _RECORD : after], walk._crc32(view[at : at + _ID_SIZE])) == said


def _adds_up(data: Pointer, at: int, after: int) -> bool:
    """Whether a payload is parts of sizes and kinds that make sense."""
    while at < after:
        if after - at < 2 * _PART_HEAD:
            return False
        size = _u32(data, at)
        kind = data[at + 4]
        if size & 7 or not _PART_HEAD < size <= after - at:
            return False
        if kind == _BATCH_KIND:
            if size < _BATCH:
                return False
            count = _u32(data, at + 8)
            if not count or _BATCH + _padded(_u16(data, at + 12)) + _padded(4 * (count + 1)) > size:
                return False
        elif kind == _EVENT_KIND:
            if size < _EVENT:
                return False
        elif kind != _LOST_KIND or size != _LOST_SIZE or _i64(data, at + 8) <= 0:
            return False
        at += size
    return True


def _crc(data: Pointer, at: int, end: int, crc: int) -> int:
    """CRC-32 of a few bytes, by table; only used when compiled."""
    crc ^= 0xFFFFFFFF
    while end - at >= 8:
        crc ^= _u32(data, at)
        word = _u32(data, at + 4)
        crc = (
            _TABLES[1792 + (crc & 255)] ^ _TABLES[1536 + (crc >> 8 & 255)]
            ^ _TABLES[1280 + (crc >> 16 & 255)] ^ _TABLES[1024 + (crc >> 24)]
            ^ _TABLES[768 + (word & 255)] ^ _TABLES[512 + (word >> 8 & 255)]
            ^ _TABLES[256 + (word >> 16 & 255)] ^ _TABLES[word >> 24]
        )  # fmt: skip
        at += 8
    while at < end:
        crc = _TABLES[(crc ^ data[at]) & 255] ^ crc >> 8
        at += 1
    return crc ^ 0xFFFFFFFF


def _fill_tables() -> None:
    """Eight tables of 256: what a byte does to the checksum, and what it does one to seven bytes later."""
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        _TABLES[byte] = crc
    for place in range(256, 2048):
        crc = _TABLES[place - 256]
        _TABLES[place] = _TABLES[crc & 255] ^ crc >> 8


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


if not cython.compiled:
    _TABLES = [0] * 2048
_fill_tables()
