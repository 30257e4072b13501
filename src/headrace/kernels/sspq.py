"""SSPQ messages by the run: SEND packets into batches.

The C types of every variable are in sspq.pxd. Lines under `cython.compiled` move bytes with pointers; their `else`
does the same with the struct module and strided slices, which is what is fast when interpreted.

Nothing here refuses anything: a scan stops before the first packet that is not plainly valid.
"""

import struct
from itertools import accumulate
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.strides import alike, gather
from headrace.model.batch import ATTEMPTS_UNLIMITED, HEADER, HEADER_SIZE, PART_BATCH, Buffer, Protocol
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish

if cython.compiled:
    from cython.cimports.cpython.bytearray import (  # type: ignore[import-untyped]
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
    )
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING  # type: ignore[import-untyped]
    from cython.cimports.libc.string import memcpy, memset  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled

AS_SENT = -1
"""Instead of a number of retries for all: each message has its own."""

_HEAD = 8
_MAGIC_FIRST, _MAGIC_SECOND, _SEND = 0x55, 0x99, 0x5E
_FOR_EVER = 255
_PART_AT = RECORD_HEADER_SIZE
_TOPIC_AT = RECORD_HEADER_SIZE + HEADER_SIZE


def scan_sends(
    buf: Buffer, pos: int, end: int, topic: str, forced: int, payload_max: int, timestamp_us: int
) -> tuple[int, list[Publish]]:
    """Turn the run of whole, valid SEND packets from `pos` on into batches, one for each run of equal retries.

    Returns the position of the first byte left alone, and the batches in order. `forced` is the number of retries that
    every message gets, or AS_SENT. The caller bounds batches by `end`.
    """
    assert 0 <= pos <= end <= len(buf)
    if pos == end:
        return pos, []
    data: Pointer = cython.address(buf[0]) if cython.compiled else buf
    name = topic.encode()
    publishes: list[Publish] = []
    at = pos
    while _is_send(data, at, end, payload_max):
        retries = data[at + 3]
        attempts = _attempts(forced if forced >= 0 else retries)
        if cython.compiled:
            first = at
            count = values_size = 0
            while True:
                size = _u32(data, at + 4)
                count += 1
                values_size += size
                at += _HEAD + size
                if not _is_send(data, at, end, payload_max) or (data[at + 3] != retries and forced < 0):
                    break
            record = _copied(data, first, count, values_size, name, attempts, timestamp_us)
        else:
            values: list[bytes] = []
            sizes: list[int] = []
            at = _collect(buf, at, end, forced, payload_max, values, sizes)
            count = len(sizes)
            record = _joined(values, sizes, name, attempts, timestamp_us)
        publishes.append(Publish(topic, 1, count, record, b""))
    return at, publishes


def _is_send(data: Pointer, at: int, end: int, payload_max: int) -> bool:
    """Whether a whole, valid SEND begins here."""
    if end - at < _HEAD or data[at] != _MAGIC_FIRST or data[at + 1] != _MAGIC_SECOND or data[at + 2] != _SEND:
        return False
    size = _u32(data, at + 4)
    return bool(size <= payload_max and size <= end - at - _HEAD)


def _attempts(retries: int) -> int:
    """Deliveries in all, as a batch's header counts them."""
    return ATTEMPTS_UNLIMITED if retries == _FOR_EVER else retries + 1


def _copied(
    data: Pointer, at: int, count: int, values_size: int, topic: bytes, attempts: int, timestamp_us: int
) -> bytearray:
    """A record with the batch of these packets, each value copied once from its packet to its place (compiled only)."""
    ends_at = _TOPIC_AT + ((len(topic) + 7) & ~7)
    values_at = ends_at + ((4 * (count + 1) + 7) & ~7)
    size = values_at + ((values_size + 7) & ~7)
    record: bytearray = PyByteArray_FromStringAndSize(cython.NULL, size)
    header = _batch_header(size - _PART_AT, count, len(topic), attempts, timestamp_us, values_size)
    out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(record))
    memset(out, 0, ends_at + 4)
    memcpy(out + _PART_AT, PyBytes_AS_STRING(header), HEADER_SIZE)
    memcpy(out + _TOPIC_AT, PyBytes_AS_STRING(topic), len(topic))
    memset(out + values_at - 4, 0, 4)
    memset(out + values_at + values_size, 0, size - values_at - values_size)
    end_out = out + ends_at + 4
    value_out = out + values_at
    value_end = 0
    for _ in range(count):
        value_size = _u32(data, at + 4)
        memcpy(value_out + value_end, data + at + _HEAD, value_size)
        value_end += value_size
        _put_u32_le(end_out, value_end)
        end_out += 4
        at += _HEAD + value_size
    return record


def _collect(
    buf: Buffer, at: int, end: int, forced: int, payload_max: int, values: list[bytes], sizes: list[int]
) -> int:
    """Take over the values of the packets that belong into one batch; the position after them (interpreted only)."""
    retries = buf[at + 3]
    while _is_send(buf, at, end, payload_max) and (forced >= 0 or buf[at + 3] == retries):
        size = int.from_bytes(buf[at + 4 : at + _HEAD])
        stride = _HEAD + size
        following = at + stride
        if buf[following : following + _HEAD] == buf[at : at + _HEAD] and following + stride <= end:
            count = alike(buf, at, end, stride, range(_HEAD))
            values.append(gather(buf, at + _HEAD, count, stride, size))
            sizes += [size] * count
            at += count * stride
        else:
            values.append(bytes(buf[at + _HEAD : following]))
            sizes.append(size)
            at = following
    return at


def _joined(values: list[bytes], sizes: list[int], topic: bytes, attempts: int, timestamp_us: int) -> bytearray:
    """A record with the batch of these values (interpreted only)."""
    ends = struct.pack(f"<{len(sizes) + 1}I", *accumulate(sizes, initial=0))
    joined = b"".join(values)
    pads = bytes(-len(topic) % 8), bytes(-len(ends) % 8), bytes(-len(joined) % 8)
    size = HEADER_SIZE + sum(map(len, (topic, ends, joined, *pads)))
    header = _batch_header(size, len(sizes), len(topic), attempts, timestamp_us, len(joined))
    return bytearray().join((bytes(RECORD_HEADER_SIZE), header, topic, pads[0], ends, pads[1], joined, pads[2]))


def _batch_header(size: int, count: int, topic_size: int, attempts: int, timestamp_us: int, values_size: int) -> bytes:
    return HEADER.pack(
        size, PART_BATCH, Protocol.SSPQ, 1, 0, count, topic_size, attempts, timestamp_us, 0, 0, values_size, 0
    )


def _u32(data: Pointer, at: int) -> int:
    if not cython.compiled:
        return int.from_bytes(data[at : at + 4])
    a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
    word: int = a << 24 | b << 16 | c << 8 | d
    return word


def _put_u32_le(out: Pointer, word: int) -> None:
    out[0], out[1], out[2], out[3] = word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFF, word >> 24 & 0xFF
