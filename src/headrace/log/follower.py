"""Reads a log that another process writes: only what is committed, without a lock and without a trace.

Knows segments and offsets; a walk hands out the parts of records. Several threads may use one follower.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import takewhile, zip_longest
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from headrace.log.committed import Committed, CommittedReader
from headrace.log.disk import Disk, File
from headrace.log.extents import Extents
from headrace.log.followed import Followed, TopicTally
from headrace.log.format import BadHeader, NewerFormat
from headrace.log.reader import Reader
from headrace.log.recovery import segment_firsts
from headrace.log.segment import segment_path
from headrace.log.walk import WINDOW_BYTES, Gone, NoRecord, Parts, SegmentWalk
from headrace.model.errors import StorageError

_TRIES = 100
_NEAR_BYTES = 64 * 1024


class Choice(NamedTuple):
    """Which parts a walk hands out: kinds of parts, and topics by name and by the bytes of their names.

    `codes` maps those bytes to a number, negative for a topic that is not wanted; `wants` says the same of a name, None
    when every topic is wanted.
    """

    kinds: int
    codes: Any
    wants: Callable[[str], bool] | None = None


class Follower:
    """A log directory, open for reading while another process has it open for writing."""

    def __init__(self, directory: Path, disk: Disk, window_bytes: int = WINDOW_BYTES) -> None:
        """A walk reads so many bytes at a time. Raises StorageError when there is no log that could be followed."""
        self.directory = directory
        self._disk = disk
        self._committed = CommittedReader(directory)
        self._window_bytes = window_bytes
        self._lock = RLock()
        self._reader = Reader(disk)
        self._segments: list[Followed] = []
        self._generation = -1
        self._sealed_tallies: dict[str, TopicTally] | None = None

    def committed(self) -> Committed:
        """Which offsets there are now. Raises StorageError."""
        return self._committed.read()

    def close(self) -> None:
        """Give the files back."""
        with self._lock:
            self._reader.close()
            self._committed.close()

    def topics(self) -> dict[str, TopicTally]:
        """What there is of each topic. Raises StorageError."""
        with self._lock:
            segments = self.segments()
            sealed = list(takewhile(lambda followed: followed.is_sealed, segments))
            if self._sealed_tallies is None:
                self._sealed_tallies = {}
                for followed in sealed:
                    _add_up(self._sealed_tallies, followed)
            found = dict(self._sealed_tallies)
            for followed in segments[len(sealed) :]:
                _add_up(found, followed)
            return found

    def segments(self) -> list[Followed]:
        """The segments in order, known as far as is committed. Raises StorageError."""
        with self._lock:
            committed = self._refresh()
            for followed in self._segments:
                self._grow(followed, committed.latest)
            return list(self._segments)

    def marks(self, followed: Followed) -> "tuple[array[int], array[int]]":
        """Offsets of a segment's records about every 64 KiB, and where those are."""
        with self._lock:
            return self._reader.sparse(followed.segment)

    def extents(self, followed: Followed, topic: str) -> Extents:
        """Where a topic lies in a sealed segment."""
        with self._lock:
            return self._reader.extents(followed.segment, topic)

    def open(self, followed: Followed) -> File:
        """The segment's file, which stays readable when it is removed meanwhile. Raises OSError."""
        return self._disk.open(followed.segment.path)

    def holding(self, offset: int) -> Followed | None:
        """The segment in which to look for an offset, else the first after it. Raises StorageError."""
        return self._holding(offset)[0]

    def walk(self, start: int, end: int, choice: Choice) -> Iterator[Parts | Gone]:
        """The chosen parts with offsets from `start` up to `end`, and what is gone of them, in order.

        Raises StorageError when the disk does not give them.
        """
        while start < end:
            followed, generation = self._holding(start)
            if followed is None or followed.first > start:
                after = end if followed is None else min(followed.first, end)
                yield Gone(start, after - start)
                start = after
                continue
            limit = end if followed.limit is None else min(end, followed.limit)
            for found in self._walk_segment(followed, start, limit, choice):
                if isinstance(found, Gone) and self.committed().generation != generation:
                    break  # not damage perhaps, but a segment replaced under our hands: look again
                yield found
                start = found.first + found.lost if isinstance(found, Gone) else found.next
            else:
                start = limit

    def _holding(self, offset: int) -> tuple[Followed | None, int]:
        """The segment in which to look for an offset, and the generation it is of."""
        with self._lock:
            generation = self._refresh().generation
            number = bisect_right(self._segments, offset, key=lambda each: each.first) - 1
            return (self._segments[max(number, 0)] if self._segments else None), generation

    def _walk_segment(self, followed: Followed, start: int, limit: int, choice: Choice) -> Iterator[Parts | Gone]:
        try:
            file = self.open(followed)
        except FileNotFoundError:
            yield Gone(start, limit - start)
            return
        except OSError as error:
            raise self._failure(error) from error
        try:
            walk = SegmentWalk(
                file, choice.kinds, choice.codes, start=start, limit=limit, window_bytes=self._window_bytes
            )
            try:
                stretches = self._stretches(followed, start, limit, choice)
                for position, stop in stretches or ():
                    yield from walk.stretch(position, stop)
                if stretches is not None:
                    return
            except NoRecord:
                start = walk.next
            yield from walk.go(*self._place(followed, start))
        except OSError as error:
            raise self._failure(error) from error
        finally:
            file.close()

    def _stretches(self, followed: Followed, start: int, limit: int, choice: Choice) -> list[tuple[int, int]] | None:
        """Where in a sealed segment the wanted topics lie, neighbours joined.

        None where all of it has to be looked at: everything is wanted, or there may be offsets given up by repair.
        """
        directory = followed.segment.directory
        if choice.wants is None or directory is None or followed.is_repaired:
            return None
        pieces: list[tuple[int, int]] = []
        for name in filter(choice.wants, directory.topics):
            extents = self.extents(followed, name)
            for number in range(extents.first_holding(start), len(extents)):
                if extents.bases[number] >= limit:
                    break
                position = extents.positions[number]
                pieces.append((position, position + extents.sizes[number]))
        stretches: list[tuple[int, int]] = []
        for position, stop in sorted(pieces):
            if stretches and position <= stretches[-1][1] + _NEAR_BYTES:
                stretches[-1] = (stretches[-1][0], max(stop, stretches[-1][1]))
            else:
                stretches.append((position, stop))
        return stretches

    def _place(self, followed: Followed, offset: int) -> tuple[int, int]:
        """The position and first offset of a record not far before the one that holds `offset`."""
        with self._lock:
            self._grow(followed, self.committed().latest)
            return self._reader.place(followed.segment, offset)

    def _grow(self, followed: Followed, latest: int) -> None:
        try:
            followed.grow(latest)
        except FileNotFoundError:
            return  # removed since we looked: whoever reads it will be told
        except OSError as error:
            raise self._failure(error) from error

    def _refresh(self) -> Committed:
        """Look at the directory again if the segments are not those of the last time."""
        for _ in range(_TRIES):
            committed = self.committed()
            if committed.generation == self._generation:
                return committed
            try:
                self._segments = self._listed(committed)
            except FileNotFoundError:
                continue  # removed or replaced while we looked
            except (OSError, BadHeader, NewerFormat) as error:
                raise self._failure(error) from error
            self._generation = committed.generation
            self._sealed_tallies = None
        raise self._failure(OSError("its files come and go too fast"))

    def _listed(self, committed: Committed) -> list[Followed]:
        """The segments there are; what is known of sealed ones is kept while one writer has the log open."""
        known = {}
        if committed.writer == Committed(0, 0, 0, self._generation).writer:
            known = {(each.first, each.limit): each for each in self._segments if each.is_sealed}
        firsts = segment_firsts(self._disk.list(self.directory))
        segments = []
        for first, limit in zip_longest(firsts, firsts[1:]):
            if limit is not None and limit <= committed.earliest:
                continue  # about to be removed
            followed = known.get((first, limit))
            segments.append(followed or Followed(segment_path(self.directory, first), self._disk, limit))
        for old in set(self._segments).difference(segments):
            self._reader.forget(old.segment)
        return segments

    def _failure(self, error: Exception) -> StorageError:
        return StorageError(f"cannot read the log in {self.directory}: {error}")


def _add_up(tallies: dict[str, TopicTally], followed: Followed) -> None:
    """Add what a segment holds of each topic to what the ones before it hold."""
    for name, tally in followed.tallies().items():
        before = tallies.get(name)
        messages = tally.messages + (before.messages if before else 0)
        tallies[name] = TopicTally(before.first if before else tally.first, tally.end, messages)
