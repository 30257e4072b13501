"""Walks the records of a segment, one checksum each, and finds the next valid one when bytes are bad.

The only code that decides whether bytes are a record: recovery, reading, verify and dump all walk with it. It names
holes; whether a hole is a torn tail or damage is for recovery to say.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.log.format import RECORD_SIZE_MAX, SYNCED_MARK, record_intact, record_span
from headrace.model.parts import RECORD_HEADER, RECORD_HEADER_SIZE

WINDOW_BYTES = 1 << 20
_ZEROS = bytes(WINDOW_BYTES)
_LOST_MAX = 1 << 40
_FLAGS = 7


class Readable(Protocol):
    """Anything with bytes at positions."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes between two valid records that are none, and the offsets that were in them.

    `lost` is None when nothing valid follows that would tell.
    """

    start: int
    end: int
    first: int
    lost: int | None


class Found(NamedTuple):
    """A valid record: its place in the file, its offsets, and the buffer it was read into."""

    position: int
    size: int
    first: int
    span: int
    buffer: bytes
    payload: int
    payload_end: int


class Hopper:
    """Iterates over the valid records of `file` from `position` to `stop`, the first of which should be `expected`.

    Ends early at the record whose offset is `limit`: a later segment supersedes it; none of ours goes beyond. While and
    after iterating, `position` and `expected` say how far it came, `walked` how many bytes were valid, `holes` what it
    had to leap over, `synced` below which offset everything was synced by the word of the records themselves.
    """

    def __init__(
        self,
        file: Readable,
        position: int,
        stop: int,
        expected: int,
        limit: int | None = None,
        *,
        window: int = WINDOW_BYTES,
    ) -> None:
        self.position = position
        self.expected = expected
        self.synced = 0
        self.walked = 0
        self.holes: list[Hole] = []
        self._file = file
        self._stop = stop
        self._limit = limit
        self._window = window

    def __iter__(self) -> Iterator[Found]:
        window = self._window
        while self.position < self._stop and self.expected != self._limit:
            data = self._file.pread(min(window, self._stop - self.position), self.position)
            began = self.position
            needed = yield from self._records_in(data)
            if needed > len(data) and len(data) == min(window, self._stop - began):
                window = needed
                continue
            window = self._window
            if self.position == began and not self._leap():
                return

    def _records_in(self, data: bytes) -> Generator[Found, None, int]:
        """Yield the valid records at the start of `data`.

        Returns how many bytes the next one needs when `data` ends inside it and it is the first, else 0.
        """
        view = memoryview(data)
        unpack, new = RECORD_HEADER.unpack_from, tuple.__new__
        size_all = len(data)
        base = self.position
        at = 0
        while at + RECORD_HEADER_SIZE <= size_all and self.expected != self._limit:
            first, sized, crc = unpack(data, at)
            end = at + RECORD_HEADER_SIZE + (sized & ~_FLAGS)
            if first != self.expected or sized & _FLAGS > SYNCED_MARK or sized > RECORD_SIZE_MAX:
                return 0
            if end > size_all:
                return 0 if at or base + end > self._stop else end
            payload = at + RECORD_HEADER_SIZE
            if not record_intact(view, at, end, crc) or not (span := record_span(data, payload, end)):
                return 0
            if self._limit is not None and first + span > self._limit:
                return 0
            if sized & SYNCED_MARK:
                self.synced = first
            self.position = base + end
            self.walked += end - at
            self.expected = first + span
            yield new(Found, (base + at, end - at, first, span, data, payload, end))
            at = end
        return 0

    def _leap(self) -> bool:
        """Go on at the next valid record, noting the hole before it; False at a clean or hopeless end."""
        found = self._search()
        if found is None:
            if not self._rest_is_zero():
                self.holes.append(Hole(self.position, self._stop, self.expected, None))
            return False
        position, first = found
        self.holes.append(Hole(self.position, position, self.expected, first - self.expected))
        self.position = position
        self.expected = first
        return True

    def _search(self) -> tuple[int, int] | None:
        """The position and offset of the next valid record after the bad bytes at the present position.

        Where the bad record itself says it ends is tried first, so that a payload that happens to hold the bytes
        of a record is not mistaken for one; then every aligned position.
        """
        header = self._file.pread(RECORD_HEADER_SIZE, self.position)
        if len(header) == RECORD_HEADER_SIZE:
            _, sized, _ = RECORD_HEADER.unpack(header)
            claimed = self.position + RECORD_HEADER_SIZE + (sized & ~_FLAGS)
            if (first := self._record_at(claimed)) is not None:
                return claimed, first
        lowest, highest = self.expected, self._highest
        start = self.position
        while start < self._stop:
            data = self._file.pread(min(WINDOW_BYTES, self._stop - start), start)
            usable = len(data) & ~7
            if data != _ZEROS[: len(data)]:
                for index, word in enumerate(memoryview(data)[:usable].cast("Q")):
                    if lowest < word < highest and (first := self._record_at(start + 8 * index)) is not None:
                        return start + 8 * index, first
            start += WINDOW_BYTES
        return None

    def _record_at(self, position: int) -> int | None:
        """The offset of the record at `position`, None when there is no valid one that could follow."""
        header = self._file.pread(RECORD_HEADER_SIZE, position)
        if len(header) < RECORD_HEADER_SIZE:
            return None
        first, sized, crc = RECORD_HEADER.unpack(header)
        size = sized & ~_FLAGS
        end = position + RECORD_HEADER_SIZE + size
        if not size or sized & _FLAGS > SYNCED_MARK or sized > RECORD_SIZE_MAX or end > self._stop:
            return None
        if not self.expected < first < self._highest:
            return None
        data = self._file.pread(RECORD_HEADER_SIZE + size, position)
        intact = len(data) == RECORD_HEADER_SIZE + size and record_intact(memoryview(data), 0, len(data), crc)
        return first if intact and record_span(data, RECORD_HEADER_SIZE, len(data)) else None

    @property
    def _highest(self) -> int:
        """Offsets of records found after bad bytes are below this."""
        return self.expected + _LOST_MAX if self._limit is None else self._limit

    def _rest_is_zero(self) -> bool:
        for start in range(self.position, self._stop, WINDOW_BYTES):
            data = self._file.pread(min(WINDOW_BYTES, self._stop - start), start)
            if data != _ZEROS[: len(data)]:
                return False
        return True
