"""The durable log: append in the event loop, flush in a thread, read what is as durable as promised.

One thread owns the log and calls everything here; only `Flush.run`, `Fill.run`, `SnapshotWrite.run` and `Removal.run`
block on writing, and may run elsewhere, one at a time. The log knows records, batches and offsets; what events mean is
none of its business.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from headrace.log.catalog import Catalog, CatalogFile, LossesWrite
from headrace.log.committed import CommittedFile
from headrace.log.disk import Disk
from headrace.log.extents import SegmentMap
from headrace.log.flush import Fill, Flush, Flushed, Writer
from headrace.log.format import LOCK_NAME, SYNCED_MARK, part_timestamp, record_span, stamp
from headrace.log.reader import Reader, Record
from headrace.log.recovery import Recovered, recover, take_over
from headrace.log.repair import repair_locked
from headrace.log.report import Damage, LogDamaged, Loss
from headrace.log.retention import Removal, expired_segments
from headrace.log.scrub import Piece, Scrub
from headrace.log.segment import Segment
from headrace.log.settings import LogSettings, SyncMode
from headrace.log.snapshot import Snapshot, SnapshotWrite
from headrace.log.topics import Topics
from headrace.model.batch import Batch
from headrace.model.errors import StorageError
from headrace.model.parts import RECORD_HEADER, RECORD_HEADER_SIZE, batches_in

_MICROSECONDS = 1_000_000


class Log:
    """A log directory, open for appending. Implements the model's BatchSource."""

    def __init__(
        self, directory: Path, disk: Disk, settings: LogSettings, recovered: Recovered, catalog: CatalogFile
    ) -> None:
        segments, snapshot = recovered.segments, recovered.snapshot
        self.failing: StorageError | None = None
        self.report = recovered.report
        self.appends_total = 0
        self.bytes_total = 0
        self.snapshot = (snapshot.offset, snapshot.state) if snapshot else None
        self._catalog = catalog
        self._lock = ExitStack()
        self._directory = directory
        self._disk = disk
        self._settings = settings
        self._segments = segments
        self._reader = Reader(disk)
        self._topics = Topics(self._reader, settings.tail_cache_bytes)
        self._writer = Writer(directory, disk, settings.fill_bytes, catalog)
        for segment in segments:
            self._topics.add_segment(segment)
        if segments:
            self._writer.resume(segments[-1])
        self._durable = self._synced = self._next = segments[-1].end if segments else 0
        self._records: list[bytearray] = []
        self._refusable: list[bool] = []
        self._pending_bytes = 0
        self._flush: Flush | None = None
        self._flush_refusable: list[bool] = []
        self._flush_began = 0
        self._unsynced: list[bytearray] = []
        self._unsynced_since: int | None = None
        self._snapshot_offsets = recovered.snapshots.good
        self._bytes_since_snapshot = 0
        self._committed = CommittedFile(directory, disk)
        self._show(changed=True)

    @classmethod
    def open(
        cls,
        directory: Path,
        disk: Disk,
        settings: LogSettings,
        *,
        accept_damage: bool = False,
        full_scan: bool = False,
        now: int = 0,
    ) -> "Log":
        """The log in this directory, recovered; created when there is none.

        `accept_damage` is the operator's word: damage is repaired first, keeping everything else, and what is lost is
        written down with the time `now`. `full_scan` checks every record instead of those after the newest snapshot.
        Raises LogDamaged with the report, StorageError when the disk fails.
        """
        with ExitStack() as undo:
            try:
                disk.make_directory(directory)
                lock = disk.lock(directory / LOCK_NAME)
                undo.callback(lock.close)
                recovered = recover(directory, disk, full=full_scan)
                report = recovered.report
                if report.damage:
                    if not accept_damage:
                        raise LogDamaged(report)
                    report = repair_locked(directory, disk, now=now)
                    recovered = recover(directory, disk)
                log = cls(directory, disk, settings, recovered, take_over(directory, disk, recovered))
            except BlockingIOError as error:
                raise StorageError(
                    f"another process has the log in {directory} open; stop it or choose another data directory"
                ) from error
            except OSError as error:
                raise StorageError(f"cannot open the log in {directory}: {error}") from error
            log.report = report
            log._lock = undo.pop_all()
            return log

    @property
    def first_offset(self) -> int:
        """The oldest offset still kept."""
        return self._segments[0].first if self._segments else 0

    @property
    def next_offset(self) -> int:
        """The offset the next append gets."""
        return self._next

    @property
    def durable_offset(self) -> int:
        """Everything below is as durable as promised, and visible."""
        return self._durable

    @property
    def synced_offset(self) -> int:
        """Everything below is on stable storage, whatever the policy."""
        return self._synced

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet flushed, those in flight included."""
        return self._pending_bytes + (self._flush.size if self._flush else 0)

    @property
    def sync_due_us(self) -> int | None:
        """When `begin_flush` wants to be called though nothing is appended; only for the policy interval_ms."""
        if self._unsynced_since is None or self._settings.sync.mode is not SyncMode.INTERVAL_MS:
            return None
        return self._unsynced_since + 1000 * self._settings.sync.n

    @property
    def snapshot_due(self) -> bool:
        """Whether enough was written since the last snapshot to want another."""
        return self._bytes_since_snapshot >= self._settings.snapshot_bytes

    @property
    def damage(self) -> list[Damage]:
        """Records found bad while reading, since start-up."""
        return self._reader.damage

    @property
    def has_unreported_damage(self) -> bool:
        """Whether damage was met that nobody has asked for."""
        return bool(self._reader.unreported)

    def take_damage(self) -> list[Damage]:
        """The damage that was met since the last call."""
        found, self._reader.unreported = self._reader.unreported, []
        return found

    def note_damage(self, found: Damage) -> None:
        """Damage was met by somebody else who read the files."""
        self._reader.note(found)

    @property
    def catalog(self) -> Catalog:
        """Which log this is, and what is known to be lost."""
        return self._catalog.catalog

    @property
    def size_bytes(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    def append(self, record: bytearray, *, refusable: bool) -> int:
        """Give a record its offsets and queue it for the next flush; returns the first of them.

        `record` is RECORD_HEADER_SIZE free bytes and then its parts, and belongs to the log from now on. `refusable`:
        it is a publish and is dropped when the disk fails; other records are kept, and then get new offsets.
        """
        self.appends_total += 1
        self.bytes_total += len(record)
        return self._queue(record, refusable=refusable)

    def begin_flush(self, now: int = 0, *, sync: bool = False) -> Flush | None:
        """Everything appended so far, ready to be run; None when there is nothing to do or a flush is under way.

        `sync` demands what the policy might put off.
        """
        if self._flush is not None:
            return None
        waited = now - self._unsynced_since if self._unsynced_since is not None else 0
        policy = self._settings.sync
        unsynced = self._next - self._synced
        wanted = sync or (unsynced > 0 and policy.wants_sync(unsynced, waited))
        if not self._records and not (wanted and unsynced) and self.failing is None:
            return None
        if self._records and self._synced == self._durable:
            stamp(self._records[0], self._durable, mark=SYNCED_MARK)
        active = self._segments[-1] if self._segments else None
        limit = self._settings.segment_bytes
        full = (
            active is not None
            and active.end > active.first
            and (active.size + self._pending_bytes > limit or not active.header.log)
        )
        self._flush = Flush(
            self._writer,
            self._records,
            self._unsynced,
            size=self._pending_bytes,
            first=self._durable,
            restart=self._synced if self._unsynced else self._durable,
            created_us=self._created_us(),
            sync=wanted and (active is not None or bool(self._records)),
            full=active if full and self._records else None,
        )
        self._flush_refusable, self._flush_began = self._refusable, now
        self._records, self._refusable, self._pending_bytes = [], [], 0
        return self._flush

    def end_flush(self, flush: Flush) -> Flushed:
        """Take in the outcome of a flush that has run: show its batches, or refuse its publishes."""
        assert flush is self._flush, "flushes end in the order in which they began"
        self._flush = None
        if flush.rolled:
            self._all_synced()
        for segment in flush.started:
            self._start(segment, flush)
        self.failing = flush.error
        if flush.error is not None:
            self._show(changed=bool(flush.started))
            return self._refuse(flush)
        batches = self._reveal(flush)
        if flush.sync:
            self._all_synced()
        else:
            self._unsynced += flush.records
            if self._unsynced_since is None:
                self._unsynced_since = self._flush_began
        self._show(changed=bool(flush.started))
        return Flushed(batches)

    def begin_fill(self) -> Fill | None:
        """Ground for the next small flushes, ready to be filled; None when there is enough. Not while a flush runs."""
        zeros = self._writer.claim_zeros()
        return Fill(self._writer, zeros) if zeros else None

    def batch_at(self, topic: str, offset: int) -> Batch | None:
        """The batch of the topic that holds this offset, else its first batch after it, else None."""
        return self._topics.batch_at(topic, offset)

    def topic_end(self, topic: str) -> int:
        """The offset after the topic's last message; 0 when it has none."""
        return self._topics.end(topic)

    def next_in(self, topic: str, offset: int) -> int | None:
        """An offset before which the topic has no message from `offset` on, None when it has none; reads no file."""
        return self._topics.next_in(topic, offset)

    def count_from(self, topic: str, offset: int) -> int:
        """How many messages of the topic have this offset or a later one."""
        return self._topics.count_from(topic, offset)

    def topics(self) -> list[str]:
        """The topics that have messages, sorted."""
        return self._topics.names()

    def lost_between(self, topic: str, start: int, end: int) -> list[tuple[int, int]]:
        """Where messages of the topic were lost to damage that begins in these offsets: first offset, how many.

        Only damage that was met is known; whoever was given what lies behind it has met it.
        """
        return self._topics.lost_between(topic, start, end) if self._reader.damage else []

    def iter_records(self, offset: int, to: int | None = None) -> Iterator[Record]:
        """The visible records from the one that holds `offset` up to, not including, offset `to`."""
        to = self._durable if to is None else min(to, self._durable)
        for segment in list(self._segments):
            if segment.end > offset and segment.first < to:
                for record in self._reader.records(segment, offset):
                    if record.first >= to:
                        return
                    yield record

    def begin_snapshot(self, state: bytes, offset: int) -> SnapshotWrite:
        """A snapshot of the state folded from everything below `offset`, ready to be run.

        `offset` must be synced: end a `begin_flush(sync=True)` first where the policy puts syncs off.
        """
        assert offset <= self._synced, "a snapshot covers only what is on stable storage"
        index = self._segments[-1].encode_index() if self._segments and self._synced == self._durable else b""
        snapshot = Snapshot(offset, state, self._synced, index, self._catalog.catalog.log)
        return SnapshotWrite(self._directory, self._disk, snapshot, self._catalog)

    def end_snapshot(self, write: SnapshotWrite) -> None:
        """Take in a snapshot that was written. Raises StorageError when it failed; the log goes on without."""
        if write.error is not None:
            raise write.error
        self._snapshot_offsets = write.kept
        self._bytes_since_snapshot = 0

    def write_snapshot(self, state: bytes, offset: int) -> None:
        """Begin, run and end a snapshot here and now. Raises StorageError when the disk fails."""
        write = self.begin_snapshot(state, offset)
        write.run()
        self.end_snapshot(write)

    def begin_losses(self, damage: Sequence[Damage], now: int, *, given_up: bool = False) -> LossesWrite:
        """Damage that was met, to be written down by the result's `run`."""
        return LossesWrite(self._catalog, [Loss(each, now, given_up) for each in damage])

    def begin_scrub(self) -> Scrub:
        """A pass over everything that is sealed or synced."""
        pieces = [Piece(each.path, each.first, each.end, each.size, sealed=True) for each in self._segments]
        if pieces:
            last = pieces.pop()
            if self._synced == self._durable:
                pieces.append(last._replace(sealed=False))
        return Scrub(self._disk, pieces)

    def expiring_below(self, now: int, needed_from: int) -> int:
        """The offset below which `retire`, called now, would forget everything; 0 when it would forget nothing."""
        expired = self._expired(now, needed_from)
        return expired[-1].end if expired else 0

    def retire(self, now: int, needed_from: int) -> Removal | None:
        """Forget sealed segments older than the retention, to be removed by the result's `run`.

        None is forgotten that a snapshot still builds upon, or, unless retention is hard, that holds offset
        `needed_from` or later ones.
        """
        expired = self._expired(now, needed_from)
        for segment in expired:
            self._forget(segment)
        self._show(changed=bool(expired))
        return Removal(self._directory, self._disk, expired, self._catalog) if expired else None

    def _expired(self, now: int, needed_from: int) -> list[Segment]:
        if not self._snapshot_offsets:
            return []
        below = self._snapshot_offsets[-1]
        if not self._settings.retention_hard:
            below = min(below, needed_from)
        before = now - self._settings.retention_s * _MICROSECONDS
        return expired_segments(self._segments, before_us=before, below=below)

    def close(self) -> None:
        """Close the files. What was appended and not flushed is gone."""
        self._writer.close()
        self._reader.close()
        self._lock.close()

    def _queue(self, record: bytearray, *, refusable: bool) -> int:
        size = len(record)
        span = record_span(record, RECORD_HEADER_SIZE, size)
        assert span and not size % 8, "a record has parts that add up"  # noqa: PT018 - one thought
        first = self._next
        stamp(record, first)
        self._next = first + span
        self._records.append(record)
        self._refusable.append(refusable)
        self._pending_bytes += size
        return first

    def _created_us(self) -> int:
        if self._records:
            return part_timestamp(self._records[0], RECORD_HEADER_SIZE)
        return self._segments[-1].header.created_us if self._segments else 0

    def _start(self, segment: Segment, flush: Flush) -> None:
        """Make a segment the flush began the active one; carried records move into it."""
        segment.map = SegmentMap()
        carried = [] if flush.rolled else flush.carried
        if self._segments:
            self._leave(self._segments[-1], segment.first, carried, flush)
        self._segments.append(segment)
        for record in carried:
            for batch in self._note(record, segment):
                self._topics.move_batch(batch.topic, segment)
        self._all_synced()

    def _leave(self, old: Segment, end: int, carried: list[bytearray], flush: Flush) -> None:
        """Seal the active segment, or what is left of it when a new one supersedes it from `end` on."""
        if old.first == end:
            self._forget(old)
            return
        assert old.map is not None
        for record in reversed(carried):
            for batch in reversed(_batches(record, RECORD_HEADER.unpack_from(record)[0])):
                old.map.topics[batch.topic].take_back(batch.base, batch.count)
        old.map.cut(end)
        old.end = end
        if flush.sealed is not None:
            old.directory, old.map = flush.sealed, None

    def _forget(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self._topics.remove_segment(segment)
        self._reader.forget(segment)

    def _reveal(self, flush: Flush) -> list[Batch]:
        """Make the records of a successful flush visible."""
        batches: list[Batch] = []
        for record in flush.records:
            segment = self._segments[-1]
            found = self._note(record, segment)
            for batch in found:
                self._topics.add_batch(batch, segment)
            batches += found
        if flush.records:
            self._durable = self._segments[-1].end
            self._bytes_since_snapshot += flush.size
        return batches

    def _note(self, record: bytearray, segment: Segment) -> list[Batch]:
        """Note a record that is at the end of the segment's file; returns its batches."""
        assert segment.map is not None
        first, size = segment.end, len(record)
        batches = _batches(record, first)
        segment.map.note_record(segment.size, first)
        for batch in batches:
            segment.map.note_batch(batch.topic, segment.size, size, batch.base, batch.count)
        if len(batches) == 1 and batches[0].size == size - RECORD_HEADER_SIZE:
            segment.end = batches[0].end
        else:
            segment.end = first + record_span(record, RECORD_HEADER_SIZE, size)
        segment.size += size
        return batches

    def _refuse(self, flush: Flush) -> Flushed:
        """Drop every publish that is not visible yet; number the other records anew."""
        records = flush.records + self._records
        refusable = self._flush_refusable + self._refusable
        kept = [record for record, drop in zip(records, refusable, strict=True) if not drop]
        refused = [record for record, drop in zip(records, refusable, strict=True) if drop]
        self._next = self._durable
        self._records, self._refusable, self._pending_bytes = [], [], 0
        for record in kept:
            self._queue(record, refusable=False)
        return Flushed([], flush.error, refused, in_doubt=self._writer.broken)

    def _show(self, *, changed: bool) -> None:
        """Tell other processes which offsets there are, and whether the segments are not those of the last time."""
        self._committed.write(self.first_offset, self._durable, self._synced, changed=changed)

    def _all_synced(self) -> None:
        self._synced = self._durable
        self._unsynced = []
        self._unsynced_since = None


def _batches(record: bytearray, first: int) -> list[Batch]:
    """The batches in a record that begins with offset `first`."""
    return batches_in(record, RECORD_HEADER_SIZE, len(record), first)
