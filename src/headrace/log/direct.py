"""Big writes past the page cache: copied into one aligned buffer that is used again and again, then straight to disk.

Most of what a broker writes it never reads from the file: current subscribers are served from memory. Filling the page
cache with it costs more than the write itself where every fresh page must first be had from the host, and drives out
what others need. The blocks at both ends that a write shares with its neighbours still go through the page cache, so
no block is ever written both ways at once.
"""

import os
from collections.abc import Iterable, Sequence
from mmap import mmap
from pathlib import Path

from headrace.model.batch import Buffer

BLOCK = 4096
WORTHWHILE = 128 << 10
STAGE_SIZE = 1 << 20

_O_DIRECT: int = getattr(os, "O_DIRECT", 0)


def split(buffers: Sequence[Buffer], size: int) -> tuple[list[Buffer], list[Buffer]]:
    """The first `size` bytes of the buffers, and the rest, without copying."""
    before: list[Buffer] = []
    for number, buffer in enumerate(buffers):
        if len(buffer) > size:
            view = memoryview(buffer)
            if size:
                before.append(view[:size])
            return before, [view[size:], *buffers[number + 1 :]]
        before.append(buffer)
        size -= len(buffer)
    return before, []


class DirectWriter:
    """Writes whole blocks of one file with O_DIRECT."""

    __slots__ = ("_fd", "_stage", "_view")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._stage = mmap(-1, STAGE_SIZE)
        self._view = memoryview(self._stage)

    @classmethod
    def open(cls, path: Path) -> "DirectWriter | None":
        """A writer for the file; None where the file system has no such writes."""
        if not _O_DIRECT:
            return None
        try:
            return cls(os.open(path, os.O_WRONLY | _O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC))
        except OSError:
            return None

    def write(self, buffers: Iterable[Buffer], position: int) -> None:
        """Write buffers whose sizes add up to whole blocks at a position that is a multiple of a block."""
        view, filled = self._view, 0
        for buffer in buffers:
            source, at = memoryview(buffer), 0
            while at < len(source):
                count = min(STAGE_SIZE - filled, len(source) - at)
                view[filled : filled + count] = source[at : at + count]
                filled += count
                at += count
                if filled == STAGE_SIZE:
                    self._flush(filled, position)
                    position += filled
                    filled = 0
        if filled:
            self._flush(filled, position)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)

    def _flush(self, size: int, position: int) -> None:
        written = 0
        while written < size:
            written += os.pwrite(self._fd, self._view[written:size], position + written)
