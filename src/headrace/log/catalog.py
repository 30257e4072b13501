"""The catalog: which log this is, what must be there, and what is known to be lost.

Segments and snapshots tell what they hold; only this file tells that one of them is missing, and why the first segment
begins where it does. It is kept twice, in two files alike. Each is written whole under another name and renamed; the
first is synced before whatever depends on it goes on, the second follows and is for the day when the first is bad.

Layout: magic, u32 version, u32 size of the body, u32 crc32 of all of these but itself and of the body, then the body
in MessagePack.
"""

import os
import struct
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.log.disk import Disk, write_atomically
from headrace.log.format import (
    CATALOG_SUFFIX,
    LOG_ID_SIZE,
    SEGMENT_HEADER_SIZE,
    SEGMENT_SUFFIX,
    BadHeader,
    NewerFormat,
    crc32,
    decode_segment_header,
)
from headrace.log.report import Loss
from headrace.model.errors import StorageError

CATALOG_NAMES = (f"first{CATALOG_SUFFIX}", f"second{CATALOG_SUFFIX}")
CATALOG_VERSION = 1
LOSSES_MAX = 1000

_MAGIC = b"HEADCTLG"
_HEAD = struct.Struct("<8sII")
_CRC = struct.Struct("<I")


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a log apart from its records.

    log        its id, made with it and never changed
    epoch      grows when offsets were given up, so that who followed the log can tell
    turn       grows with every writing
    floor      offsets below it were deleted by retention, or given up with all segments
    last       the first offset of the newest segment; None before there was one
    snapshots  the offsets of the snapshots that are kept, newest first
    losses     damage that was met, oldest first; `forgotten` are older ones that are not listed any more
    """

    log: bytes
    epoch: int = 0
    turn: int = 0
    floor: int = 0
    last: int | None = None
    snapshots: tuple[int, ...] = ()
    losses: tuple[Loss, ...] = ()
    forgotten: int = 0

    def has_given_up(self, first: int, end: int) -> bool:
        """Whether all of these offsets are known to be lost."""
        for loss in sorted(self.losses, key=lambda loss: loss.damage.first):
            damage = loss.damage
            if loss.given_up and damage.first <= first < damage.first + damage.count:
                first = damage.first + damage.count
        return first >= end

    def with_losses(self, losses: "tuple[Loss, ...]") -> "Catalog":
        """The same knowing of these losses and no others, the oldest of them counted only when they are many."""
        forgotten = self.forgotten + max(0, len(losses) - LOSSES_MAX)
        return msgspec.structs.replace(self, losses=losses[-LOSSES_MAX:], forgotten=forgotten)


class BadCatalog(ValueError):
    """A catalog that fails its checks."""


class CatalogFound(NamedTuple):
    """The newest catalog that passes its checks, what each file that is not alike has to be called, and why."""

    catalog: Catalog | None
    bad: dict[str, str]
    missing: list[str]
    behind: list[str]


def new_log_id() -> bytes:
    """An id that no other log has."""
    return os.urandom(LOG_ID_SIZE)


def encode_catalog(catalog: Catalog) -> bytes:
    """The whole file."""
    body = msgspec.msgpack.encode(catalog)
    head = _HEAD.pack(_MAGIC, CATALOG_VERSION, len(body))
    return head + _CRC.pack(crc32(body, crc32(head))) + body


def decode_catalog(data: bytes) -> Catalog:
    """The inverse of `encode_catalog`.

    Raises BadCatalog when any byte is wrong, NewerFormat when it is intact and not for us.
    """
    start = _HEAD.size + _CRC.size
    if len(data) < start:
        raise BadCatalog("shorter than a catalog")
    magic, version, size = _HEAD.unpack_from(data)
    crc = _CRC.unpack_from(data, _HEAD.size)[0]
    if magic != _MAGIC or len(data) != start + size or crc32(data[start:], crc32(data[: _HEAD.size])) != crc:
        raise BadCatalog("fails its checksum")
    if version != CATALOG_VERSION:
        raise NewerFormat(f"catalog of version {version}, this program reads {CATALOG_VERSION}")
    try:
        return msgspec.msgpack.decode(data[start:], type=Catalog)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCatalog(str(error)) from error


def find_catalog(directory: Path, disk: Disk, names: list[str]) -> CatalogFound:
    """What the two files say; of two that speak of different logs that of the segments counts, else the later one.

    Raises OSError, NewerFormat.
    """
    found: dict[str, Catalog] = {}
    bad: dict[str, str] = {}
    for name in CATALOG_NAMES:
        if name not in names:
            continue
        file = disk.open(directory / name)
        try:
            found[name] = decode_catalog(file.pread(file.size(), 0))
        except BadCatalog as error:
            bad[name] = str(error)
        finally:
            file.close()
    own = _log_of_segments(directory, disk, names) if len({each.log for each in found.values()}) > 1 else b""
    newest = max(found.values(), key=lambda each: (each.log == own, each.turn), default=None)
    behind = [name for name, each in found.items() if each != newest]
    return CatalogFound(newest, bad, [name for name in CATALOG_NAMES if name not in names], behind)


def _log_of_segments(directory: Path, disk: Disk, names: list[str]) -> bytes:
    """The log that most segments say they belong to; nothing if none says so."""
    told: Counter[bytes] = Counter()
    for name in names:
        if name.endswith(SEGMENT_SUFFIX):
            with closing(disk.open(directory / name)) as file, suppress(BadHeader, NewerFormat):
                told[decode_segment_header(file.pread(SEGMENT_HEADER_SIZE, 0)).log] += 1
    del told[b""]
    return told.most_common(1)[0][0] if told else b""


class CatalogFile:
    """The writer's side. Changes are made by whoever blocks on the disk for the log, one at a time."""

    def __init__(self, directory: Path, disk: Disk, catalog: Catalog) -> None:
        self.catalog = catalog
        self._directory = directory
        self._disk = disk

    def begun(self, last: int) -> None:
        """A segment was begun there. Raises OSError."""
        if last != self.catalog.last:
            self.replace(msgspec.structs.replace(self.catalog, last=last))

    def keeps(self, snapshots: list[int]) -> None:
        """These snapshots are there, and others need not be. Raises OSError."""
        if tuple(snapshots) != self.catalog.snapshots:
            self.replace(msgspec.structs.replace(self.catalog, snapshots=tuple(snapshots)))

    def retires(self, floor: int) -> None:
        """What is below is not needed any more. Raises OSError; nothing may be removed then."""
        self.replace(msgspec.structs.replace(self.catalog, floor=max(floor, self.catalog.floor)))

    def met(self, losses: list[Loss]) -> None:
        """Damage was met that was not known. Raises OSError."""
        known = {loss.damage for loss in self.catalog.losses}
        fresh = [loss for loss in losses if loss.damage not in known]
        if fresh:
            self.replace(self.catalog.with_losses((*self.catalog.losses, *fresh)))

    def replace(self, catalog: Catalog) -> None:
        """Write another state. Raises OSError: then the old one counts, unless the next start finds the new one."""
        catalog = msgspec.structs.replace(catalog, turn=self.catalog.turn + 1)
        data = encode_catalog(catalog)
        first, second = (self._directory / name for name in CATALOG_NAMES)
        write_atomically(self._disk, first, [data])
        self.catalog = catalog
        temporary = second.with_name(second.name + ".tmp")
        file = self._disk.create(temporary)
        try:
            file.pwritev([data], 0)
        finally:
            file.close()
        self._disk.rename(temporary, second)


class LossesWrite:
    """Damage to be written down, in any thread, and then what came of it."""

    def __init__(self, catalog: CatalogFile, losses: list[Loss]) -> None:
        self.error: StorageError | None = None
        self._catalog = catalog
        self._losses = losses

    def run(self) -> None:
        """Write it down. Never raises OSError; what could not be written is met again."""
        try:
            self._catalog.met(self._losses)
        except OSError as error:
            self.error = StorageError(f"cannot write the catalog: {error.strerror or error}")
