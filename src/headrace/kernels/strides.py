"""What makes interpreted kernels bearable: many frames of one size handled by a few strided slices.

Never compiled: compiled kernels look at frames one by one. Knows sizes and places, no protocol.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache

from headrace.model.batch import Buffer
from headrace.model.parts import DISORDER, MalformedPart

CHUNK = 128
"""Frames handled at once: few enough for their pieces to stay in the processor's cache."""


def alike(buf: Buffer, at: int, end: int, size: int, places: Iterable[int]) -> int:
    """How many frames of `size` bytes, from the one at `at` on, have the first one's bytes in all these places."""
    count = (end - at) // size
    for place in places:
        column = bytes(buf[at + place : at + count * size : size])
        count -= len(column.lstrip(column[:1]))
    return count


def words(buf: Buffer, at: int, count: int, size: int) -> bytes:
    """The eight bytes at `at`, and at the same place of the following frames of `size` bytes, back to back."""
    out = bytearray(8 * count)
    span = (count - 1) * size + 1
    for i in range(8):
        out[i::8] = buf[at + i : at + i + span : size]
    return bytes(out)


def gather(buf: Buffer, at: int, count: int, stride: int, size: int) -> bytes:
    """The `size` bytes at `at`, and at the same place of the following frames of `stride` bytes, back to back."""
    chunks = []
    for first in range(0, count, CHUNK):
        unpack = _cutter(size, stride - size, min(CHUNK, count - first)).unpack_from
        chunks.append(b"".join(unpack(buf, at + first * stride)))
    return b"".join(chunks)


def interleave(heads: bytes, head_size: int, values: bytes, value_size: int) -> bytes:
    """Head, value, head, value: both given back to back."""
    chunks = []
    for first in range(0, len(heads) // head_size, CHUNK):
        count = min(CHUNK, len(heads) // head_size - first)
        pieces = [b""] * (2 * count)
        pieces[0::2] = _cutter(head_size, 0, count).unpack_from(heads, first * head_size)
        pieces[1::2] = _cutter(value_size, 0, count).unpack_from(values, first * value_size)
        chunks.append(b"".join(pieces))
    return b"".join(chunks)


def check_order(ends: tuple[int, ...], room: int) -> None:
    """Raises MalformedPart for ends of cells that fall, or that leave the bytes there are room for."""
    if list(ends) != sorted(ends) or ends[-1] > room:
        raise MalformedPart(DISORDER)


@lru_cache(maxsize=512)
def _cutter(size: int, gap: int, count: int) -> struct.Struct:
    """Cuts out `count` pieces with gaps between them; one call makes them all."""
    return struct.Struct(f"{gap}x".join([f"{size}s"] * count))


def numbered(head: bytes, at: int, numbers: bytes) -> bytes:
    """Copies of a head back to back, each with the next eight bytes of `numbers` at `at`."""
    size = len(head)
    heads = bytearray(head * (len(numbers) // 8))
    for i in range(8):
        heads[at + i :: size] = numbers[i::8]
    return bytes(heads)
