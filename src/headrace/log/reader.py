"""Reads records back from segment files, with small caches bounded in bytes.

Every record is checked again when read; one that has gone bad since start-up is noted in `damage` and leapt over. Who
reads on is told by `lost_in` what it leapt over.
"""

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.kernels.gate import check_part
from headrace.log.disk import Disk, File
from headrace.log.extents import Extents, SegmentMap
from headrace.log.format import SEGMENT_HEADER_SIZE, is_lost
from headrace.log.hop import Found, Hopper
from headrace.log.index import BadIndex, Read, read_directory, read_extents, read_sparse
from headrace.log.report import Damage
from headrace.log.segment import Segment, map_records
from headrace.model.batch import Batch
from headrace.model.events import EventPart
from headrace.model.mending import mended
from headrace.model.parts import RECORD_HEADER, RECORD_HEADER_SIZE, iter_parts

CACHE_BYTES = 16 << 20
FILES_MAX = 32
_OBJECT_BYTES = 1000


class Record(NamedTuple):
    """A record read back: it takes offsets `first` to `first + span`, its payload is `buffer[start:end]`."""

    first: int
    span: int
    buffer: bytes
    start: int
    end: int

    def parts(self) -> Iterator[Batch | tuple[int, EventPart]]:
        """The batches and events in it, in order; a batch that is not as we make them as what is left of it."""
        for part in iter_parts(self.buffer, self.start, self.end, self.first):
            if isinstance(part, Batch):
                yield from sound(part)
            else:
                yield part

    def batches_of(self, topic: str) -> Iterator[Batch]:
        """The same for the batches of one topic."""
        for part in iter_parts(self.buffer, self.start, self.end, self.first):
            if isinstance(part, Batch) and part.topic == topic:
                yield from sound(part)


def sound(batch: Batch) -> Sequence[Batch]:
    """The batch, looked at whole; if it is not as we make them, what is left of it, made anew."""
    return mended(batch) if check_part(batch.buffer, batch.start, batch.start + batch.size) else (batch,)


class Stretch:
    """The batches of one topic in one extent, in order."""

    __slots__ = ("_bases", "batches")

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self._bases = [batch.base for batch in batches]

    def at(self, offset: int) -> Batch | None:
        """The batch that holds the offset, else the first after it, else None."""
        number = bisect_right(self._bases, offset)
        if number:
            batch = self.batches[number - 1]
            if offset < batch.base + batch.count:
                return batch
        return self.batches[number] if number < len(self.batches) else None


T = TypeVar("T")


class _Cache(Generic[T]):
    """The most recently used values, together no larger than `limit` (but at least one)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._entries: OrderedDict[tuple[object, ...], tuple[T, int]] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> T | None:
        """The value kept for this key."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: tuple[object, ...], value: T, size: int) -> list[T]:
        """Keep a value; returns those that had to make room."""
        self._entries[key] = (value, size)
        self._used += size
        dropped = []
        while self._used > self._limit and len(self._entries) > 1:
            _, (old, old_size) = self._entries.popitem(last=False)
            self._used -= old_size
            dropped.append(old)
        return dropped

    def discard(self, first: object) -> list[T]:
        """Drop every value whose key begins with `first`."""
        dropped = []
        for key in [key for key in self._entries if key[0] == first]:
            value, size = self._entries.pop(key)
            self._used -= size
            dropped.append(value)
        return dropped

    def values(self) -> list[T]:
        """Everything kept."""
        return [value for value, _ in self._entries.values()]


class Reader:
    """Batches and records of segments, from disk or from the caches."""

    def __init__(self, disk: Disk) -> None:
        self.damage: list[Damage] = []
        self.unreported: list[Damage] = []
        self._disk = disk
        self._files: _Cache[File] = _Cache(FILES_MAX)
        self._extents: _Cache[Extents] = _Cache(CACHE_BYTES)
        self._sparse: _Cache[tuple[array[int], array[int]]] = _Cache(CACHE_BYTES)
        self._stretches: _Cache[Stretch] = _Cache(CACHE_BYTES)

    def extents(self, segment: Segment, topic: str) -> Extents:
        """Where the topic lies in the segment; empty when it does not."""
        if segment.map is not None:
            return segment.map.topics.get(topic) or Extents()
        assert segment.directory is not None
        entry = segment.directory.topics.get(topic)
        if entry is None:
            return Extents()
        extents = self._extents.get((segment.path, topic))
        if extents is None:
            try:
                extents = self._from_index(segment, lambda read, start: read_extents(read, start, entry))
            except (BadIndex, OSError):
                return self._rebuilt(segment).topics.get(topic) or Extents()
            self._extents.put((segment.path, topic), extents, 24 * len(extents) + 500)
        return extents

    def stretch(self, segment: Segment, topic: str, extents: Extents, number: int) -> Stretch:
        """The topic's batches in the extent of this number."""
        position, size = extents.positions[number], extents.sizes[number]
        key = (segment.path, topic, position, size)
        stretch = self._stretches.get(key)
        if stretch is None:
            records = self._records_within(segment, position, size, extents.bases[number])
            batches = [batch for record in records for batch in record.batches_of(topic)]
            stretch = Stretch(batches)
            self._stretches.put(key, stretch, size + _OBJECT_BYTES * len(batches))
        return stretch

    def records(self, segment: Segment, offset: int) -> Iterator[Record]:
        """The segment's records from the one that holds `offset` on, also if it is retired meanwhile."""
        position, first = self.place(segment, offset)
        file = self._disk.open(segment.path)
        try:
            hopper = Hopper(file, position, segment.size, first, segment.end)
            for found in hopper:
                if found.first + found.span > offset and not is_lost(found.buffer, found.payload):
                    yield _record(found)
            self._note(segment, hopper)
        finally:
            file.close()

    def lost_in(self, segment: Segment, topic: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where messages of the topic were lost to damage that begins in these offsets: first offset, how many.

        How many there were of the topic is known for each extent; where several places of an extent are damaged, how
        they share that is a guess.
        """
        holes = sorted(
            (damage for damage in self.damage if damage.segment == segment.path.name and damage.count),
            key=lambda damage: damage.first,
        )
        if not holes:
            return
        extents = self.extents(segment, topic)
        for number in range(len(extents)):
            position, size = extents.positions[number], extents.sizes[number]
            within = [hole for hole in holes if hole.start < position + size and hole.end > position]
            if not within:
                continue
            read = sum(batch.count for batch in self.stretch(segment, topic, extents, number).batches)
            missing = extents.counts[number] - read
            for hole in within:
                share = min(missing, hole.count)
                missing -= share
                if share and start <= hole.first < end:
                    yield hole.first, share

    def note(self, found: Damage) -> None:
        """Damage was met, by whoever read there."""
        if found not in self.damage:
            self.damage.append(found)
            self.unreported.append(found)

    def place(self, segment: Segment, offset: int) -> tuple[int, int]:
        """The position and first offset of a record not far before the one that holds `offset`."""
        ids, positions = self.sparse(segment)
        number = bisect_right(ids, offset) - 1
        return (positions[number], ids[number]) if number >= 0 else (SEGMENT_HEADER_SIZE, segment.first)

    def sparse(self, segment: Segment) -> "tuple[array[int], array[int]]":
        """Offsets of records about every 64 KiB, and where those are."""
        if segment.map is not None:
            return segment.map.ids, segment.map.positions
        sparse = self._sparse.get((segment.path,))
        if sparse is None:
            try:
                directory = segment.directory
                assert directory is not None
                sparse = self._from_index(segment, lambda read, start: read_sparse(read, start, directory))
            except (BadIndex, OSError):
                rebuilt = self._rebuilt(segment)
                return rebuilt.ids, rebuilt.positions
            self._sparse.put((segment.path,), sparse, 16 * len(sparse[0]) + 500)
        return sparse

    def forget(self, segment: Segment) -> None:
        """Drop everything cached of a segment that was replaced or retired."""
        for file in self._files.discard(segment.path):
            file.close()
        self._extents.discard(segment.path)
        self._sparse.discard(segment.path)
        self._stretches.discard(segment.path)

    def close(self) -> None:
        """Close every open file."""
        for file in self._files.values():
            file.close()

    def _records_within(self, segment: Segment, position: int, size: int, base: int) -> list[Record]:
        """The valid records of a stretch that begins with the record that holds offset `base`."""
        file = self._file(segment)
        data = file.pread(size, position)
        first = RECORD_HEADER.unpack_from(data)[0] if len(data) >= RECORD_HEADER_SIZE else base
        hopper = Hopper(_Bytes(data, position), position, position + size, first, segment.end)
        records = [_record(found) for found in hopper if not is_lost(found.buffer, found.payload)]
        return self._damaged_stretch(segment, position, size, base) if hopper.holes else records

    def _damaged_stretch(self, segment: Segment, position: int, size: int, base: int) -> list[Record]:
        """The same, beginning before the stretch and ending after it so that the offsets lost are known."""
        start, first = self.place(segment, base)
        hopper = Hopper(self._file(segment), start, segment.size, first, segment.end)
        records = []
        for found in hopper:
            if found.position >= position + size:
                break
            if found.position >= position and not is_lost(found.buffer, found.payload):
                records.append(_record(found))
        self._note(segment, hopper)
        return records

    def _note(self, segment: Segment, hopper: Hopper) -> None:
        for hole in hopper.holes:
            count = segment.end - hole.first if hole.lost is None else hole.lost
            self.note(Damage(segment.path.name, hole.start, hole.end, hole.first, count))

    def _file(self, segment: Segment) -> File:
        file = self._files.get((segment.path,))
        if file is None:
            file = self._disk.open(segment.path)
            for dropped in self._files.put((segment.path,), file, 1):
                dropped.close()
        return file

    def _from_index(self, segment: Segment, take: Callable[[Read, int], T]) -> T:
        file = self._disk.open(segment.index_path)
        try:
            _, start = read_directory(file.pread)
            return take(file.pread, start)
        finally:
            file.close()

    def _rebuilt(self, segment: Segment) -> SegmentMap:
        """The segment's map by walking it, its sidecar having become unreadable; kept from then on."""
        rebuilt = SegmentMap()
        map_records(Hopper(self._file(segment), SEGMENT_HEADER_SIZE, segment.size, segment.first, segment.end), rebuilt)
        segment.map = rebuilt
        return rebuilt


def _record(found: Found) -> Record:
    return Record(found.first, found.span, found.buffer, found.payload, found.payload_end)


class _Bytes:
    """What was read from a file at `position`, to be walked like the file."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` of the bytes at a position in the file."""
        start = position - self._position
        return self._data[start : start + size]
