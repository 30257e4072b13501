"""One trip to the disk: everything appended since the last one, written and synced together.

The log hands a flush its writer and takes it back when the flush has run; in between nothing else touches it, so `run`
can be called in any thread. It never raises: the outcome stays in the flush.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.log.catalog import CatalogFile
from headrace.log.direct import WORTHWHILE
from headrace.log.disk import Disk, File, WriteOrder, write_atomically
from headrace.log.format import SEGMENT_HEADER_SIZE, SegmentHeader
from headrace.log.index import Directory, read_directory
from headrace.log.segment import Segment, segment_path
from headrace.model.batch import Batch, Buffer
from headrace.model.errors import StorageError

BLOCK = 4096
FILL_BYTES_MIN = 512 * 1024
FILL_FLUSHES = 32
AHEAD_BYTES = 512 * 1024
AHEAD_FLUSHES = 32


class Writer:
    """The end of the log on disk.

    `broken` means that the file's contents past `position` are not known, and that only a new segment, superseding
    whatever follows, can be trusted: a cut failed, a sync failed, or a new segment may or may not have got its name.
    """

    def __init__(self, directory: Path, disk: Disk, fill_bytes: int, catalog: CatalogFile) -> None:
        self.directory = directory
        self.disk = disk
        self.file: File | None = None
        self.position = 0
        self.broken = False
        self._catalog = catalog
        self._dirty = False
        self._filled = 0
        self._flushed_size = 0
        self._planned = (0, 0)
        self._zeros = memoryview(bytes(fill_bytes))

    def resume(self, segment: Segment) -> None:
        """Go on at the end of a recovered segment.

        What recovery read may be in the page cache only, left there by a process that was killed: sync it first.
        """
        self.file = self.disk.open(segment.path, writable=True)
        self.file.fdatasync()
        self.position = segment.size
        self._filled = self.file.size()

    def sync(self) -> None:
        """Sync the file; after a failure it is never trusted again."""
        assert self.file is not None
        try:
            self.file.fdatasync()
        except OSError:
            self.broken = True
            raise
        self._dirty = False

    def finish(self) -> None:
        """Leave a full segment whole: nothing behind its last record, everything synced."""
        assert self.file is not None
        self.file.truncate(self.position)
        self._filled = self.position
        self.sync()

    def append(self, buffers: Sequence[bytearray], size: int, *, sync: bool) -> None:
        """Write at the end, and sync if asked to, or leave the end where it was.

        Both are one call where nothing earlier waits for a sync. When that fails it may have been the sync, so that
        the file is never trusted again.

        Small writes that reach new ground fill some of it with zeros: syncing what does not grow the file is twice as
        fast, so that the next ones gain more than this one pays. Those on filled ground write their last block whole:
        the system need not read what is there first.
        """
        assert self.file is not None
        writes = self._plan(buffers, size)
        together = sync and not self._dirty
        try:
            self.file.pwritev(writes, self.position, sync=together)
        except OSError:
            self._retreat()
            self.broken = self.broken or together
            raise
        self.advance()
        self._dirty = not together
        if self._dirty and sync:
            self.sync()

    def order(self, buffers: Sequence[bytearray], size: int) -> WriteOrder | None:
        """What `append` with `sync` would do, if that is a single call; `advance` or `failed` is to follow it."""
        if self.file is None or self._dirty or size >= WORTHWHILE:
            return None
        return self.file.order(self._plan(buffers, size), self.position)

    def advance(self) -> None:
        """What was planned is written."""
        end, filled = self._planned
        self._flushed_size = end - self.position
        self.position, self._filled = end, filled

    def failed(self) -> None:
        """An order failed, by the write or by the sync: the file is never trusted again."""
        self._retreat()
        self.broken = True

    def claim_zeros(self) -> memoryview:
        """What to fill before flushes like the last one come to the end of filled ground; empty for nothing.

        One step after each small flush, refused or not: who has to fill ground in a flush takes several times as long.
        """
        size, self._flushed_size = self._flushed_size, 0
        ahead = 0 < size <= AHEAD_BYTES // AHEAD_FLUSHES and self._filled - self.position < AHEAD_BYTES
        if not ahead or self.broken or self._dirty:
            return self._zeros[:0]
        return self._zeros[: AHEAD_BYTES - self._filled % BLOCK]

    def fill(self, zeros: memoryview) -> None:
        """Write them behind the filled ground, and sync."""
        assert self.file is not None
        self.file.pwritev([zeros], self._filled, sync=True)
        self.filled(zeros)

    def order_fill(self, zeros: memoryview) -> WriteOrder | None:
        """What `fill` would do, if that is a single call; `filled` is to follow it unless it failed."""
        assert self.file is not None
        return self.file.order([zeros], self._filled)

    def filled(self, zeros: memoryview) -> None:
        """They are written."""
        self._filled += len(zeros)

    def _plan(self, buffers: Sequence[bytearray], size: int) -> list[Buffer]:
        end = self.position + size
        zeros = self._zeros_behind(end, size)
        self._planned = end, max(self._filled, end + len(zeros))
        return [*buffers, zeros] if zeros else [*buffers]

    def _zeros_behind(self, end: int, size: int) -> memoryview:
        """What a write of this size that ends there takes along."""
        if end <= self._filled:
            return self._zeros[: min(-end % BLOCK, self._filled - end)]
        if size >= WORTHWHILE:
            return self._zeros[:0]
        return self._zeros[: max(FILL_BYTES_MIN, FILL_FLUSHES * size)]

    def start_segment(self, header: SegmentHeader, carried: Sequence[bytearray]) -> Segment:
        """Begin a new segment holding the `carried` records.

        It is durable under its name, and in the catalog, before this returns: a log that lacks it later is damaged.
        """
        header = header._replace(log=self._catalog.catalog.log)
        path = segment_path(self.directory, header.first)
        self.broken = True
        write_atomically(self.disk, path, [header.encode(), *carried])
        self._catalog.begun(header.first)
        file = self.disk.open(path, writable=True)
        self.close()
        self.file = file
        self.position = self._filled = SEGMENT_HEADER_SIZE + sum(map(len, carried))
        self._dirty = False
        self.broken = False
        return Segment(path, header, header.first, SEGMENT_HEADER_SIZE)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def _retreat(self) -> None:
        """Cut off what a failed write left behind."""
        assert self.file is not None
        try:
            self.file.truncate(self.position)
            self._filled = self.position
            self.file.fdatasync()
        except OSError:
            self.broken = True


class Flush:
    """What one trip takes along, and afterwards what came of it.

    `carried` are visible records that were never synced: should a new segment have to supersede the present one from
    there on, it begins with them. `started` are the segments begun, in order; `sealed` is the sidecar's directory of
    the segment that was full.
    """

    def __init__(
        self,
        writer: Writer,
        records: list[bytearray],
        carried: list[bytearray],
        *,
        size: int,
        first: int,
        restart: int,
        created_us: int,
        sync: bool,
        full: Segment | None,
    ) -> None:
        self.records = records
        self.carried = carried
        self.size = size
        self.sync = sync
        self.error: StorageError | None = None
        self.started: list[Segment] = []
        self.sealed: Directory | None = None
        self.rolled = False
        self.position = 0
        self._writer = writer
        self._first = first
        self._restart = restart
        self._created_us = created_us
        self._full = full

    def run(self) -> None:
        """Do it all. Blocks on the disk; never raises OSError."""
        try:
            self._prepare()
            self.position = self._writer.position
            if self.records:
                self._writer.append(self.records, self.size, sync=self.sync)
            elif self.sync:
                self._writer.sync()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = StorageError(f"{type(error).__name__}: {error.strerror or error}")
        self._recover()

    def order(self) -> WriteOrder | None:
        """All that `run` would do, if that is one call of the system; `landed` or `failed` is to follow it."""
        writer = self._writer
        if writer.broken or self._full is not None or not self.records or not self.sync:
            return None
        self.position = writer.position
        return writer.order(self.records, self.size)

    def landed(self) -> None:
        """The order was carried out."""
        self._writer.advance()

    def failed(self, error: OSError) -> None:
        """The order failed. Blocks on the disk; never raises OSError."""
        self._writer.failed()
        self._give_up(error)

    def _prepare(self) -> None:
        """Make sure there is a segment that can take the records."""
        writer = self._writer
        if writer.broken:
            self._supersede()
        elif writer.file is None:
            self.started.append(writer.start_segment(SegmentHeader(self._first, self._created_us), ()))
        elif self._full is not None:
            writer.finish()
            self.rolled = True
            self.started.append(writer.start_segment(SegmentHeader(self._first, self._created_us), ()))
            self.sealed = self._seal(self._full)

    def _recover(self) -> None:
        """After a failure that left the segment untrusted, supersede it at once if the disk lets us."""
        if self._writer.broken:
            try:
                self._supersede()
            except OSError:
                return

    def _supersede(self) -> None:
        if self.rolled:
            self._restart, self.carried = self._first, []
        header = SegmentHeader(self._restart, self._created_us)
        self.started.append(self._writer.start_segment(header, self.carried))

    def _seal(self, segment: Segment) -> Directory | None:
        """Write the sidecar; a failure is no harm, start-up makes it again."""
        data = segment.encode_index()
        try:
            write_atomically(self._writer.disk, segment.index_path, [data])
        except OSError:
            return None
        return read_directory(lambda size, position: data[position : position + size])[0]


class Fill:
    """Zeros written ahead in a quiet moment.

    Should the disk refuse them, nothing has changed: the flush that comes to the end of the filled ground asks again.
    """

    def __init__(self, writer: Writer, zeros: memoryview) -> None:
        self._writer = writer
        self._zeros = zeros

    def run(self) -> None:
        """Do it. Blocks on the disk; never raises OSError."""
        with contextlib.suppress(OSError):
            self._writer.fill(self._zeros)

    def order(self) -> WriteOrder | None:
        """What `run` would do, if that is one call of the system; `landed` or `failed` is to follow it."""
        return self._writer.order_fill(self._zeros)

    def landed(self) -> None:
        """The order was carried out."""
        self._writer.filled(self._zeros)

    def failed(self, error: OSError) -> None:
        """The order failed, and nobody waits for it."""


class Flushed(NamedTuple):
    """What a flush achieved: batches now visible, or why not and which publishes are refused for it.

    `in_doubt`: the disk would not even take back what it had written of the refused ones, so that they could be seen
    after a crash, should one come before a flush succeeds.
    """

    batches: list[Batch]
    error: StorageError | None = None
    refused: Sequence[bytearray] = ()
    in_doubt: bool = False
