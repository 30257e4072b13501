"""BlipMQ's POLL and ACK frames by the run: a subscriber's polls counted, its acknowledgements merged into ranges.

The C types of every variable are in blipmq_exchange.pxd. Both frames have the same size, so interpreted a run is
checked and read column by column.
"""

import struct
from itertools import compress, groupby
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.strides import alike, words
from headrace.model.batch import Buffer

if cython.compiled:
    from cython.cimports.cpython.bytes import (  # type: ignore[import-untyped]
        PyBytes_AS_STRING,
        PyBytes_FromStringAndSize,
    )
    from cython.cimports.libc.string import memcmp, memcpy  # type: ignore[import-untyped]

Pointer = Any
Exchanged = tuple[int, int, bytes, list[tuple[int, int]]]

COMPILED: bool = cython.compiled

_FRAME_SIZE = 21
_FIXED = (3, 2, 1, 0, *range(20, 12, -1))
_LENGTH = struct.pack(">I", 17)
_KINDS = b"\x05\x09"
_IS_ACK = bytes(kind == 5 for kind in range(256))
_IS_POLL = bytes(kind == 9 for kind in range(256))
_ACK_HEAD = struct.pack(">IB", 17, 5)
_POLL_HEAD = struct.pack(">IB", 17, 9)
_NOBODY = bytes(8)


def scan_exchange(buf: Buffer, pos: int, end: int) -> Exchanged:
    """Gather the run of POLL and ACK frames from `pos` on that name the same subscription, which is not 0.

    Returns the position of the first byte left alone, the subscription (0: there was no such frame), the POLLs'
    correlation ids (u64 big-endian), and the acknowledged delivery ids as ranges (first, count) in order of arrival.
    """
    assert 0 <= pos <= end <= len(buf)
    most = (end - pos) // _FRAME_SIZE
    named = bytes(buf[pos + 13 : pos + _FRAME_SIZE])
    if most == 0 or named == _NOBODY:
        return pos, 0, b"", []
    if cython.compiled:
        return _scan_run(cython.address(buf[0]), pos, most, named)
    return _collect_run(buf, pos, end, named)


def _scan_run(data: Pointer, pos: int, most: int, named: bytes) -> Exchanged:
    """Gather up to `most` frames (compiled only)."""
    ranges: list[tuple[int, int]] = []
    first = acked = poll_size = 0
    polls = PyBytes_FromStringAndSize(cython.NULL, 8 * most)
    poll_out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(polls))
    poll_head, ack_head, name = PyBytes_AS_STRING(_POLL_HEAD), PyBytes_AS_STRING(_ACK_HEAD), PyBytes_AS_STRING(named)
    at = pos
    for _ in range(most):
        if memcmp(data + at + 13, name, 8) != 0:
            break
        if memcmp(data + at, poll_head, 5) == 0:
            memcpy(poll_out + poll_size, data + at + 5, 8)
            poll_size += 8
        elif memcmp(data + at, ack_head, 5) == 0:
            tag = _u64(data, at + 5)
            if acked == 0 or tag < first or tag - first != acked:
                if acked != 0:
                    ranges.append((first, acked))
                first = tag
                acked = 0
            acked += 1
        else:
            break
        at += _FRAME_SIZE
    if acked != 0:
        ranges.append((first, acked))
    return at, int.from_bytes(named) if at > pos else 0, polls[:poll_size], ranges


def _u64(data: Pointer, at: int) -> int:
    word = 0
    for i in range(8):
        word = word << 8 | data[at + i]
    return word


def _collect_run(buf: Buffer, pos: int, end: int, named: bytes) -> Exchanged:
    """Gather the frames from `pos` on (interpreted only)."""
    if bytes(buf[pos : pos + 4]) != _LENGTH:
        return pos, 0, b"", []
    count = alike(buf, pos, end, _FRAME_SIZE, _FIXED)
    kinds = bytes(buf[pos + 4 : pos + count * _FRAME_SIZE : _FRAME_SIZE])
    count -= len(kinds.lstrip(_KINDS))
    if count == 0:
        return pos, 0, b"", []
    tags = struct.unpack(f">{count}Q", words(buf, pos + 5, count, _FRAME_SIZE))
    polled = list(compress(tags, kinds.translate(_IS_POLL)))
    acked = list(compress(tags, kinds.translate(_IS_ACK)))
    polls = struct.pack(f">{len(polled)}Q", *polled)
    return pos + count * _FRAME_SIZE, int.from_bytes(named), polls, _merged(acked)


def _merged(tags: list[int]) -> list[tuple[int, int]]:
    """Neighbours that count up, as ranges (first, count)."""
    if tags and tags == list(range(tags[0], tags[0] + len(tags))):
        return [(tags[0], len(tags))]
    runs = (list(run) for _, run in groupby(enumerate(tags), key=lambda pair: pair[1] - pair[0]))
    return [(run[0][1], len(run)) for run in runs]
