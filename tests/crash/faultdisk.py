"""A disk in memory that can be broken at every step: the log's Disk interface, with crashes, lost and torn writes.

It keeps what a real one keeps apart: what programs see, and what survives a power failure. Every call that changes
something passes named points, `<kind of file>.<operation>.<before|after|torn>`; a test can crash at the n-th passage of
one, or make the call fail with an error.
"""

import errno
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from headrace.model.batch import Buffer

SECTOR = 512
KINDS = {
    "seg": "segment",
    "idx": "index",
    "snap": "snapshot",
    "lock": "lock",
    "staged": "staged",
    "manifest": "manifest",
    "catalog": "catalog",
}


class Crash(BaseException):
    """The machine stops here. Not an Exception: nothing in the log may catch it."""


class Survival(Enum):
    """What of the unsynced changes is on disk after the crash."""

    KEPT = "all: the process was killed, the machine runs on"
    LOST = "none: the power failed before anything was written back"
    TORN = "some: any sectors of unsynced writes, any prefix of unsynced name changes"


@dataclass
class Inode:
    """A file's bytes as seen, as synced, and the changes between: writes, and truncations as a size alone."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)

    def write(self, position: int, data: bytes) -> None:
        _write(self.content, position, data)
        self.changes.append((position, data))

    def truncate(self, size: int) -> None:
        _truncate(self.content, size)
        self.changes.append((size, None))

    def sync(self) -> None:
        self.synced = bytes(self.content)
        self.changes.clear()

    def sync_last_write(self) -> None:
        """Sync what the last write wrote and nothing that was written before."""
        position, data = self.changes.pop()
        assert data is not None
        synced = bytearray(self.synced)
        _write(synced, position, data)
        self.synced = bytes(synced)

    def survivor(self, survival: Survival, chance: random.Random) -> "Inode":
        if survival is Survival.KEPT:
            return Inode(bytearray(self.content), self.synced, list(self.changes))
        content = bytearray(self.synced)
        if survival is Survival.TORN:
            for position, data in self.changes:
                if data is None:
                    if chance.random() < 0.5:
                        _truncate(content, position)
                else:
                    _write_some(content, position, data, chance)
        return Inode(content, bytes(content))


class FaultDisk:
    """The disk. `passed` counts passages of every point."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self._names: dict[Path, Inode] = {}
        self._synced_names: dict[Path, Inode] = {}
        self._name_changes: list[tuple[Path, Inode | None]] = []
        self._locks: set[Path] = set()
        self._shared: dict[Path, bytearray] = {}
        self._crash_at: tuple[str, int] | None = None
        self._failures: dict[str, list[int]] = {}
        self._stopped = False

    def crash_at(self, point: str, passage: int) -> None:
        """Crash when this point is passed for the `passage`-th time from now, counting from 1."""
        self._crash_at = (point, self.passed[point] + passage)

    def fail(self, operation: str, error: int, times: int = 1) -> None:
        """Make the next calls of `<kind>.<operation>` fail; a failing write leaves half of its bytes behind."""
        self._failures.setdefault(operation, []).extend([error] * times)

    def heal(self) -> None:
        """Forget failures and the crash that have not happened."""
        self._failures.clear()
        self._crash_at = None

    def after_crash(self, survival: Survival, seed: int = 0) -> "FaultDisk":
        """The disk as found when the machine is up again."""
        chance = random.Random(seed)
        disk = FaultDisk()
        names = dict(self._synced_names)
        if survival is Survival.KEPT:
            names = dict(self._names)
        elif survival is Survival.TORN:
            for path, inode in self._name_changes[: chance.randint(0, len(self._name_changes))]:
                _apply(names, path, inode)
        if survival is Survival.KEPT or (survival is Survival.TORN and chance.random() < 0.5):
            disk._shared = {path: bytearray(content) for path, content in self._shared.items()}
        survivors = {id(inode): inode.survivor(survival, chance) for inode in names.values()}
        disk._names = {path: survivors[id(inode)] for path, inode in names.items()}
        disk._synced_names = dict(disk._names)
        if survival is Survival.KEPT:
            unsynced = {id(inode): inode.survivor(survival, chance) for inode in self._synced_names.values()}
            unsynced.update(survivors)
            disk._synced_names = {path: unsynced[id(inode)] for path, inode in self._synced_names.items()}
            disk._name_changes = [
                (path, None if inode is None else unsynced.get(id(inode), inode)) for path, inode in self._name_changes
            ]
        return disk

    def contents(self, path: Path) -> bytearray:
        """A file's bytes, to be damaged by the test."""
        return self._names[path].content

    def damage(self, path: Path, position: int, mask: int) -> None:
        """Flip bits of a synced byte on the medium itself."""
        inode = self._names[path]
        inode.content[position] ^= mask
        inode.sync()

    def create(self, path: Path) -> "FaultFile":
        with _Step(self, f"{kind_of(path)}.create"):
            inode = Inode()
            self._name(path, inode)
        return FaultFile(self, path, inode)

    def open(self, path: Path, *, writable: bool = False) -> "FaultFile":
        self._check_running()
        if path in self._shared:
            return FaultFile(self, path, Inode(self._shared[path]))
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return FaultFile(self, path, self._names[path])

    def rename(self, source: Path, target: Path) -> None:
        with _Step(self, f"{kind_of(source)}.rename"):
            self._name(target, self._names[source])
            self._name(source, None)

    def unlink(self, path: Path) -> None:
        with _Step(self, f"{kind_of(path)}.unlink"):
            self._name(path, None)

    def list(self, directory: Path) -> list[str]:
        self._check_running()
        return [path.name for path in self._names if path.parent == directory]

    def make_directory(self, path: Path) -> None:
        self._check_running()

    def sync_directory(self, path: Path) -> None:
        with _Step(self, "directory.sync"):
            self._synced_names = dict(self._names)
            self._name_changes.clear()

    def lock(self, path: Path) -> "FaultLock":
        self._check_running()
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked", str(path))
        self._locks.add(path)
        return FaultLock(self, path, Inode())

    def share(self, path: Path, size: int) -> bytearray:
        """Memory that outlives the process. Nobody syncs it: after a power failure it is as it was at some moment."""
        self._check_running()
        content = self._shared.setdefault(path, bytearray())
        content.extend(bytes(max(0, size - len(content))))
        return content

    def uncache(self, path: Path, size: int, position: int) -> None:
        """Memory is all there is."""

    def step(self, point: str) -> None:
        """Pass a point; crash if it is the one."""
        self.passed[point] += 1
        if self._crash_at == (point, self.passed[point]):
            self._stopped = True
            raise Crash(point)

    def failure(self, operation: str) -> OSError | None:
        """The error this call is to fail with."""
        self._check_running()
        waiting = self._failures.get(operation)
        return OSError(code := waiting.pop(0), errno.errorcode[code]) if waiting else None

    def release(self, path: Path) -> None:
        """Give a lock back."""
        self._locks.discard(path)

    def tears_now(self, point: str) -> bool:
        """Whether passing this point is to crash."""
        return self._crash_at == (point, self.passed[point] + 1)

    def _name(self, path: Path, inode: Inode | None) -> None:
        _apply(self._names, path, inode)
        self._name_changes.append((path, inode))

    def _check_running(self) -> None:
        if self._stopped:
            raise Crash("the machine has stopped")


class FaultFile:
    """An open file of a FaultDisk."""

    def __init__(self, disk: FaultDisk, path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._kind = kind_of(path)
        self._inode = inode

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self._inode.content[position : position + size])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def order(self, buffers: Sequence[Buffer], position: int) -> None:
        """Everything goes through here."""

    def pwritev(self, buffers: Sequence[Buffer], position: int, *, sync: bool = False) -> int:
        data = b"".join(buffers)
        operation = f"{self._kind}.write"
        if (error := self._disk.failure(operation)) is not None:
            self._inode.write(position, data[: len(data) // 2])
            raise error
        self._disk.step(f"{operation}.before")
        torn = f"{operation}.torn"
        if self._disk.tears_now(torn):
            self._inode.write(position, data[: len(data) // 2])
        self._disk.step(torn)
        self._inode.write(position, data)
        self._disk.step(f"{operation}.after")
        if sync:
            with _Step(self._disk, f"{self._kind}.sync"):
                self._inode.sync_last_write()
        return len(data)

    def fdatasync(self) -> None:
        with _Step(self._disk, f"{self._kind}.sync"):
            self._inode.sync()

    def truncate(self, size: int) -> None:
        with _Step(self._disk, f"{self._kind}.truncate"):
            self._inode.truncate(size)

    def size(self) -> int:
        return len(self._inode.content)

    def close(self) -> None:
        """Nothing is held."""


class FaultLock(FaultFile):
    """A lock; closing it lets others have it."""

    def close(self) -> None:
        self._disk.release(self._path)


class _Step:
    """One operation that happens whole: the point before it, its failure, the point after it."""

    def __init__(self, disk: FaultDisk, operation: str) -> None:
        self._disk = disk
        self._operation = operation

    def __enter__(self) -> None:
        if (error := self._disk.failure(self._operation)) is not None:
            raise error
        self._disk.step(f"{self._operation}.before")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._disk.step(f"{self._operation}.after")


def kind_of(path: Path) -> str:
    """What a file is, by its name; a segment that has not got its name yet is a new-segment."""
    name = path.name.removesuffix(".tmp")
    if ".torn-" in name:
        return "torn"
    if ".damaged-" in name:
        return "damaged"
    kind = KINDS.get(name.rpartition(".")[2], name)
    return f"new-{kind}" if kind == "segment" and path.name.endswith(".tmp") else kind


def _apply(names: dict[Path, Inode], path: Path, inode: Inode | None) -> None:
    if inode is None:
        names.pop(path, None)
    else:
        names[path] = inode


def _write(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _truncate(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _write_some(content: bytearray, position: int, data: bytes, chance: random.Random) -> None:
    """Write the sectors that chance picks; the others keep what they had."""
    likelihood = chance.choice((0.1, 0.5, 0.9))
    at = 0
    while at < len(data):
        end = min(len(data), at + SECTOR - (position + at) % SECTOR)
        if chance.random() < likelihood:
            _write(content, position + at, data[at:end])
        at = end
