"""What makes the interpreted scan of Fujin's WRITEs bearable: the messages of one batch collected by slices.

Never compiled: compiled, fujin.py copies every message straight to its place.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

from headrace.kernels.strides import alike, gather
from headrace.model.batch import HEADER, HEADER_SIZE, PART_BATCH, Buffer, Column, Protocol
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish

_WRITE = 3
_WRITTEN = 2
_NONE = b"\0\0"


class Collected:
    """Correlation ids, values and headers of the WRITEs to one topic, which begin with `prefix` behind their id."""

    def __init__(self, topic: str, prefix: bytes) -> None:
        self.topic = topic
        self.prefix = prefix
        self.tags: list[bytes] = []
        self.sizes: list[int] = []
        self.values: list[Buffer] = []
        self.cells: list[bytes] = []

    def run(self, buf: Buffer, at: int, end: int, form: Any, headers_size: Callable[..., int]) -> int:
        """Keep the run of whole, valid WRITEs from `at` on; the position after it."""
        head = _write_head(len(self.prefix), form.with_headers)
        at = self._run_alike(buf, at, end, head, form.with_headers)
        while end - at >= head.size:
            kind, tag, prefix, *_, size = head.unpack_from(buf, at)
            if kind != _WRITE or prefix != self.prefix:
                break
            size_at = at + head.size - 4
            cell = b""
            if form.with_headers and buf[size_at - 2 : size_at] != _NONE:
                strings_at = size_at
                size_at += headers_size(buf, size_at - 2, end, form) - 2
                if size_at < strings_at or end - size_at < 4:
                    break
                cell = _cell(buf, strings_at, size_at)
                size = int.from_bytes(buf[size_at : size_at + 4])
            if size > form.message_max or size > end - size_at - 4:
                break
            at = size_at + 4 + size
            self.tags.append(tag)
            self.sizes.append(size)
            self.values.append(buf[size_at + 4 : at])
            self.cells.append(cell)
        return at

    def joined(self, timestamp_us: int) -> Publish:
        """The batch."""
        count = len(self.sizes)
        topic, values, cells = self.topic.encode(), b"".join(self.values), b"".join(self.cells)
        sections = [topic, _ends(self.sizes), values]
        if cells:
            sections += (_ends([len(cell) for cell in self.cells]), cells)
        body = b"".join(piece for section in sections for piece in (section, bytes(-len(section) % 8)))
        header = batch_header(HEADER_SIZE + len(body), bool(cells), count, len(topic), timestamp_us, len(values))
        record = bytearray().join((bytes(RECORD_HEADER_SIZE), header, body))
        return Publish(self.topic, 1, count, record, bytes((_WRITTEN,)) + b"".join(self.tags), True)

    def _run_alike(self, buf: Buffer, at: int, end: int, head: struct.Struct, with_headers: bool) -> int:
        """Keep the WRITEs from `at` on that have no headers and are as long as the first.

        Looks no further when already the second differs, as it does where topics take turns.
        """
        size_at = at + head.size - 4
        if with_headers and buf[size_at - 2 : size_at] != _NONE:
            return at
        size = head.size + int.from_bytes(buf[size_at : size_at + 4])
        second = at + size
        if buf[second + 5 : second + head.size] != buf[at + 5 : at + head.size]:
            return at
        count = alike(buf, at, end, size, (0, *range(head.size - 1, 4, -1)))
        self.tags.append(gather(buf, at + 1, count, size, 4))
        self.values.append(gather(buf, at + head.size, count, size, size - head.size))
        self.sizes += [size - head.size] * count
        self.cells += [b""] * count
        return at + count * size


def batch_header(
    size: int, with_headers: bool, count: int, topic_size: int, timestamp_us: int, values_size: int
) -> bytes:
    """The header of a batch that came in by this door."""
    columns = Column.HEADERS if with_headers else 0
    return HEADER.pack(
        size, PART_BATCH, Protocol.FUJIN, 1, columns, count, topic_size, 0, timestamp_us, 0, 0, values_size, 0
    )


@lru_cache(maxsize=256)
def _write_head(prefix_size: int, with_headers: bool) -> struct.Struct:
    return struct.Struct(f">B4s{prefix_size}s{'H' if with_headers else ''}I")


def _cell(buf: Buffer, at: int, end: int) -> bytes:
    """Valid headers as they are stored."""
    out: list[bytes] = []
    while at < end:
        key_size = int.from_bytes(buf[at : at + 4])
        value_at = at + 4 + key_size
        value_size = int.from_bytes(buf[value_at : value_at + 4])
        out += (struct.pack("<H", key_size), bytes(buf[at + 4 : value_at]), struct.pack("<I", value_size))
        at = value_at + 4 + value_size
        out.append(bytes(buf[value_at + 4 : at]))
    return b"".join(out)


def _ends(sizes: list[int]) -> bytes:
    return struct.pack(f"<{len(sizes) + 1}I", *accumulate(sizes, initial=0))
