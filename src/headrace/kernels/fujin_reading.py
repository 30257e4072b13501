"""Fujin's replies by the run: confirmations, stored batches as messages, ACKs and NACKs with their results.

The C types of every variable are in fujin_reading.pxd. Lines under `cython.compiled` move bytes with pointers; their
`else` does the same with slices and the struct module. Interpreted, `bytes` are read fastest.

A message id is a delivery id, u64 big-endian. With its highest bit set nothing is left to settle: the delivery did it.
"""

import struct
from functools import lru_cache
from itertools import pairwise
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.strides import check_order, interleave, numbered
from headrace.model.batch import HEADER_SIZE, Buffer
from headrace.model.parts import DISORDER, MalformedPart

if cython.compiled:
    from cython.cimports.cpython.bytes import (  # type: ignore[import-untyped]
        PyBytes_AS_STRING,
        PyBytes_FromStringAndSize,
    )
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled

SETTLED_BIT = 1 << 63
_SETTLED = 0x80
_ID_SIZE = 8
_IDS_AT = 9
_HEADER_SIZE = HEADER_SIZE
_OVERLONG = 0


def encode_confirmations(tags: bytes) -> bytes:
    """Replies without an error: `tags` is their code, then their correlation ids back to back."""
    count = (len(tags) - 1) // 4
    if cython.compiled:
        tag_in = cython.cast(cython.p_uchar, PyBytes_AS_STRING(tags))
        replies: bytes = PyBytes_FromStringAndSize(cython.NULL, 6 * count)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(replies))
        for i in range(count):
            out[0] = tag_in[0]
            memcpy(out + 1, tag_in + 1 + 4 * i, 4)
            out[5] = 0
            out += 6
        return replies
    flat = bytearray(6 * count)
    flat[0::6] = tags[:1] * count
    for place in range(4):
        flat[1 + place :: 6] = tags[1 + place :: 4]
    return bytes(flat)


def encode_messages(
    buffer: Buffer, start: int, index: int, count: int, code: int, first_id: int, with_id: bool, filled: bool
) -> bytes:
    """Messages as a reader gets them: `count`, from message `index` on, of the batch whose part is at `start`.

    Each begins with `code` unless that is 0, then its id, counted up from `first_id`, where `with_id` says so. With
    `filled` an empty value becomes one zero byte. Raises MalformedPart, which no batch that came through the gate leads
    to.
    """
    data: Pointer = cython.address(buffer[0]) if cython.compiled else buffer
    topic_size = data[start + 12] | data[start + 13] << 8
    ends_at = start + _HEADER_SIZE + ((topic_size + 7) & ~7)
    values_at = ends_at + ((4 * (_u32_le(data, start + 8) + 1) + 7) & ~7)
    if values_at > len(buffer) or index + count > _u32_le(data, start + 8):
        raise MalformedPart(DISORDER)
    overhead = (code != 0) + (4 + _ID_SIZE if with_id else 0) + 4
    if cython.compiled:
        first = _u32_le(data, ends_at + 4 * index)
        final = last = _u32_le(data, ends_at + 4 * (index + count))
        if first > last or last > len(buffer) - values_at:
            raise MalformedPart(DISORDER)
        total = count * overhead + last - first
        if filled:
            total += _empties(data, ends_at + 4 * index, count)
        messages: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(messages))
        for i in range(count):
            last = _u32_le(data, ends_at + 4 * (index + i + 1))
            if first > last or last > final:
                raise MalformedPart(DISORDER)
            size = last - first
            if code != 0:
                out[0] = code
                out += 1
            if with_id:
                _put_u32(out, _ID_SIZE)
                _put_u32(out + 4, (first_id + i) >> 32)
                _put_u32(out + 8, first_id + i)
                out += 12
            if size == 0 and filled:
                _put_u32(out, 1)
                out[4] = 0
                out += 5
                continue
            _put_u32(out, size)
            memcpy(out + 4, data + values_at + first, size)
            out += 4 + size
            first = last
        return messages
    ends = struct.unpack_from(f"<{count + 1}I", data, ends_at + 4 * index)
    check_order(ends, len(buffer) - values_at)
    values = bytes(memoryview(data)[values_at + ends[0] : values_at + ends[-1]])
    return _framed(values, ends, code, first_id, with_id, filled)


def _empties(data: Pointer, ends_at: int, count: int) -> int:
    """How many of these values are empty (compiled only)."""
    found = 0
    for i in range(count):
        found += _u32_le(data, ends_at + 4 * i) == _u32_le(data, ends_at + 4 * (i + 1))
    return found


def _framed(values: bytes, ends: tuple[int, ...], code: int, first_id: int, with_id: bool, filled: bool) -> bytes:
    """The messages of encode_messages, put together from heads and values (interpreted only)."""
    count = len(ends) - 1
    before = bytes((code,)) * (code != 0) + struct.pack(">IQ", _ID_SIZE, 0) * with_id
    size = len(values) // count
    if size and ends == tuple(range(ends[0], ends[0] + len(values) + 1, size)):
        head = before + struct.pack(">I", size)
        ids = struct.pack(f">{count}Q", *range(first_id, first_id + count))
        heads = numbered(head, len(before) - _ID_SIZE, ids) if with_id else head * count
        return interleave(heads, len(head), values, size)
    frames: list[bytes] = []
    for number, (first, last) in enumerate(pairwise(ends), first_id):
        value = values[first - ends[0] : last - ends[0]] or (b"\0" if filled else b"")
        if with_id:
            before = before[:-_ID_SIZE] + struct.pack(">Q", number)
        frames += (before, struct.pack(">I", len(value)), value)
    return b"".join(frames)


def settle_size(buf: Buffer, at: int, end: int, count: int, id_max: int) -> int:
    """The size of the ACK or NACK at `at`, which has `count` ids; negative when it is not whole, then at least so much.

    0 when one of its ids is longer than `id_max`.
    """
    if cython.compiled:
        return _settle_size(cython.address(buf[0]), at, end, count, id_max)
    return _settle_size(buf, at, end, count, id_max)


def _settle_size(data: Pointer, at: int, end: int, count: int, id_max: int) -> int:
    position = at + _IDS_AT
    for i in range(count):
        if end - position < 4:
            return at - position - 4 * (count - i)
        size = _u32(data, position)
        if size > id_max:
            return _OVERLONG
        position += 4 + size
        if position > end:
            return at - position - 4 * (count - i - 1)
    return position - at


def scan_settles(buf: Buffer, pos: int, end: int, ids_max: int, id_max: int) -> tuple[int, list[int]]:
    """The run of whole, valid commands from `pos` on that are what the one at `pos` is, an ACK or a NACK.

    Returns the position of the first byte left alone, and the delivery ids that are to be settled.
    """
    assert 0 <= pos < end <= len(buf)
    deliveries: list[int] = []
    data: Pointer = cython.address(buf[0]) if cython.compiled else buf
    kind = data[pos]
    at = pos
    while end - at >= _IDS_AT and data[at] == kind:
        count = _u32(data, at + 5)
        if count > ids_max:
            break
        if not cython.compiled and _alike(buf, at, end, count):
            deliveries += [number for number in _uniform(count).unpack_from(buf, at + _IDS_AT) if number < SETTLED_BIT]
            at += _IDS_AT + 12 * count
            continue
        size = _settle_size(data, at, end, count, id_max)
        if size <= 0:
            break
        position = at + _IDS_AT
        at += size
        while position < at:
            size = _u32(data, position)
            if size == _ID_SIZE and data[position + 4] < _SETTLED:
                deliveries.append(_u32(data, position + 4) << 32 | _u32(data, position + 8))
            position += 4 + size
    return at, deliveries


def _alike(buf: Buffer, at: int, end: int, count: int) -> bool:
    """Whether all ids of a command have our size, and are here (interpreted only)."""
    if count == 0 or end - at < _IDS_AT + 12 * count:
        return False
    ids = bytes(buf[at + _IDS_AT : at + _IDS_AT + 12 * count])
    return bool(ids[0::12].count(0) == ids[1::12].count(0) == ids[2::12].count(0) == ids[3::12].count(8) == count)


@lru_cache(maxsize=256)
def _uniform(count: int) -> struct.Struct:
    return struct.Struct(">" + "4xQ" * count)


def encode_results(run: bytes, accepted: list[bool], refusal: bytes) -> bytes:
    """The replies to the run of commands of a scan_settles: each id with what became of it.

    `accepted` answers for the delivery ids of that scan in order. A result is one byte, 1 for settled; where `refusal`
    is not empty it is 0 for settled, else `refusal`.
    """
    answers = bytes(accepted)
    good, bad = (b"\0", refusal) if refusal else (b"\1", b"\0")
    if cython.compiled:
        return _results(run, answers, good, bad)
    out: list[bytes] = []
    at = answered = 0
    while at < len(run):
        count = _u32(run, at + 5)
        out += (run[at : at + 5], b"\0", run[at + 5 : at + _IDS_AT])
        at += _IDS_AT
        for _ in range(count):
            size = _u32(run, at)
            settled = size == _ID_SIZE and run[at + 4] >= _SETTLED
            if size == _ID_SIZE and not settled:
                settled = answers[answered] != 0
                answered += 1
            out += (run[at : at + 4 + size], good if settled else bad)
            at += 4 + size
    assert answered == len(answers)
    return b"".join(out)


def _results(run: bytes, answers: bytes, good: bytes, bad: bytes) -> bytes:
    """The same, copied in one go (compiled only)."""
    data = cython.cast(cython.p_uchar, PyBytes_AS_STRING(run))
    answer = cython.cast(cython.p_uchar, PyBytes_AS_STRING(answers))
    end = len(run)
    bad_size = len(bad)
    at = commands = total = 0
    while at < end:
        commands += 1
        count = _u32(data, at + 5)
        total += count
        at += _settle_size(data, at, end, count, end)
    scratch = PyBytes_FromStringAndSize(cython.NULL, end + commands + total * bad_size)
    start = cython.cast(cython.p_uchar, PyBytes_AS_STRING(scratch))
    out = start
    at = answered = 0
    while at < end:
        count = _u32(data, at + 5)
        memcpy(out, data + at, 5)
        out[5] = 0
        memcpy(out + 6, data + at + 5, 4)
        out += 10
        at += _IDS_AT
        for _ in range(count):
            size = _u32(data, at)
            settled = size == _ID_SIZE and data[at + 4] >= _SETTLED
            if size == _ID_SIZE and not settled:
                settled = answer[answered] != 0
                answered += 1
            memcpy(out, data + at, 4 + size)
            out += 4 + size
            at += 4 + size
            if settled:
                out[0] = good[0]
                out += 1
            else:
                memcpy(out, PyBytes_AS_STRING(bad), bad_size)
                out += bad_size
    assert answered == len(answers)
    replies: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, start), out - start)
    return replies


def _u32(data: Pointer, at: int) -> int:
    if not cython.compiled:
        return int.from_bytes(data[at : at + 4])
    a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
    word: int = a << 24 | b << 16 | c << 8 | d
    return word


def _u32_le(data: Pointer, at: int) -> int:
    a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
    word: int = a | b << 8 | c << 16 | d << 24
    return word


def _put_u32(out: Pointer, word: int) -> None:
    out[0], out[1], out[2], out[3] = word >> 24 & 0xFF, word >> 16 & 0xFF, word >> 8 & 0xFF, word & 0xFF
