"""Snapshots: the state folded from the log below an offset, so that recovery replays only what follows.

A snapshot also carries the index of the then active segment, so that recovery scans only what follows. The two newest
are kept; one that fails its checks is put aside, and the other one taken.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path

from headrace.log.catalog import Catalog, CatalogFile
from headrace.log.disk import Disk, write_atomically
from headrace.log.format import LOG_ID_SIZE, SNAPSHOT_SUFFIX, NewerFormat, crc32, name_number, numbered_name
from headrace.model.errors import StorageError

_MAGIC = b"HEADSNAP"
_VERSION = 2
_VERSION_NAMELESS = 1
_HEADER = struct.Struct("<8sIIQQQII")
_CRC = struct.Struct("<I")
SNAPSHOTS_KEPT = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`state` is the fold of everything below `offset`; everything below `synced` was on disk when it was written.

    `index` describes the active segment of that moment as far as it was written. `log` is the id of the log, empty in
    format version 1.
    """

    offset: int
    state: bytes
    synced: int
    index: bytes
    log: bytes = b""

    def encode(self) -> list[bytes]:
        """The file, in pieces."""
        checked = crc32(self.index, crc32(self.state))
        version = _VERSION if self.log else _VERSION_NAMELESS
        fields = (_MAGIC, version, 0, self.offset, self.synced, len(self.state), len(self.index), checked)
        header = _HEADER.pack(*fields) + self.log
        return [header + _CRC.pack(crc32(header)), self.state, self.index]


class BadSnapshot(ValueError):
    """A snapshot that fails its checks."""


def decode_snapshot(data: bytes) -> Snapshot:
    """The inverse of Snapshot.encode.

    Raises BadSnapshot when any byte is wrong, NewerFormat when the header is intact and not for us: a later version
    has its checksum where one of the known versions has it.
    """
    if len(data) < _HEADER.size + _CRC.size:
        raise BadSnapshot("shorter than a snapshot")
    magic, version, _, offset, synced, state_size, index_size, checked = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise BadSnapshot("not a snapshot")
    intact = [end for end in (_HEADER.size, _HEADER.size + LOG_ID_SIZE) if _checked(data, end)]
    if intact and version not in (_VERSION_NAMELESS, _VERSION):
        raise NewerFormat(f"snapshot of format version {version}, this program reads {_VERSION}")
    size = _HEADER.size + (LOG_ID_SIZE if version == _VERSION else 0)
    start = size + _CRC.size
    if size not in intact:
        raise BadSnapshot("header fails its checksum")
    if len(data) != start + state_size + index_size:
        raise BadSnapshot("not of the size it was")
    state = data[start : start + state_size]
    index = data[start + state_size :]
    if crc32(index, crc32(state)) != checked:
        raise BadSnapshot("contents fail their checksum")
    return Snapshot(offset, state, synced, index, data[_HEADER.size : size])


def _checked(data: bytes, size: int) -> bool:
    """Whether these bytes are followed by their checksum."""
    return len(data) >= size + _CRC.size and bool(_CRC.unpack_from(data, size)[0] == crc32(data[:size]))


def snapshot_offsets(names: list[str]) -> list[int]:
    """The offsets of the snapshots among these file names, newest first."""
    found = (name_number(name, SNAPSHOT_SUFFIX) for name in names)
    return sorted((offset for offset in found if offset is not None), reverse=True)


@dataclass(slots=True)
class SnapshotsFound:
    """The newest snapshot that can be used, the offsets of all of those, newest first; why others cannot be."""

    newest: Snapshot | None = None
    good: list[int] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def find_snapshots(
    directory: Path, disk: Disk, names: list[str], catalog: Catalog | None, *, full: bool
) -> SnapshotsFound:
    """The snapshots there are and should be. Raises OSError, NewerFormat.

    Unless `full`, those older than the newest good one are not read.
    """
    found = SnapshotsFound()
    there = snapshot_offsets(names)
    for offset in there:
        name = numbered_name(offset, SNAPSHOT_SUFFIX)
        if found.newest is not None and not full:
            found.good.append(offset)
            continue
        file = disk.open(directory / name)
        try:
            snapshot = decode_snapshot(file.pread(file.size(), 0))
            _check_belonging(snapshot, offset, catalog)
        except BadSnapshot as error:
            found.bad[name] = str(error)
            continue
        finally:
            file.close()
        found.good.append(offset)
        found.newest = found.newest or snapshot
    listed = catalog.snapshots if catalog else ()
    found.missing = [numbered_name(offset, SNAPSHOT_SUFFIX) for offset in listed if offset not in there]
    return found


def _check_belonging(snapshot: Snapshot, offset: int, catalog: Catalog | None) -> None:
    """Raises BadSnapshot for one that was made at another offset, or of another log."""
    if snapshot.offset != offset:
        raise BadSnapshot(f"was made at offset {snapshot.offset}")
    if catalog is not None and snapshot.log != catalog.log and (snapshot.log or offset not in catalog.snapshots):
        raise BadSnapshot("belongs to another log")


def store_snapshot(directory: Path, disk: Disk, snapshot: Snapshot, catalog: CatalogFile) -> list[int]:
    """Write a snapshot, then remove all but the two newest; returns the offsets of those kept, newest first."""
    write_atomically(disk, directory / numbered_name(snapshot.offset, SNAPSHOT_SUFFIX), snapshot.encode())
    offsets = snapshot_offsets(disk.list(directory))
    catalog.keeps(offsets[:SNAPSHOTS_KEPT])
    for offset in offsets[SNAPSHOTS_KEPT:]:
        disk.unlink(directory / numbered_name(offset, SNAPSHOT_SUFFIX))
    return offsets[:SNAPSHOTS_KEPT]


class SnapshotWrite:
    """A snapshot to be written, in any thread, and then what came of it."""

    def __init__(self, directory: Path, disk: Disk, snapshot: Snapshot, catalog: CatalogFile) -> None:
        self.snapshot = snapshot
        self.kept: list[int] = []
        self.error: StorageError | None = None
        self._directory = directory
        self._disk = disk
        self._catalog = catalog

    def run(self) -> None:
        """Write it and remove all but the two newest. Never raises OSError."""
        try:
            self.kept = store_snapshot(self._directory, self._disk, self.snapshot, self._catalog)
        except OSError as error:
            self.error = StorageError(f"cannot write a snapshot: {error.strerror or error}")
