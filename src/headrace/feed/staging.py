"""Staged files: rows of a transaction on disk, durable, and in nobody's sight until somebody commits them.

Knows files and receipts; how rows become batches is told by `rows`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta

from headrace.feed.incoming import check_schema, taken_in, unreadable
from headrace.feed.messages import NAME_SIZE_MAX, Name, Number, Receipt
from headrace.feed.places import staged_name
from headrace.feed.room import Room
from headrace.feed.rows import encode_plain
from headrace.log.disk import Disk, File
from headrace.log.format import crc32
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code

GATHERED_BYTES = 4 << 20
GATHERED_ROWS = 65_536
"""So much is worth a part."""


class Put(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the command of a DoPut says: part `part` of batch `batch` of a writer; `topic` for rows without one."""

    writer: Name
    batch: Number
    part: Annotated[str, Meta(max_length=NAME_SIZE_MAX)] = ""
    topic: str | None = None


class Upload:
    """Rows on their way into a file of their own. Ends by `finish` or by `abandon`; one thread at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        owner: str,
        put: Put,
        schema: pa.Schema,
        *,
        allow: Callable[[str], object],
        now: int,
        room: Room | None = None,
    ) -> None:
        """`allow` is asked for every topic the rows go to and raises what it likes; `room` is where they must fit in.

        Raises BrokerError: INVALID for columns that make no messages, LIMIT for a file more than the owner may stage,
        STORAGE when the disk fails.
        """
        check_schema(schema)
        self._disk = disk
        self._directory = directory
        self._put = put
        self._allow = allow
        self._path = directory / staged_name(owner, put.writer, put.batch, now)
        self._room = (room or Room(directory)).begin(owner)
        try:
            self._file: _StagedFile | None = _StagedFile(disk.create(self._path))
        except OSError as error:
            self._room.end()
            raise _storage(error) from error

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Take these rows in and append them, those of one topic in as few parts as is sensible.

        Raises BrokerError: INVALID or LIMIT for rows that cannot be messages, LIMIT for more than the owner may stage,
        STORAGE when the disk fails.
        """
        file = self._file
        if file is None:
            return
        try:
            for rows in _gathered(chain.from_iterable(map(taken_in, batches))):
                for part in encode_plain(rows, self._put.topic, self._allow):
                    self._room.grow(sum(map(len, part.pieces)))
                    file.write(part.pieces, part.rows)
        except OSError as error:
            raise _storage(error) from error
        except pa.ArrowException as error:
            raise unreadable(error) from error

    def finish(self) -> Receipt:
        """Returns once everything is durable. Raises BrokerError(STORAGE)."""
        file, put = self._file, self._put
        assert file is not None
        try:
            file.sync()
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise _storage(error) from error
        self._file = None
        file.close()
        self._room.end()
        return Receipt(
            writer=put.writer, batch=put.batch, part=put.part, file=self._path.name,
            rows=file.rows, bytes=file.size, crc=file.crc,
        )  # fmt: skip

    def abandon(self) -> None:
        """Leave nothing behind, unless it is finished."""
        self._room.end()
        file, self._file = self._file, None
        if file is not None:
            file.close()
            with suppress(OSError):
                self._disk.unlink(self._path)


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
