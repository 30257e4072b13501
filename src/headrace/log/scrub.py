"""Reads again what lies on disk, slowly, to find bad bytes before somebody needs them.

A scrub is one pass over everything that is sealed or at least synced when it begins. A step may run in any thread, one
at a time; it shares nothing with the log but the files. Knows records, not when to go on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.log.disk import Disk, File
from headrace.log.format import SEGMENT_HEADER_SIZE, BadHeader, NewerFormat
from headrace.log.hop import Found, Hopper
from headrace.log.report import Damage
from headrace.log.segment import read_segment_header

WINDOW_BYTES = 64 * 1024


class Piece(NamedTuple):
    """Offsets `first` to `end` in the first `size` bytes of a segment; `sealed`: nobody writes to it any more."""

    path: Path
    first: int
    end: int
    size: int
    sealed: bool


class Scrub:
    """One pass. `done` of `size` bytes have been read; `failures` are files the disk would not give."""

    def __init__(self, disk: Disk, pieces: list[Piece]) -> None:
        self.size = sum(piece.size for piece in pieces)
        self.done = 0
        self.failures: list[str] = []
        self._disk = disk
        self._left = pieces[::-1]
        self._piece: Piece | None = None
        self._file: File | None = None
        self._hopper: Hopper | None = None
        self._records: Iterator[Found] = iter(())
        self._behind = 0
        self._found: list[Damage] = []

    @property
    def is_over(self) -> bool:
        """Whether everything has been read."""
        return self._piece is None and not self._left

    def take_damage(self) -> list[Damage]:
        """What was found since the last call."""
        found, self._found = self._found, []
        return found

    def step(self, size: int) -> None:
        """Read about so many bytes more. Blocks on the disk; never raises OSError."""
        while size > 0 and not self.is_over:
            before = self.done
            try:
                self._go_on(size)
            except FileNotFoundError:
                self._leave()  # retention deleted it meanwhile
            except OSError as error:
                assert self._piece is not None
                self.failures.append(f"{self._piece.path.name}: {error.strerror or error}")
                self._leave()
            size -= max(1, self.done - before)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _go_on(self, size: int) -> None:
        if self._piece is None:
            self._begin(self._left.pop())
        piece, hopper = self._piece, self._hopper
        assert piece is not None
        assert hopper is not None
        began = hopper.position
        over = False
        while hopper.position - began < size and not over:
            over = next(self._records, None) is None
        self.done += hopper.position - began
        if piece.sealed:
            self._disk.uncache(piece.path, hopper.position - began, began)
        if over:
            self._note(piece, hopper)
            self.done += piece.size - hopper.position
            self._leave()

    def _begin(self, piece: Piece) -> None:
        self._piece = piece
        self._file = file = self._disk.open(piece.path)
        self._hopper = Hopper(file, SEGMENT_HEADER_SIZE, piece.size, piece.first, piece.end, window=WINDOW_BYTES)
        self._records = iter(self._hopper)
        self.done += SEGMENT_HEADER_SIZE
        try:
            header = read_segment_header(file)
            reason = "" if header.first == piece.first else f"header says offset {header.first}"
        except (BadHeader, NewerFormat) as error:
            reason = str(error)
        if reason:
            self._found.append(Damage(piece.path.name, 0, SEGMENT_HEADER_SIZE, piece.first, 0, reason))

    def _note(self, piece: Piece, hopper: Hopper) -> None:
        holes = [(hole.start, hole.end, hole.first, hole.lost) for hole in hopper.holes]
        if hopper.expected != piece.end and not (holes and holes[-1][3] is None):
            holes.append((hopper.position, piece.size, hopper.expected, None))
        for start, end, first, lost in holes:
            count = piece.end - first if lost is None else lost
            self._found.append(Damage(piece.path.name, start, end, first, count))

    def _leave(self) -> None:
        self.close()
        self._piece = None
