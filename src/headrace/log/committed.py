"""How far the log reaches, for other processes: a small file that the log writes in memory and readers map.

It says which offsets may be read and when to look at the directory again. It is never synced: a log writes it anew when
it is opened. What it says was synced before it was written there, so that the next opening may take it for a promise:
a log that ends before `synced` has lost something, however it was stopped. Two slots are written in turn, each with a
checksum, so that whoever reads at a bad moment finds the other one whole.

Layout: magic, u32 version, u32 zero, then two slots: u64 turn, u64 earliest, u64 latest, u64 generation, u64 synced,
u32 crc32, u32 zero.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

from headrace.log.disk import Disk, Mapped
from headrace.log.format import crc32
from headrace.model.errors import StorageError

COMMITTED_NAME = "committed"
COMMITTED_SIZE = 112

_HEAD = struct.Struct("<8sII")
_MAGIC = b"HEADCMIT"
_VERSION = 2
_FIELDS = struct.Struct("<QQQQQ")
_CHECK = struct.Struct("<II")
_SLOT = struct.Struct("<QQQQQII")
_CHANGES_BITS = 32
_TRIES = 1000

assert _HEAD.size + 2 * _SLOT.size == COMMITTED_SIZE

_pack = _FIELDS.pack


class Committed(NamedTuple):
    """Offsets from `earliest` up to, not including, `latest` may be read.

    `generation` grows whenever the segments are others than before: one was begun, replaced or removed. `turn` grows
    with every change. Below `synced` everything is on stable storage.
    """

    turn: int
    earliest: int
    latest: int
    generation: int
    synced: int = 0

    @property
    def writer(self) -> int:
        """Tells one opening of the log from the next; part of the generation."""
        return self.generation >> _CHANGES_BITS


class CommittedFile:
    """The writer's side. One process has it, the one that holds the lock of the log."""

    __slots__ = ("_generation", "_mapped", "_turn")

    def __init__(self, directory: Path, disk: Disk) -> None:
        """Take over what another process left there, so that readers who have it mapped go on. Raises OSError."""
        self._mapped: Mapped = disk.share(directory / COMMITTED_NAME, COMMITTED_SIZE)
        before = decode_committed(bytes(self._mapped[:COMMITTED_SIZE]))
        self._turn = before.turn if before else 0
        self._generation = (before.writer + 1 if before else 1) << _CHANGES_BITS
        self._mapped[: _HEAD.size] = _HEAD.pack(_MAGIC, _VERSION, 0)

    def write(self, earliest: int, latest: int, synced: int, *, changed: bool) -> None:
        """Say which offsets may be read; `changed` means that the segments are not those of the last time."""
        self._turn = turn = self._turn + 1
        if changed:
            self._generation += 1
        fields = _pack(turn, earliest, latest, self._generation, synced)
        at = _HEAD.size + _SLOT.size * (turn & 1)
        self._mapped[at : at + _SLOT.size] = fields + _CHECK.pack(crc32(fields), 0)


def decode_committed(data: bytes) -> Committed | None:
    """What the file says; None when neither slot is whole, or it is no such file."""
    if len(data) < COMMITTED_SIZE or _HEAD.unpack_from(data)[:2] != (_MAGIC, _VERSION):
        return None
    newest = None
    for at in (_HEAD.size, _HEAD.size + _SLOT.size):
        *fields, crc, _ = _SLOT.unpack_from(data, at)
        if crc == crc32(data[at : at + _FIELDS.size]) and (newest is None or fields[0] > newest.turn):
            newest = Committed(*fields)
    return newest if newest is None or newest.turn else None


def last_committed(directory: Path, disk: Disk) -> Committed | None:
    """What the last opening of the log left there, for the next one; None when that cannot be told."""
    try:
        file = disk.open(directory / COMMITTED_NAME)
    except FileNotFoundError:
        return None
    try:
        return decode_committed(file.pread(COMMITTED_SIZE, 0))
    finally:
        file.close()


class CommittedReader:
    """A reader's side, for any process."""

    def __init__(self, directory: Path) -> None:
        """Raises StorageError when no log of this version was ever opened there."""
        path = directory / COMMITTED_NAME
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._mapped = mmap.mmap(fd, COMMITTED_SIZE, mmap.MAP_SHARED, mmap.PROT_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot follow the log in {directory}: {path.name}: {error}") from error
        self._last = Committed(0, 0, 0, 0)
        self._path = path

    def read(self) -> Committed:
        """What may be read now; never older than what was returned before. Raises StorageError for a damaged file."""
        for _ in range(_TRIES):
            found = decode_committed(self._mapped[:COMMITTED_SIZE])
            if found is not None and found.turn >= self._last.turn:
                self._last = found
                return found
        raise StorageError(f"{self._path}: damaged, or not of this version")

    def close(self) -> None:
        """Give the mapping back."""
        self._mapped.close()
