"""The manifests of transactions of several records: what one says, its bytes, and which of them can be believed.

A manifest decides a transaction, so it is kept twice, in two files alike. Each is `HEADMANI`, u32 version, u32 size of
the body, u32 crc32 of these and the body, then the body in JSON; the files of before that are the body alone.
"""

import contextlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import msgspec

from headrace.feed.messages import OFFSET_MAX
from headrace.feed.places import MANIFEST_SUFFIX, belongs, manifest_name, transaction_prefix
from headrace.log import Damage
from headrace.log.disk import Disk, write_atomically
from headrace.log.format import crc32
from headrace.model.errors import StorageError

SECOND = ".second"
STAGING = "staging"
VERSION = 1

_MAGIC = b"HEADMANI"
_HEAD = struct.Struct("<8sII")
_CRC = struct.Struct("<I")
_WINDOW = 1 << 20


class BadManifest(ValueError):
    """A manifest that fails its checks."""


class StagedFile(msgspec.Struct, frozen=True, array_like=True):
    """A staged file of a transaction; `crc` is the checksum of its bytes, None in manifests that did not keep it."""

    name: str
    size: int
    crc: int | None = None


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

    @property
    def names(self) -> tuple[str, str]:
        """What its manifest and the copy of it are called."""
        return both_names(manifest_name(self.owner, self.writer, self.batch))


@dataclass(slots=True)
class Found:
    """The manifests of a directory: the plans in them, what one copy could be had for, and what nothing can."""

    plans: list[Plan] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


def both_names(name: str) -> tuple[str, str]:
    """The manifest's name and its copy's."""
    return name, name.removesuffix(MANIFEST_SUFFIX) + SECOND + MANIFEST_SUFFIX


def encode_manifest(plan: Plan) -> bytes:
    """The whole file."""
    body = msgspec.json.encode(plan)
    head = _HEAD.pack(_MAGIC, VERSION, len(body))
    return head + _CRC.pack(crc32(body, crc32(head))) + body


def decode_manifest(data: bytes) -> Plan:
    """What a manifest says.

    Raises BadManifest when any byte is wrong, StorageError for an intact one of a later version.
    """
    body = data
    if not data.startswith(b"{"):
        start = _HEAD.size + _CRC.size
        if len(data) < start:
            raise BadManifest("shorter than a manifest")
        magic, version, size = _HEAD.unpack_from(data)
        crc = _CRC.unpack_from(data, _HEAD.size)[0]
        body = data[start:]
        if magic != _MAGIC or len(body) != size or crc32(body, crc32(data[: _HEAD.size])) != crc:
            raise BadManifest("fails its checksum")
        if version != VERSION:
            raise StorageError(f"a manifest of version {version}, this program reads {VERSION}")
    try:
        return msgspec.json.decode(body, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadManifest(str(error)) from error


def write_manifest(directory: Path, disk: Disk, plan: Plan) -> None:
    """Promise a transaction: once the first is durable there is no way back, the second follows unsynced."""
    first, second = (directory / name for name in plan.names)
    data = encode_manifest(plan)
    write_atomically(disk, first, [data])
    temporary = second.with_name(second.name + ".tmp")
    with contextlib.closing(disk.create(temporary)) as file:
        file.pwritev([data], 0)
    disk.rename(temporary, second)


def read_manifests(directory: Path, disk: Disk, names: list[str]) -> Found:
    """Every manifest of a staging directory. Raises OSError, StorageError for one of a later version."""
    found = Found()
    there = {name for name in names if name.endswith(MANIFEST_SUFFIX)}
    for first in sorted({name.replace(SECOND + MANIFEST_SUFFIX, MANIFEST_SUFFIX) for name in there}):
        plans: dict[str, Plan] = {}
        wrong: dict[str, str] = {}
        size = 0
        for name in both_names(first):
            if name not in there:
                wrong[name] = "missing"
                continue
            with contextlib.closing(disk.open(directory / name)) as file:
                size = max(size, file.size())
                content = file.pread(file.size(), 0)
            try:
                plans[name] = _belonging(decode_manifest(content), first)
            except BadManifest as error:
                wrong[name] = str(error)
                continue
            if content.startswith(b"{"):
                break  # of before there were two
        if plans:
            found.plans.append(next(iter(plans.values())))
            found.notes += [f"{STAGING}/{name}: {why}; the other one counts" for name, why in wrong.items()]
        else:
            why = wrong[first] if first in there else next(iter(wrong.values()))
            batch = first.removesuffix(MANIFEST_SUFFIX).rpartition("-")[2]
            detail = f"{first} is damaged ({why}); without it the transaction of batch {batch} stays unfinished"
            found.damage.append(Damage(f"{STAGING}/{first}", 0, size, 0, 0, detail))
    return found


def _belonging(plan: Plan, name: str) -> Plan:
    """Raises BadManifest for a manifest that says what none of ours says."""
    total = sum(file.size for file in plan.files)
    cuts = plan.cuts
    if not 0 <= plan.batch <= OFFSET_MAX or name != plan.names[0]:
        raise BadManifest("it is another transaction's")
    if not all(belongs(file.name, plan.prefix) and file.size >= 0 for file in plan.files):
        raise BadManifest("it names files that are not the transaction's")
    if len(cuts) < 2 or cuts[0] or cuts[-1] != total or any(a > b or (a | b) % 8 for a, b in pairwise(cuts)):
        raise BadManifest("its records do not add up")
    return plan


def check_files(directory: Path, disk: Disk, plan: Plan) -> Damage | None:
    """The first file of a transaction that is not what was promised; each is read once. Raises OSError."""
    for staged in plan.files:
        try:
            file = disk.open(directory / staged.name)
        except FileNotFoundError:
            return _spoilt(plan, staged, "is missing")
        with contextlib.closing(file):
            if file.size() != staged.size:
                return _spoilt(plan, staged, f"has {file.size()} bytes")
            crc = 0
            for at in range(0, staged.size, _WINDOW):
                crc = crc32(file.pread(min(_WINDOW, staged.size - at), at), crc)
        if staged.crc not in (None, crc):
            return _spoilt(plan, staged, "fails its checksum")
    return None


def _spoilt(plan: Plan, staged: StagedFile, what: str) -> Damage:
    detail = f"a staged file {what}: what is not in the log of batch {plan.batch} of {plan.writer!r} is lost"
    return Damage(f"{STAGING}/{staged.name}", 0, staged.size, 0, 0, detail)


def with_unfinished(found: Found, open_batches: Iterable[tuple[str, str, int, int]]) -> list[Damage]:
    """What is damaged, batches included that are begun in the log and that no manifest tells the rest of.

    A batch is its owner, its writer, its number, and how many records of it are in the log.
    """
    promised = {plan.names[0] for plan in found.plans}
    by_name = {damage.segment: damage for damage in found.damage}
    for batch in open_batches:
        lost = _unfinished(*batch)
        if lost.segment.removeprefix(f"{STAGING}/") in promised:
            continue
        known = by_name.get(lost.segment)
        by_name[lost.segment] = lost if known is None else replace(known, detail=f"{known.detail}; {lost.detail}")
    return list(by_name.values())


def _unfinished(owner: str, writer: str, batch: int, chunks_done: int) -> Damage:
    """A batch of which some records are in the log, and which nothing tells the rest of."""
    detail = f"nothing tells the rest of batch {batch} of {writer!r}, of which {chunks_done} records are in the log"
    return Damage(f"{STAGING}/{manifest_name(owner, writer, batch)}", 0, 0, 0, 0, detail)
