"""Staged files on disk: checking them against their receipts, reading them in chunks, manifests, cleaning up.

Everything here blocks and belongs in a thread. Knows batches, not what a transaction means. A file is not trusted,
whoever is said to have written it: every part of it is looked at whole before it is decided upon, and once more as it
is read to go into the log.
"""

import contextlib
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.feed.messages import Receipt
from headrace.feed.places import (
    MANIFEST_SUFFIX,
    belongs,
    created_us,
    prefix_of,
    transaction_prefix,
)
from headrace.kernels.gate import REASONS, Fault, check_part
from headrace.log.disk import Disk, File, rename_aside
from headrace.log.format import TEMPORARY_SUFFIX, crc32
from headrace.model.batch import HEADER, HEADER_SIZE, Batch, Protocol
from headrace.model.errors import BrokerError, Code
from headrace.model.marks import MARKED_MAX, marked_offsets
from headrace.model.names import REDRIVEN_TOPIC, check_topic, is_own_topic
from headrace.model.parts import RECORD_HEADER_SIZE, MalformedPart
from headrace.server.manifests import (
    STAGING,
    Found,
    Plan,
    StagedFile,
    both_names,
    check_files,
    read_manifests,
    write_manifest,
)

RECORD_BYTES_MAX = 4 << 20
RECORD_PARTS_MAX = 1024
PART_BYTES_MAX = 64 << 20
ABANDONED_AFTER_US = 86_400 * 1_000_000

_TIMESTAMP = struct.Struct("<q")
_TIMESTAMP_AT = 16


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
        self._done: set[str] = set()

    def prepare(self) -> Found:
        """Make the directory, and read the manifests of transactions that are to be finished.

        Raises OSError, and StorageError for a manifest of a later version.
        """
        self._disk.make_directory(self._directory)
        self._disk.sync_directory(self._directory.parent)
        names = sorted(self._disk.list(self._directory))
        self.drop([name for name in names if name.endswith(MANIFEST_SUFFIX + TEMPORARY_SUFFIX)])
        return read_manifests(self._directory, self._disk, names)

    def set_aside(self, manifest: str) -> None:
        """Take a manifest that makes no sense, and its copy, out of the way. Raises OSError."""
        there = self._disk.list(self._directory)
        for name in both_names(manifest):
            if name in there:
                rename_aside(self._disk, self._directory / name)

    def plan(
        self,
        owner: str,
        writer: str,
        batch: int,
        receipts: Sequence[Receipt],
        allows: Callable[[str], bool] = lambda _: True,
    ) -> tuple[Plan, Sequence[int]]:
        """The transaction of these staged files, all of them checked, and the dead letters it redrives.

        `allows` says of a topic whether the owner may publish to it. Raises BrokerError: INVALID for a receipt that
        does not fit its file, or a file that is not as we make them; FORBIDDEN for topics; OSError when the disk fails.
        """
        prefix = transaction_prefix(owner, writer, batch)
        cutter = _Cutter(self._record_bytes, allows)
        for receipt in receipts:
            if not belongs(receipt.file, prefix):
                raise BrokerError(Code.INVALID, f"part {receipt.part!r} was not staged for batch {batch} of {writer}")
            self._check(receipt, cutter)
        files = tuple(StagedFile(receipt.file, receipt.bytes, receipt.crc) for receipt in receipts)
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
        write_manifest(self._directory, self._disk, plan)

    def unpromise(self, plan: Plan) -> None:
        """Take back a manifest that could not be written, or is not needed any more.

        The copy, which was never synced, goes first: after a power failure there is none, or the first is whole.
        """
        for name in plan.names[::-1]:
            for each in (name, name + TEMPORARY_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._directory / each)

    def check_whole(self, plan: Plan) -> None:
        """See whether the files are what they were when the transaction was decided.

        Raises BrokerError(UNKNOWN) when one of them is gone or damaged; it is kept then. OSError when the disk fails.
        """
        damage = check_files(self._directory, self._disk, plan)
        if damage is not None:
            name = damage.segment.removeprefix(f"{STAGING}/")
            if name in self._disk.list(self._directory):
                rename_aside(self._disk, self._directory / name)
            raise BrokerError(Code.UNKNOWN, str(damage))

    def read(self, plan: Plan, number: int) -> StagedChunk:
        """One chunk, every part of it sound.

        Raises OSError when the disk fails or a file is gone, BrokerError(UNKNOWN) when one is damaged.
        """
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
            try:
                part = _sound(record, at)
            except MalformedPart as error:
                raise _damaged(", ".join(file.name for file in plan.files), str(error)) from None
            parts.append(at)
            rows += part.count
            at += part.size
        return StagedChunk(record, parts, rows)

    def forget(self, plan: Plan) -> None:
        """The transaction is in the log: remove its manifest, then its files; `tidy` looks for others of it."""
        self.unpromise(plan)
        self.drop([file.name for file in plan.files])
        self._done.add(plan.prefix)

    def tidy(self) -> None:
        """Remove what was staged for transactions that are done without being of them: attempts that were repeated.

        One look at the directory for all of them, apart from any commit: it holds what others staged.
        """
        done, self._done = self._done, set()
        if done:
            names = self._disk.list(self._directory)
            self.drop([name for name in names if prefix_of(name) in done and created_us(name) is not None])

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
            rows = cutter.rows
            cutter.begin_file()
            while at < receipt.bytes:
                data = _window(file, at, receipt.bytes)
                try:
                    used = cutter.take(data)
                except MalformedPart as error:
                    raise BrokerError(Code.INVALID, f"{wrong.detail} ({error})") from None
                crc = crc32(memoryview(data)[:used], crc)
                at += used
            if crc != receipt.crc or cutter.rows - rows != receipt.rows:
                raise wrong

    def _range(self, name: str, start: int, end: int) -> bytes:
        with contextlib.closing(self._disk.open(self._directory / name)) as file:
            data = file.pread(end - start, start)
        if len(data) < end - start:
            raise _damaged(name, "it is shorter than it was")
        return data


_HEAD = struct.Struct("<I")
_TOPIC_SIZE = struct.Struct("<H")


def _window(file: File, at: int, end: int) -> bytes:
    """Bytes from a part's beginning on: as many whole parts as a record may have, or one that is bigger."""
    data = file.pread(min(RECORD_BYTES_MAX, end - at), at)
    size = _HEAD.unpack_from(data)[0] if len(data) >= _HEAD.size else 0
    if len(data) < size <= min(PART_BYTES_MAX, end - at):
        data = file.pread(size, at)
    return data


class _Part(NamedTuple):
    """What decides about a staged part."""

    size: int
    count: int  # type: ignore[assignment]  # shadows tuple.count on purpose
    is_mark: bool


def _sound(data: bytes | bytearray, at: int) -> _Part:
    """The whole part at `at`, which is as the feed makes them. Raises MalformedPart for any other."""
    fault = check_part(data, at, len(data))
    if fault:
        raise MalformedPart(REASONS[Fault(fault)])
    size, _, protocol, qos, _, count, topic_size, attempts, when, due, expires, _, _ = HEADER.unpack_from(data, at)
    if protocol != Protocol.SPARK or qos != 1 or attempts or when or due or expires:
        raise MalformedPart("its header says what no row can ask for")
    is_mark = topic_size == len(_MARK) and data.startswith(_MARK, at + HEADER_SIZE)
    return _Part(size, count, is_mark)


def _damaged(name: str, why: str) -> BrokerError:
    return BrokerError(Code.UNKNOWN, f"the staged file {name} is damaged: {why}")


class _Cutter:
    """Decides where records begin: whole parts, and a mark always together with the copies before it.

    `rows` counts the messages that are no marks.
    """

    def __init__(self, record_bytes: int, allows: Callable[[str], bool]) -> None:
        self._record_bytes = record_bytes
        self._allows = allows
        self._allowed: set[bytes] = set()
        self.letters: array[int] = array("Q")
        self.rows = 0
        self._cuts = [0]
        self._size = 0
        self._parts = 0
        self._at = 0
        self._last = 0
        self._copies = 0

    def begin_file(self) -> None:
        """Another file begins: a mark is in the file that holds the copies."""
        self._copies = 0

    def take(self, data: bytes) -> int:
        """Note the whole parts at the beginning of the data, at least one; how many bytes they are.

        Raises MalformedPart for what is not as the feed makes it, BrokerError(FORBIDDEN) for a topic.
        """
        at = 0
        while at + HEADER_SIZE <= len(data) and (not at or at + _HEAD.unpack_from(data, at)[0] <= len(data)):
            part = _sound(data, at)
            if part.is_mark:
                self._take_mark(Batch(data, at, 0))
            else:
                self._check_topic(data, at)
                self._copies = part.count
                self.rows += part.count
            self._note(part.size, glued=part.is_mark)
            at += part.size
        if not at:
            raise MalformedPart(f"{len(data)} stray bytes")
        return at

    def _take_mark(self, mark: Batch) -> None:
        """Keep the dead letters a mark names, as many as there are copies before it."""
        values = [mark.value(index) for index in range(mark.count)]
        if mark.columns or any(len(value) % 8 or len(value) > 8 * MARKED_MAX for value in values):
            raise MalformedPart("a mark that names no dead letters")
        if not self._copies or sum(map(len, values)) != 8 * self._copies:
            raise MalformedPart("a mark that is about other messages than those before it")
        self._copies = 0
        for value in values:
            self.letters.extend(marked_offsets(value))

    def _check_topic(self, data: bytes, at: int) -> None:
        """Raises for a topic the owner may not write to. The feed has asked before; this does not take its word."""
        name = data[at + HEADER_SIZE : at + HEADER_SIZE + _TOPIC_SIZE.unpack_from(data, at + 12)[0]]
        if name in self._allowed:
            return
        topic = name.decode()
        try:
            check_topic(topic)
        except BrokerError as error:
            raise MalformedPart(error.detail) from None
        if is_own_topic(topic) or not self._allows(topic):
            raise BrokerError(Code.FORBIDDEN, f"not allowed to publish to {topic}")
        self._allowed.add(name)

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
