"""Staged files: rows of a transaction on disk, durable, and in nobody's sight until somebody commits them.

Knows files, receipts and how much is gathered before it is written; how rows become batches is told by `rows`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta

from headrace.feed.incoming import check_schema, taken_in, unreadable
from headrace.feed.messages import NAME_SIZE_MAX, Name, Number, Receipt
from headrace.feed.places import staged_name
from headrace.feed.rows import encode_plain
from headrace.log.disk import Disk, File
from headrace.log.format import crc32
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code

GATHERED_BYTES = 4 << 20
GATHERED_ROWS = 65_536


class Put(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the command of a DoPut says: part `part` of batch `batch` of a writer; `topic` for rows without one."""

    writer: Name
    batch: Number
    part: Annotated[str, Meta(max_length=NAME_SIZE_MAX)] = ""
    topic: str | None = None


def stage(
    disk: Disk,
    directory: Path,
    owner: str,
    put: Put,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    allow: Callable[[str], object],
    now: int,
) -> Receipt:
    """Store the rows in a file of their own; returns once they are durable.

    `allow` is asked for every topic they go to and raises what it likes.
    Raises BrokerError: INVALID or LIMIT for rows that cannot be messages, STORAGE when the disk fails. Nothing is left
    behind then.
    """
    check_schema(schema)
    path = directory / staged_name(owner, put.writer, put.batch, now)
    try:
        file = _StagedFile(disk.create(path))
    except OSError as error:
        raise _storage(error) from error
    try:
        for rows in _gathered(_taken_in(batches)):
            for part in encode_plain(rows, put.topic, allow):
                file.write(part.pieces, part.rows)
        file.sync()
        disk.sync_directory(directory)
    except BaseException as error:
        file.close()
        with suppress(OSError):
            disk.unlink(path)
        if isinstance(error, OSError):
            raise _storage(error) from error
        if isinstance(error, pa.ArrowException):
            raise unreadable(error) from error
        raise
    file.close()
    return Receipt(
        writer=put.writer, batch=put.batch, part=put.part, file=path.name, rows=file.rows, bytes=file.size, crc=file.crc
    )


class _StagedFile:
    """A file being written from the beginning to the end, with its checksum."""

    def __init__(self, file: File) -> None:
        self.rows = 0
        self.size = 0
        self.crc = 0
        self._file = file

    def write(self, pieces: list[Buffer], rows: int) -> None:
        """Append a part."""
        self.size += self._file.pwritev(pieces, self.size)
        for piece in pieces:
            self.crc = crc32(piece, self.crc)
        self.rows += rows

    def sync(self) -> None:
        """Return once everything is on stable storage."""
        self._file.fdatasync()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def _taken_in(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Every batch that comes, through the gate. What cannot be read is the sender's fault, an OSError not excepted."""
    coming = iter(batches)
    while True:
        try:
            batch = next(coming, None)
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(error) from error
        if batch is None:
            return
        yield from taken_in(batch)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth a part; big ones as they are."""
    waiting: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
        if size >= GATHERED_BYTES or rows >= GATHERED_ROWS:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, size, rows = [], 0, 0
    if rows:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _storage(error: OSError) -> BrokerError:
    return BrokerError(Code.STORAGE, f"cannot stage the rows: {error.strerror or error}")
