"""Drives the kernel's walk over one segment file, from windows of it to tables of parts.

Knows files, windows and what to do about bytes that are no record. What is in the parts is for others to say.
"""

from array import array
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, Protocol

from headrace.kernels import records
from headrace.kernels.records import MARK_BYTES, WIDTH, Walk
from headrace.log.format import crc32, stamp
from headrace.log.hop import Hopper
from headrace.model.batch import Batch
from headrace.model.mending import mended
from headrace.model.parts import RECORD_HEADER

ROWS_MAX = 32 * 1024
PARTS_MAX = 8 * 1024
BYTES_MAX = 8 << 20
WINDOW_BYTES = 8 << 20
_WINDOW_BYTES_MIN = MARK_BYTES


class Sized(Protocol):
    """A file as a walk needs it."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill a buffer; how many bytes were there, fewer than it holds only at the end."""

    def size(self) -> int:
        """The file's size."""


class NoRecord(ValueError):
    """Bytes that should have been a record."""


class Parts(NamedTuple):
    """`parts` rows of a table of parts of the records in `buffer`; good until the walk goes on.

    `next` is the offset behind them: everything before it has been dealt with.
    """

    buffer: bytearray
    table: "array[int]"
    parts: int
    rows: int
    next: int


class Gone(NamedTuple):
    """`lost` offsets from `first` on that should be there and are not."""

    first: int
    lost: int


class SegmentWalk:
    """The parts of one segment with offsets from `start` up to `limit`, beginning with the record at a known place."""

    def __init__(
        self, file: Sized, kinds: int, topics: Any, *, start: int, limit: int, window_bytes: int = WINDOW_BYTES
    ) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._size = file.size()
        self._limit = limit
        self._kinds, self._topics = kinds, topics
        self._rows_max = ROWS_MAX
        self._walk = walk = Walk(crc32, kinds, topics)
        walk.next = start
        self._table = array("q", bytes(8 * WIDTH * max(1, min(PARTS_MAX, limit - start))))
        self._buffer = bytearray()
        self._filled = 0

    @property
    def next(self) -> int:
        """The offset behind everything that has been dealt with."""
        return int(self._walk.next)

    @property
    def expected(self) -> int:
        """The offset of the record the walk has come to."""
        return int(self._walk.expected)

    @property
    def position(self) -> int:
        """Where in the file that record is."""
        return int(self._walk.origin + self._walk.at)

    def take_marks(self) -> list[tuple[int, int]]:
        """Offsets and positions of records passed since the last time, about one for every 64 KiB."""
        marks: list[tuple[int, int]]
        marks, self._walk.marks = self._walk.marks, []
        return marks

    def whole_batches(self) -> "SegmentWalk":
        """The same, with batches never cut, however many rows they have."""
        self._rows_max = 1 << 62
        return self

    def go(self, position: int, expected: int) -> Iterator[Parts | Gone]:
        """Everything from the record at this position on, which begins with offset `expected`."""
        self._walk.expected = expected
        self._load(position)
        while (reason := (yield from self._parts(self._size))) != records.LIMIT:
            gone = Gone(self._walk.lost_first, self._walk.lost_count) if reason == records.LOST else self._leap()
            if gone is not None:
                yield gone

    def stretch(self, position: int, stop: int) -> Iterator[Parts]:
        """What lies between two positions at which records begin.

        Raises NoRecord when some of it is not there; everything before `next` has been dealt with.
        """
        head = self._file.pread(RECORD_HEADER.size, position)
        if len(head) < RECORD_HEADER.size:
            raise NoRecord
        self._walk.expected = RECORD_HEADER.unpack(head)[0]
        self._load(position)
        if (yield from self._parts(stop)) not in (records.MORE, records.LIMIT):
            raise NoRecord

    def _parts(self, stop: int) -> Generator[Parts, None, int]:
        """The parts from the present place on; returns why they end, MORE for the position `stop`."""
        window = _WINDOW_BYTES_MIN
        while True:
            reason = self._scan()
            if self._walk.parts:
                yield Parts(self._buffer, self._table, self._walk.parts, self._walk.rows, self._walk.next)
            if reason == records.FULL:
                continue
            if reason == records.BAD and self._walk.unsound_at:
                yield from self._mended()
                continue
            if reason != records.MORE or self.position >= stop:
                return reason
            wanted = min(max(self._walk.needed, window), stop - self.position)
            self._load(self.position, wanted)
            if self._filled < self._walk.needed:
                return records.BAD
            window = min(2 * window, self._window_bytes)

    def _mended(self) -> Iterator[Parts]:
        """What is left of the batch the walk has come to, which is not as we make them, and goes on behind."""
        walk = self._walk
        pieces = mended(Batch(self._buffer, walk.unsound_at, walk.unsound_first))
        record = bytearray(RECORD_HEADER.size) + b"".join(bytes(piece.buffer) for piece in pieces)
        end = pieces[-1].end
        stamp(record, walk.unsound_first)
        inner = Walk(crc32, self._kinds, self._topics)
        inner.expected, inner.next = walk.unsound_first, walk.next
        reason = records.FULL
        while reason == records.FULL:
            reason = self._scan(record, len(record), inner)
            if inner.parts:
                yield Parts(record, self._table, inner.parts, inner.rows, inner.next)
        walk.next = max(walk.next, min(end, self._limit))

    def _scan(self, buffer: bytearray | None = None, filled: int = 0, walk: Walk | None = None) -> int:
        if buffer is None or walk is None:
            buffer, filled, walk = self._buffer, self._filled, self._walk
        bytes_max = BYTES_MAX if self._rows_max == ROWS_MAX else 1 << 62
        return records.scan(buffer, filled, walk, self._limit, self._rows_max, bytes_max, self._table)

    def _load(self, position: int, size: int = 0) -> None:
        """Go to a position and read so much of the file from there on, into the same memory again and again."""
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        self._filled = self._file.pread_into(memoryview(self._buffer)[:size], position) if size else 0
        self._walk.origin, self._walk.at, self._walk.checked = position, 0, 0

    def _leap(self) -> Gone | None:
        """Go on behind what is no record; the offsets that were in it and are wanted, if any."""
        walk = self._walk
        hopper = Hopper(self._file, self.position, self._size, walk.expected, self._limit)
        found = next(iter(hopper), None)
        if found is None:
            after, position = self._limit, self._size
        elif hopper.holes:
            after, position = found.first, found.position
        else:
            after, position = found.first + found.span, found.position + found.size
        first, after = max(walk.next, walk.expected), min(after, self._limit)
        walk.expected = after
        walk.next = max(walk.next, after)
        self._load(position)
        return Gone(first, after - first) if after > first else None
