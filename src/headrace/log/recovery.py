"""Start-up: from the files of a directory to segments that can be served and appended to.

Decides what is a torn tail (never synced: cut, bytes kept aside) and what is damage (once synced: reported, never cut
without the operator's word). Sealed segments are taken on the word of their sidecar, the active one on the word of the
newest snapshot; only what follows is walked.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from headrace.log.catalog import CATALOG_NAMES, Catalog, CatalogFile, CatalogFound, find_catalog, new_log_id
from headrace.log.committed import Committed, last_committed
from headrace.log.disk import Disk, File, keep_aside, rename_aside, write_atomically
from headrace.log.extents import SegmentMap
from headrace.log.format import (
    INDEX_SUFFIX,
    SEGMENT_HEADER_SIZE,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
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
from headrace.log.report import Damage, Loss, Report, Torn
from headrace.log.segment import (
    Segment,
    Tally,
    load_directory,
    map_records,
    read_segment_header,
    segment_path,
)
from headrace.log.snapshot import SNAPSHOTS_KEPT, Snapshot, SnapshotsFound, find_snapshots
from headrace.model.errors import StorageError

MISSING = "the segment file is missing"
ENDS_EARLY = "the segment ends too early"
BEFORE_REPAIR = "is as it was before its repair"
FOREIGN = "the segment belongs to another log"


@dataclass(slots=True)
class Recovered:
    """The segments in order, the last of them active; snapshots and catalog; what was found on the way.

    Everything below `synced` was on stable storage once, by the word of what is not a segment. `walked` are the
    segments of which every record was looked at, each with how many offsets an earlier repair gave up in it.
    """

    segments: list[Segment] = field(default_factory=list)
    snapshots: SnapshotsFound = field(default_factory=SnapshotsFound)
    catalog: Catalog | None = None
    catalogs_alike: bool = True
    synced: int = 0
    strays: list[str] = field(default_factory=list)
    walked: dict[str, int] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest that can be used."""
        return self.snapshots.newest

    @property
    def end(self) -> int:
        """The offset behind all segments."""
        return self.segments[-1].end if self.segments else 0


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
    try:
        return _Recovery(directory, disk, full=full, write=write).run()
    except NewerFormat as error:
        raise StorageError(f"{directory}: {error}; use the program that wrote it, or a later one") from error


def take_over(directory: Path, disk: Disk, recovered: Recovered) -> CatalogFile:
    """The catalog of a log that is to be appended to, made if there is none and brought up to date.

    Bad snapshots and stray files are put aside, so that nothing is ever written over them. Raises OSError.
    """
    for name in (*recovered.snapshots.bad, *recovered.strays):
        rename_aside(disk, directory / name)
    segments, found = recovered.segments, recovered.catalog
    good = tuple(recovered.snapshots.good[:SNAPSHOTS_KEPT])
    last = segments[-1].first if segments else None
    if found is None:
        catalog = CatalogFile(directory, disk, Catalog(log=new_log_id()))
        floor = segments[0].first if segments else 0
        catalog.replace(msgspec.structs.replace(catalog.catalog, floor=floor, last=last, snapshots=good))
        return catalog
    catalog = CatalogFile(directory, disk, found)
    losses = _decided(recovered)
    now = found.with_losses(losses)
    if losses != found.losses and any(loss.given_up for loss in set(losses) - set(found.losses)):
        now = msgspec.structs.replace(now, epoch=now.epoch + 1)
    now = msgspec.structs.replace(now, last=last, snapshots=good)
    if now != found or not recovered.catalogs_alike:
        catalog.replace(now)
    return catalog


def _decided(recovered: Recovered) -> tuple[Loss, ...]:
    """What is lost, now that segments in which damage was met have been walked again.

    Damage that is not there any more was mended from outside, unless a repair that was cut short had given it up.
    """
    assert recovered.catalog is not None
    losses = []
    for loss in recovered.catalog.losses:
        if loss.given_up or loss.damage.segment not in recovered.walked:
            losses.append(loss)
        elif recovered.walked[loss.damage.segment]:
            losses.append(replace(loss, given_up=True))
        else:
            recovered.report.notes.append(f"{loss.damage.segment}: damage that was met before is not there any more")
    return tuple(losses)


class _Recovery:
    """The recovery of a directory."""

    def __init__(self, directory: Path, disk: Disk, *, full: bool, write: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._full = full
        self._write = write
        self._found = Recovered()
        self._report = self._found.report
        self._retired: list[str] = []
        self._end_is_missing = False

    def run(self) -> Recovered:
        """Catalog, snapshots, segments, in this order, and then whether they fit together."""
        found, disk = self._found, self._disk
        names = disk.list(self._directory)
        if self._write:
            for name in names:
                if name.endswith(TEMPORARY_SUFFIX):
                    disk.unlink(self._directory / name)
        catalogs = find_catalog(self._directory, disk, names)
        found.catalog = catalog = catalogs.catalog
        found.catalogs_alike = not (catalogs.bad or catalogs.missing or catalogs.behind)
        found.snapshots = find_snapshots(self._directory, disk, names, catalog, full=self._full)
        committed = last_committed(self._directory, disk)
        found.synced = max(
            found.snapshot.synced if found.snapshot else 0, committed.synced if committed else 0,
            catalog.last or 0 if catalog else 0,
        )  # fmt: skip
        self._segments(names)
        self._check_catalogs(catalogs)
        self._check_snapshots()
        self._check_end(committed)
        if self._write:
            if not self._report.damage:
                for name in self._retired:
                    disk.unlink(self._directory / name)
            disk.sync_directory(self._directory)
        self._sum_up()
        return found

    def _segments(self, names: list[str]) -> None:
        found, catalog = self._found, self._found.catalog
        firsts = self._without_strays(segment_firsts(names))
        limits: list[int | None] = [*firsts[1:], None] if firsts else []
        if catalog is not None:
            if firsts and catalog.last is not None and firsts[-1] < catalog.last:
                limits[-1] = catalog.last
            while firsts and limits[0] is not None and limits[0] <= catalog.floor:
                path = segment_path(self._directory, firsts.pop(0))
                self._retired += {path.name, path.with_suffix(INDEX_SUFFIX).name}.intersection(names)
                limits.pop(0)
            if firsts and firsts[0] > catalog.floor:
                self._missing(catalog.floor, firsts[0] - catalog.floor)
        for first, limit in zip(firsts, limits, strict=True):
            full = self._full or (catalog is not None and self._is_suspect(catalog, first))
            walk = _SegmentRecovery(self._directory, self._disk, first, limit, found, full=full, write=self._write)
            found.segments.append(walk.run())
        if catalog is not None and catalog.last is not None and firsts and firsts[-1] < catalog.last:
            self._missing(catalog.last, found.synced - catalog.last)
            self._end_is_missing = True

    def _without_strays(self, firsts: list[int]) -> list[int]:
        """Leave out files that were copied under the name of a segment there never was.

        Such a file says that it is another segment, and the one before it goes on to the next one as if it were not
        there. Where that one ends at the name, the file is in the place of a segment that is lost.
        """
        catalog = self._found.catalog
        real = [first for first in firsts if not self._is_impostor(first)]
        if real == firsts:
            return firsts
        kept = []
        for first in firsts:
            if first in real:
                kept.append(first)
                continue
            before = [each for each in real if each < first]
            after = [each for each in real if each > first]
            if after:
                needed = not before or not self._reaches(before[-1], after[0])
            else:
                needed = not before or catalog is None or catalog.last is None or catalog.last >= first
            if needed:
                kept.append(first)
            else:
                name = segment_path(self._directory, first).name
                self._found.strays.append(name)
                self._report.notes.append(f"{name} is a copy of another segment; there never was one of that name")
        return kept

    def _is_impostor(self, first: int) -> bool:
        """Whether a segment has an intact header that says it is another one, or another log's."""
        file = self._disk.open(segment_path(self._directory, first))
        try:
            header = read_segment_header(file)
        except BadHeader:
            return False
        finally:
            file.close()
        catalog = self._found.catalog
        return header.first != first or (catalog is not None and header.log not in (b"", catalog.log))

    def _reaches(self, first: int, following: int) -> bool:
        """Whether the records of a segment go on to the first offset of another."""
        file = self._disk.open(segment_path(self._directory, first))
        try:
            hopper = Hopper(file, SEGMENT_HEADER_SIZE, file.size(), first, following)
            for _ in hopper:
                """Only where it ends is of interest."""
            return hopper.expected == following and not hopper.holes
        finally:
            file.close()

    def _is_suspect(self, catalog: Catalog, first: int) -> bool:
        """Whether damage was met in this segment that nobody has decided about."""
        name = segment_path(self._directory, first).name
        return any(not loss.given_up and loss.damage.segment == name for loss in catalog.losses)

    def _missing(self, first: int, count: int) -> None:
        name = segment_path(self._directory, first).name
        self._report.damage.append(Damage(name, 0, 0, first, count, MISSING))

    def _check_catalogs(self, catalogs: CatalogFound) -> None:
        """Two copies are there to lose one of them; a log that has an id and no catalog has lost both."""
        report, found = self._report, self._found
        named = any(segment.header.log for segment in found.segments)
        named = named or bool(found.snapshot and found.snapshot.log)
        if catalogs.catalog is None:
            if named or catalogs.bad:
                detail = "both catalogs are gone or damaged: whether other files are missing cannot be told"
                report.damage.append(Damage(CATALOG_NAMES[0], 0, 0, 0, 0, detail))
            return
        for name, reason in catalogs.bad.items():
            report.notes.append(f"{name}: {reason}; the other one counts, and it is written anew")
        report.notes += [f"{name} is missing; it is written anew from the other one" for name in catalogs.missing]
        report.notes += [f"{name} is not the newer one; it is written anew" for name in catalogs.behind]

    def _check_snapshots(self) -> None:
        """A state that cannot be had from another snapshot or from all records is lost."""
        found, report = self._found, self._report
        snapshots, newest = found.snapshots, found.snapshot
        wrong = snapshots.bad | dict.fromkeys(snapshots.missing, "missing")
        if not wrong and newest is None and found.catalog is None:
            wrong = {f"*{SNAPSHOT_SUFFIX}": "missing"}
        begins = found.catalog.floor if found.catalog else found.segments[0].first if found.segments else 0
        from_all = begins == 0 and not (found.catalog and found.catalog.losses)
        known = newest is not None and (newest.offset >= begins or self._gave_up(newest.offset, begins))
        if wrong and not known and not from_all:
            name, reason = next(iter(wrong.items()))
            lost = f"no snapshot can be used: what was known below offset {begins} of subscriptions, attempts,"
            report.damage.append(Damage(name, 0, 0, begins, 0, f"{reason}; {lost} readers and writers is lost"))
            return
        wrong.pop(f"*{SNAPSHOT_SUFFIX}", None)
        instead = f"the one at offset {newest.offset} counts" if newest else "the state is folded from all records"
        report.notes += [f"{name}: {reason}; {instead}" for name, reason in wrong.items()]

    def _gave_up(self, first: int, end: int) -> bool:
        return self._found.catalog is not None and self._found.catalog.has_given_up(first, end)

    def _check_end(self, committed: Committed | None) -> None:
        """Report offsets that were synced, or at least shown, and that are not there any more."""
        found, report = self._found, self._report
        if not found.segments:
            begins = found.catalog.floor if found.catalog else 0
            if found.synced > begins or (found.catalog is not None and found.catalog.last is not None):
                count = found.synced - begins
                report.damage.append(Damage("", 0, 0, begins, count, "every segment file is missing"))
            return
        last = found.segments[-1]
        if self._end_is_missing:
            return
        if last.end < found.synced:
            lost = Damage(last.path.name, last.size, last.size, last.end, found.synced - last.end, ENDS_EARLY)
            report.damage.append(lost)
        elif committed is not None and last.end < committed.latest and not report.damage:
            count = committed.latest - last.end
            report.notes.append(
                f"{last.path.name}: {count} offsets from {last.end} on were shown and never synced, and are gone: "
                "the policy log.sync allows it"
            )

    def _sum_up(self) -> None:
        found, report = self._found, self._report
        report.segments = len(found.segments)
        if found.segments:
            report.first_offset = found.segments[0].first
            report.next_offset = found.segments[-1].end
        if found.catalog is not None:
            report.log_id, report.epoch = found.catalog.log.hex(), found.catalog.epoch
            report.losses = list(found.catalog.losses)
            unrepaired = {segment.path.name for segment in found.segments if not segment.header.generation}
            for loss in report.losses:
                damage = loss.damage
                if loss.given_up and damage.count and damage.detail != MISSING and damage.segment in unrepaired:
                    report.notes.append(f"{damage.segment} {BEFORE_REPAIR}: offsets that were given up may be back")


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
        self._synced = into.synced
        self._log = into.catalog.log if into.catalog else b""
        self._walked = into.walked
        self._report = into.report
        self._full = full
        self._write = write

    def run(self) -> Segment:
        """The segment, walked as far as need be."""
        file = self._disk.open(self._path, writable=self._write and self._limit is None)
        try:
            segment = Segment(self._path, self._header(file), self._first, SEGMENT_HEADER_SIZE, SegmentMap())
            if self._is_foreign(segment.header):
                self._disown(segment, file)
            elif self._limit is None:
                self._walk_last(segment, file)
            elif self._full or not self._trust_index(segment, file):
                self._walk_sealed(segment, file, self._limit)
            return segment
        finally:
            file.close()

    def _header(self, file: File) -> SegmentHeader:
        try:
            header = read_segment_header(file)
            if header.first == self._first or self._is_foreign(header):
                return header
            reason = f"header says offset {header.first}"
        except BadHeader as error:
            reason = str(error)
        except NewerFormat as error:
            raise StorageError(f"{self._path}: {error}") from error
        self._report.damage.append(Damage(self._path.name, 0, SEGMENT_HEADER_SIZE, self._first, 0, reason))
        return SegmentHeader(self._first, self._created_us(file), log=self._log)

    def _is_foreign(self, header: SegmentHeader) -> bool:
        return bool(self._log) and header.log not in (b"", self._log)

    def _disown(self, segment: Segment, file: File) -> None:
        """Take nothing from a segment of another log."""
        end = max(self._first, self._synced) if self._limit is None else self._limit
        segment.header = SegmentHeader(self._first, segment.header.created_us, log=self._log)
        segment.end = end
        self._report.damage.append(Damage(self._path.name, 0, file.size(), self._first, end - self._first, FOREIGN))

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
        synced = self._synced
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
        if self._full:
            self._walked[self._path.name] = tally.lost
        self._report.records += tally.records
        self._report.messages += tally.messages
        self._report.events += tally.events
        self._report.lost += tally.lost
        self._report.valid_bytes += hopper.walked

    def _damaged(self, hole: Hole, end: int) -> None:
        lost = max(0, end - hole.first) if hole.lost is None else hole.lost
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
