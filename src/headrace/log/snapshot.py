"""Snapshots: the state folded from the log below an offset, so that recovery replays only what follows.

A snapshot also carries the index of the then active segment, so that recovery scans only what follows. The two newest
are kept; one that fails its checks is as good as absent.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.log.disk import Disk, write_atomically
from headrace.log.format import SNAPSHOT_SUFFIX, crc32, name_number, numbered_name
from headrace.model.errors import StorageError

_MAGIC = b"HEADSNAP"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQII")
_KEPT = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`state` is the fold of everything below `offset`; everything below `synced` was on disk when it was written.

    `index` describes the active segment of that moment as far as it was written.
    """

    offset: int
    state: bytes
    synced: int
    index: bytes

    def encode(self) -> list[bytes]:
        """The file, in pieces."""
        checked = crc32(self.index, crc32(self.state))
        fields = (_MAGIC, _VERSION, 0, self.offset, self.synced, len(self.state), len(self.index), checked)
        header = _HEADER.pack(*fields)
        return [header + struct.pack("<I", crc32(header)), self.state, self.index]


class BadSnapshot(ValueError):
    """A snapshot that fails its checks."""


def decode_snapshot(data: bytes) -> Snapshot:
    """The inverse of Snapshot.encode.

    Raises BadSnapshot when any byte is wrong.
    """
    start = _HEADER.size + 4
    if len(data) < start or struct.unpack_from("<I", data, _HEADER.size)[0] != crc32(data[: _HEADER.size]):
        raise BadSnapshot("header fails its checksum")
    magic, version, _, offset, synced, state_size, index_size, checked = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or len(data) != start + state_size + index_size:
        raise BadSnapshot("not a snapshot of this version and size")
    state = data[start : start + state_size]
    index = data[start + state_size :]
    if crc32(index, crc32(state)) != checked:
        raise BadSnapshot("contents fail their checksum")
    return Snapshot(offset, state, synced, index)


def snapshot_offsets(names: list[str]) -> list[int]:
    """The offsets of the snapshots among these file names, newest first."""
    found = (name_number(name, SNAPSHOT_SUFFIX) for name in names)
    return sorted((offset for offset in found if offset is not None), reverse=True)


def load_snapshot(directory: Path, disk: Disk, names: list[str]) -> Snapshot | None:
    """The newest snapshot that passes its checks."""
    for offset in snapshot_offsets(names):
        file = disk.open(directory / numbered_name(offset, SNAPSHOT_SUFFIX))
        try:
            return decode_snapshot(file.pread(file.size(), 0))
        except BadSnapshot:
            continue
        finally:
            file.close()
    return None


def store_snapshot(directory: Path, disk: Disk, snapshot: Snapshot) -> list[int]:
    """Write a snapshot, then remove all but the two newest; returns the offsets of those kept, newest first."""
    write_atomically(disk, directory / numbered_name(snapshot.offset, SNAPSHOT_SUFFIX), snapshot.encode())
    offsets = snapshot_offsets(disk.list(directory))
    for offset in offsets[_KEPT:]:
        disk.unlink(directory / numbered_name(offset, SNAPSHOT_SUFFIX))
    return offsets[:_KEPT]


class SnapshotWrite:
    """A snapshot to be written, in any thread, and then what came of it."""

    def __init__(self, directory: Path, disk: Disk, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.kept: list[int] = []
        self.error: StorageError | None = None
        self._directory = directory
        self._disk = disk

    def run(self) -> None:
        """Write it and remove all but the two newest. Never raises OSError."""
        try:
            self.kept = store_snapshot(self._directory, self._disk, self.snapshot)
        except OSError as error:
            self.error = StorageError(f"cannot write a snapshot: {error.strerror or error}")
