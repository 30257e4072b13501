"""Staged files on disk: checking them against their receipts, reading them in chunks, manifests, cleaning up.

Everything here blocks and belongs in a thread. Knows batches, not what a transaction means.
"""

import contextlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.feed.messages import Receipt
from headrace.feed.places import (
    MANIFEST_SUFFIX,
    belongs,
    created_us,
    manifest_name,
    transaction_prefix,
)
from headrace.log.disk import Disk, File, write_atomically
from headrace.log.format import TEMPORARY_SUFFIX, crc32
from headrace.model.batch import HEADER, HEADER_SIZE, PART_BATCH, Batch
from headrace.model.errors import BrokerError, Code, StorageError
from headrace.model.marks import marked_offsets
from headrace.model.names import REDRIVEN_TOPIC
from headrace.model.parts import RECORD_HEADER_SIZE

RECORD_BYTES_MAX = 4 << 20
RECORD_PARTS_MAX = 1024
PART_BYTES_MAX = 64 << 20
ABANDONED_AFTER_US = 86_400 * 1_000_000

_TIMESTAMP = struct.Struct("<q")
_TIMESTAMP_AT = 16


class StagedFile(msgspec.Struct, frozen=True, array_like=True):
    """A staged file of a transaction."""

    name: str
    size: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction as it will be written; on disk, its manifest.

    `cuts` are places in the files put end to end: a chunk goes from each to the next. `redrives`: some of the batches
    are copies of dead letters, each followed by the mark that names them.
    """

    owner: str
    writer: str
    batch: int
    files: tuple[StagedFile, ...]
    cuts: tuple[int, ...]
    rows: int
    redrives: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Who writes."""
        return self.owner, self.writer

    @property
    def chunks(self) -> int:
        """How many records it takes."""
        return len(self.cuts) - 1

    @property
    def prefix(self) -> str:
        """How the names of its files begin."""
        return transaction_prefix(self.owner, self.writer, self.batch)


@dataclass(slots=True)
class StagedChunk:
    """The parts of one record behind the free bytes of its header; `parts` tells where each begins."""

    record: bytearray
    parts: list[int]
    rows: int

    def stamp(self, now: int) -> None:
        """Give every batch its time."""
        for at in self.parts:
            _TIMESTAMP.pack_into(self.record, at + _TIMESTAMP_AT, now)

    def batches(self) -> Iterator[Batch]:
        """The batches, without offsets."""
        for at in self.parts:
            yield Batch(self.record, at, 0)


class Staging:
    """The staging directory of one broker. A transaction of more than `record_bytes` takes several records."""

    def __init__(self, directory: Path, disk: Disk, *, record_bytes: int = RECORD_BYTES_MAX) -> None:
        self._directory = directory
        self._disk = disk
        self._record_bytes = record_bytes

    def prepare(self) -> list[Plan]:
        """Make the directory, and read the manifests of transactions that are to be finished.

        Raises StorageError for a manifest that makes no sense.
        """
        self._disk.make_directory(self._directory)
        self._disk.sync_directory(self._directory.parent)
        names = sorted(self._disk.list(self._directory))
        self.drop([name for name in names if name.endswith(MANIFEST_SUFFIX + TEMPORARY_SUFFIX)])
        return [self._manifest(name) for name in names if name.endswith(MANIFEST_SUFFIX)]

    def plan(self, owner: str, writer: str, batch: int, receipts: Sequence[Receipt]) -> tuple[Plan, Sequence[int]]:
        """The transaction of these staged files, all of them checked, and the dead letters it redrives.

        Raises BrokerError(INVALID) for a receipt that does not fit its file, OSError when the disk fails.
        """
        prefix = transaction_prefix(owner, writer, batch)
        cutter = _Cutter(self._record_bytes)
        for receipt in receipts:
            if not belongs(receipt.file, prefix):
                raise BrokerError(Code.INVALID, f"part {receipt.part!r} was not staged for batch {batch} of {writer}")
            self._check(receipt, cutter)
        files = tuple(StagedFile(receipt.file, receipt.bytes) for receipt in receipts)
        if len({file.name for file in files}) < len(files):
            raise BrokerError(Code.INVALID, "a receipt is given twice")
        rows = sum(receipt.rows for receipt in receipts)
        plan = Plan(
            owner=owner, writer=writer, batch=batch, files=files, cuts=cutter.cuts(), rows=rows,
            redrives=bool(cutter.letters),
        )  # fmt: skip
        return plan, cutter.letters

    def promise(self, plan: Plan) -> None:
        """Write the manifest: from now on the transaction will be finished, come what may."""
        path = self._directory / manifest_name(plan.owner, plan.writer, plan.batch)
        write_atomically(self._disk, path, [msgspec.json.encode(plan)])

    def unpromise(self, plan: Plan) -> None:
        """Take back a manifest that could not be written."""
        path = self._directory / manifest_name(plan.owner, plan.writer, plan.batch)
        for each in (path, path.with_name(path.name + TEMPORARY_SUFFIX)):
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(each)

    def check_present(self, plan: Plan) -> None:
        """Raises FileNotFoundError when a file of the transaction is gone."""
        for file in plan.files:
            self._disk.open(self._directory / file.name).close()

    def read(self, plan: Plan, number: int) -> StagedChunk:
        """One chunk. Raises OSError when the disk fails or a file is gone."""
        first, last = plan.cuts[number], plan.cuts[number + 1]
        record = bytearray(RECORD_HEADER_SIZE)
        begins = 0
        for file in plan.files:
            start, end = max(first - begins, 0), min(last - begins, file.size)
            if start < end:
                record += self._range(file.name, start, end)
            begins += file.size
        parts = []
        rows = 0
        at = RECORD_HEADER_SIZE
        while at < len(record):
            parts.append(at)
            size, *_, count, _topic = _HEAD.unpack_from(record, at)
            rows += count
            at += size
        return StagedChunk(record, parts, rows)

    def forget(self, plan: Plan) -> None:
        """The transaction is in the log: remove its manifest, then everything that was staged for it."""
        self.unpromise(plan)
        names = self._disk.list(self._directory)
        self.drop([name for name in names if belongs(name, plan.prefix)])

    def drop(self, names: Sequence[str]) -> None:
        """Remove staged files; those that are gone already are nothing to do."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._directory / name)

    def sweep(self, now: int, kept: frozenset[str]) -> int:
        """Remove what was staged a day ago and never committed, but for these files; how many there were."""
        old = [
            name
            for name in self._disk.list(self._directory)
            if (made := created_us(name)) is not None and made < now - ABANDONED_AFTER_US and name not in kept
        ]
        self.drop(old)
        return len(old)

    def _check(self, receipt: Receipt, cutter: "_Cutter") -> None:
        """Read a file once, from part to part. Raises BrokerError(INVALID) when it is not what the receipt says."""
        wrong = BrokerError(Code.INVALID, f"part {receipt.part!r} is not what its receipt says; stage it again")
        try:
            file = self._disk.open(self._directory / receipt.file)
        except FileNotFoundError:
            raise BrokerError(Code.INVALID, f"part {receipt.part!r} is not staged any more; stage it again") from None
        with contextlib.closing(file):
            if file.size() != receipt.bytes:
                raise wrong
            crc = at = 0
            while at < receipt.bytes:
                data = _window(file, at, receipt.bytes)
                used = cutter.take(data)
                if not used:
                    raise wrong
                crc = crc32(memoryview(data)[:used], crc)
                at += used
            if crc != receipt.crc:
                raise wrong

    def _manifest(self, name: str) -> Plan:
        with contextlib.closing(self._disk.open(self._directory / name)) as file:
            content = file.pread(file.size(), 0)
        try:
            return msgspec.json.decode(content, type=Plan)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            where = self._directory / name
            raise StorageError(f"{where} is damaged ({error}); without it a transaction stays unfinished") from error

    def _range(self, name: str, start: int, end: int) -> bytes:
        with contextlib.closing(self._disk.open(self._directory / name)) as file:
            data = file.pread(end - start, start)
        if len(data) < end - start:
            raise OSError(f"{name} is shorter than it was")
        return data


_HEAD = struct.Struct("<IBBBBIH")
assert HEADER.format.startswith(_HEAD.format)


def _window(file: File, at: int, end: int) -> bytes:
    """Bytes from a part's beginning on: as many whole parts as a record may have, or one that is bigger."""
    data = file.pread(min(RECORD_BYTES_MAX, end - at), at)
    size = _HEAD.unpack_from(data)[0] if len(data) >= _HEAD.size else 0
    if len(data) < size <= min(PART_BYTES_MAX, end - at):
        data = file.pread(size, at)
    return data


class _Cutter:
    """Decides where records begin: whole parts, and a mark always together with the copies before it."""

    def __init__(self, record_bytes: int) -> None:
        self._record_bytes = record_bytes
        self.letters: array[int] = array("Q")
        self._cuts = [0]
        self._size = 0
        self._parts = 0
        self._at = 0
        self._last = 0

    def take(self, data: bytes) -> int:
        """Note the whole parts at the beginning of the data; how many bytes they are, 0 for none or nonsense."""
        at = 0
        while at + HEADER_SIZE <= len(data):
            size, kind, _, _, _, count, topic_size = _HEAD.unpack_from(data, at)
            if size % 8 or size < HEADER_SIZE or kind != PART_BATCH or not count:
                return 0
            if at + size > len(data):
                break
            is_mark = data.startswith(_MARK, at + HEADER_SIZE) and topic_size == len(_MARK)
            if is_mark:
                batch = Batch(data, at, 0)
                for index in range(batch.count):
                    self.letters.extend(marked_offsets(batch.value(index)))
            self._note(size, glued=is_mark)
            at += size
        return at

    def cuts(self) -> tuple[int, ...]:
        """Where the chunks begin, and where the last one ends."""
        return (*self._cuts, self._at)

    def _note(self, size: int, *, glued: bool) -> None:
        full = self._size + size > self._record_bytes or self._parts >= RECORD_PARTS_MAX
        if full and self._parts > int(glued):
            begins = self._last if glued else self._at
            self._cuts.append(begins)
            self._size = self._at - begins
            self._parts = int(glued)
        self._last = self._at
        self._at += size
        self._size += size
        self._parts += 1


_MARK = REDRIVEN_TOPIC.encode()
