"""Start-up: from the files of a directory to segments that can be served and appended to.

Decides what is a torn tail (never synced: cut, bytes kept aside) and what is damage (once synced: reported, never cut
without the operator's word). Sealed segments are taken on the word of their sidecar, the active one on the word of the
newest snapshot; only what follows is walked.
"""

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from headrace.log.disk import Disk, File, keep_aside, write_atomically
from headrace.log.extents import SegmentMap
from headrace.log.format import (
    SEGMENT_HEADER_SIZE,
    SEGMENT_SUFFIX,
    TEMPORARY_SUFFIX,
    BadHeader,
    NewerFormat,
    SegmentHeader,
    is_lost,
    name_number,
    part_timestamp,
)
from headrace.log.hop import Hole, Hopper
from headrace.log.index import BadIndex, read_map
from headrace.log.report import Damage, Report, Torn
from headrace.log.segment import (
    Segment,
    Tally,
    load_directory,
    map_records,
    read_segment_header,
    segment_path,
)
from headrace.log.snapshot import Snapshot, load_snapshot
from headrace.model.errors import StorageError


@dataclass(slots=True)
class Recovered:
    """The segments in order, the last of them active; the newest snapshot; what was found on the way."""

    segments: list[Segment] = field(default_factory=list)
    snapshot: Snapshot | None = None
    report: Report = field(default_factory=Report)


def segment_firsts(names: list[str]) -> list[int]:
    """The first offsets of the segments among these file names, in order."""
    found = (name_number(name, SEGMENT_SUFFIX) for name in names)
    return sorted(first for first in found if first is not None)


def recover(directory: Path, disk: Disk, *, full: bool = False, write: bool = True) -> Recovered:
    """Bring a directory into a state that can be served.

    `full` walks every record instead of trusting sidecars and snapshot; without `write` nothing on disk is changed.
    Damage ends up in the report; deciding about it is the caller's. Raises OSError, and StorageError for a log of a
    later version.
    """
    names = disk.list(directory)
    if write:
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                disk.unlink(directory / name)
    recovered = Recovered(snapshot=load_snapshot(directory, disk, names))
    firsts = segment_firsts(names)
    for first, limit in zip_longest(firsts, firsts[1:]):
        recovery = _SegmentRecovery(directory, disk, first, limit, recovered, full=full, write=write)
        recovered.segments.append(recovery.run())
    _check_end(recovered)
    if write:
        disk.sync_directory(directory)
    report = recovered.report
    report.segments = len(firsts)
    if recovered.segments:
        report.first_offset = recovered.segments[0].first
        report.next_offset = recovered.segments[-1].end
    return recovered


def _check_end(recovered: Recovered) -> None:
    """Report offsets that the snapshot knows to have been synced and that are not there any more."""
    synced = recovered.snapshot.synced if recovered.snapshot else 0
    if not recovered.segments:
        if synced:
            recovered.report.damage.append(Damage("", 0, 0, 0, synced, "every segment file is missing"))
        return
    last = recovered.segments[-1]
    if last.end < synced:
        lost = Damage(last.path.name, last.size, last.size, last.end, synced - last.end, "the segment ends too early")
        recovered.report.damage.append(lost)


class _SegmentRecovery:
    """The recovery of one segment; `limit` is the first offset of the next one, None for the last."""

    def __init__(
        self, directory: Path, disk: Disk, first: int, limit: int | None, into: Recovered, *, full: bool, write: bool
    ) -> None:
        self._path = segment_path(directory, first)
        self._disk = disk
        self._first = first
        self._limit = limit
        self._snapshot = into.snapshot
        self._report = into.report
        self._full = full
        self._write = write

    def run(self) -> Segment:
        """The segment, walked as far as need be."""
        file = self._disk.open(self._path, writable=self._write and self._limit is None)
        try:
            segment = Segment(self._path, self._header(file), self._first, SEGMENT_HEADER_SIZE, SegmentMap())
            if self._limit is None:
                self._walk_last(segment, file)
            elif self._full or not self._trust_index(segment, file):
                self._walk_sealed(segment, file, self._limit)
            return segment
        finally:
            file.close()

    def _header(self, file: File) -> SegmentHeader:
        try:
            header = read_segment_header(file)
            if header.first == self._first:
                return header
            reason = f"header says offset {header.first}"
        except BadHeader as error:
            reason = str(error)
        except NewerFormat as error:
            raise StorageError(f"{self._path}: {error}") from error
        self._report.damage.append(Damage(self._path.name, 0, SEGMENT_HEADER_SIZE, self._first, 0, reason))
        return SegmentHeader(self._first, self._created_us(file))

    def _created_us(self, file: File) -> int:
        """When the segment was begun, from its first readable record."""
        for found in Hopper(file, SEGMENT_HEADER_SIZE, file.size(), self._first, self._limit):
            if not is_lost(found.buffer, found.payload):
                return part_timestamp(found.buffer, found.payload)
        return 0

    def _trust_index(self, segment: Segment, file: File) -> bool:
        try:
            directory = load_directory(segment, self._disk)
        except (BadIndex, OSError):
            return False
        if directory.end != self._limit or directory.size > file.size():
            return False
        segment.end, segment.size = directory.end, directory.size
        segment.map, segment.directory = None, directory
        return True

    def _walk_sealed(self, segment: Segment, file: File, limit: int) -> None:
        size = file.size()
        hopper = Hopper(file, SEGMENT_HEADER_SIZE, size, self._first, limit)
        assert segment.map is not None
        self._count(hopper, map_records(hopper, segment.map))
        segment.size = hopper.position
        for hole in hopper.holes:
            self._damaged(hole, limit)
        if hopper.expected != limit and not (hopper.holes and hopper.holes[-1].lost is None):
            self._damaged(Hole(hopper.position, size, hopper.expected, None), limit)
        segment.end = limit
        self._report.superseded_bytes += size - hopper.position if hopper.expected == limit else 0
        self._report.rebuilt_indexes.append(self._path.name)
        data = segment.encode_index()
        if self._write and not self._report.damage:
            write_atomically(self._disk, segment.index_path, [data])
            segment.directory = load_directory(segment, self._disk)
            segment.map = None

    def _walk_last(self, segment: Segment, file: File) -> None:
        size = file.size()
        synced = self._snapshot.synced if self._snapshot else 0
        hopper = self._resume(segment, file, size)
        assert segment.map is not None
        tally = map_records(hopper, segment.map)
        synced = max(synced, hopper.synced)
        torn = next((hole for hole in hopper.holes if hole.first >= synced), None)
        if torn is not None and torn.lost is not None:
            segment.map = SegmentMap()
            hopper = Hopper(file, SEGMENT_HEADER_SIZE, torn.start, self._first)
            tally = map_records(hopper, segment.map)
        self._count(hopper, tally)
        segment.end, segment.size = hopper.expected, hopper.position
        for hole in hopper.holes:
            if hole is not torn:
                self._damaged(hole, synced)
                segment.end = max(segment.end, synced if hole.lost is None else 0)
        if torn is not None:
            self._cut(file, torn, size)

    def _resume(self, segment: Segment, file: File, size: int) -> Hopper:
        """A walk that begins where the snapshot's index of this segment ends, if it has one."""
        if self._snapshot and not self._full:
            try:
                directory, known = read_map(self._snapshot.index)
            except BadIndex:
                return Hopper(file, SEGMENT_HEADER_SIZE, size, self._first)
            if directory.segment == segment.header.identity and directory.size <= size:
                segment.map = known
                return Hopper(file, directory.size, size, directory.end)
        return Hopper(file, SEGMENT_HEADER_SIZE, size, self._first)

    def _count(self, hopper: Hopper, tally: Tally) -> None:
        self._report.records += tally.records
        self._report.messages += tally.messages
        self._report.events += tally.events
        self._report.lost += tally.lost
        self._report.valid_bytes += hopper.walked

    def _damaged(self, hole: Hole, end: int) -> None:
        lost = end - hole.first if hole.lost is None else hole.lost
        self._report.damage.append(Damage(self._path.name, hole.start, hole.end, hole.first, lost))

    def _cut(self, file: File, torn: Hole, size: int) -> None:
        found = Torn(self._path.name, torn.start, size, torn.first)
        if self._write and not self._report.damage:
            aside = self._path.with_name(f"{self._path.name}.torn-{torn.start}")
            kept = keep_aside(self._disk, aside, file.pread(size - torn.start, torn.start))
            file.truncate(torn.start)
            file.fdatasync()
            found = replace(found, kept_in=kept)
        self._report.torn.append(found)
