"""Which grpcq envelopes are so plain that every protobuf decoder reads the same in them.

The C types of every variable are in envelopes.pxd. Decoders differ, and some fail, in what they make of the rest of
what protobuf allows or forbids: fields twice, groups, unknown fields, numbers longer than they need be, texts that are
none. Plain is: fields of an envelope and no others, each once, of their kind and inside the envelope, with sizes and
numbers as short as they can be, texts in UTF-8, and metadata entries of a key and a value, no key twice.
"""

from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.gate import is_text
from headrace.model.batch import Buffer

if cython.compiled:
    from cython.cimports.headrace.kernels.gate import is_text_at  # type: ignore[import-untyped]
    from cython.cimports.libc.string import memcmp  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled

_PAYLOAD_TAG, _TIMESTAMP_TAG, _METADATA_TAG = 0x22, 0x30, 0x3A
_KEY_TAG, _VALUE_TAG = 0x0A, 0x12
_ENTRIES_MAX = 16
"""Metadata entries of a plain envelope: as many as can be compared with each other in no time."""


class Walk:
    """Where in the cells a walk is, how long what it came to is, and where the keys of an envelope's metadata are."""

    data: Pointer

    def __init__(self) -> None:
        self.at = self.size = 0
        if not cython.compiled:
            self.keys_at = [0] * _ENTRIES_MAX
            self.keys_size = [0] * _ENTRIES_MAX


def mark_plain(ends: Any, cells: Buffer, marks: Any) -> None:
    """Set the mark of each row to 1 where its cell is a plain envelope, else to 0.

    Row i is `cells[ends[i]:ends[i + 1]]`; ends are in order and inside the cells, for they are Arrow's and checked.
    """
    walk = Walk()
    if cython.compiled:
        walk.data = cython.address(cells[0]) if len(cells) else cython.NULL
    else:
        walk.data = cells
    for row in range(len(ends) - 1):
        walk.at = ends[row]
        plain = _is_plain(walk, ends[row + 1])
        marks[row] = 1 if plain else 0


def _is_plain(walk: Walk, end: int) -> bool:
    seen = entries = 0
    while walk.at < end:
        tag = walk.data[walk.at]
        walk.at += 1
        bit = 1 << (tag >> 3)
        if tag != _METADATA_TAG and seen & bit:
            return False
        seen |= bit
        if tag == _TIMESTAMP_TAG:
            if not _is_number(walk, end):
                return False
            continue
        if tag & 7 != 2 or not 1 <= tag >> 3 <= 7 or tag >> 3 == 6 or not _sized(walk, end):
            return False
        if tag == _METADATA_TAG:
            if entries == _ENTRIES_MAX or not _is_plain_entry(walk, entries):
                return False
            entries += 1
        else:
            if tag != _PAYLOAD_TAG and not _text(walk):
                return False
            walk.at += walk.size
    return True


def _is_plain_entry(walk: Walk, entries: int) -> bool:
    """Whether the walk has come to a key and a value, in this order, and the key is not one of those before it."""
    after = walk.at + walk.size
    if walk.at == after or walk.data[walk.at] != _KEY_TAG:
        return False
    walk.at += 1
    if not _sized(walk, after) or not _text(walk):
        return False
    walk.keys_at[entries] = walk.at
    walk.keys_size[entries] = walk.size
    for i in range(entries):
        if walk.keys_size[i] == walk.size and _same(walk, walk.keys_at[i], walk.at):
            return False
    walk.at += walk.size
    if walk.at == after or walk.data[walk.at] != _VALUE_TAG:
        return False
    walk.at += 1
    if not _sized(walk, after) or not _text(walk):
        return False
    walk.at += walk.size
    return walk.at == after


def _sized(walk: Walk, end: int) -> bool:
    """Read a size; whether it is as short as it can be, and what it measures is there."""
    size = shift = 0
    while walk.at < end and shift < 35:
        byte = walk.data[walk.at]
        walk.at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            walk.size = size
            return bool((byte or not shift) and size <= end - walk.at)
        shift += 7
    return False


def _is_number(walk: Walk, end: int) -> bool:
    """Pass a number of 64 bits; whether it is one, as short as it can be."""
    count = 0
    while walk.at < end and count < 10:
        byte = walk.data[walk.at]
        walk.at += 1
        count += 1
        if byte < 0x80:
            return bool((byte or count == 1) and (count < 10 or byte == 1))
    return False


def _text(walk: Walk) -> bool:
    """Whether what the walk has come to is UTF-8."""
    if cython.compiled:
        return is_text_at(walk.data, walk.at, walk.at + walk.size)  # type: ignore[no-any-return]
    return is_text(walk.data, walk.at, walk.at + walk.size)


def _same(walk: Walk, first: int, second: int) -> bool:
    if cython.compiled:
        return bool(memcmp(walk.data + first, walk.data + second, walk.size) == 0)
    return bool(walk.data[first : first + walk.size] == walk.data[second : second + walk.size])
