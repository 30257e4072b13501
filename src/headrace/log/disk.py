"""The one door to the disk: a small interface that tests can break, and the real thing.

Calls raise OSError and nothing else. Whoever calls decides in which thread.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.log.direct import BLOCK, WORTHWHILE, DirectWriter, split
from headrace.model.batch import Buffer

_BUFFERS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600
_SYNC_FLAG: int = getattr(os, "RWF_DSYNC", 0)
_fdatasync = getattr(os, "fdatasync", os.fsync)


Mapped = mmap | bytearray
"""A file's bytes, to be written in place."""


class WriteOrder(NamedTuple):
    """A write and sync that is one call of the system, for somebody else to do."""

    fd: int
    buffers: Sequence[Buffer]
    position: int
    flags: int


class File(Protocol):
    """An open file; positions are always given, there is no cursor."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill a buffer; how many bytes were there, fewer than it holds only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], position: int, *, sync: bool = False) -> int:
        """Write all buffers back to back and return how many bytes that was; with `sync` once they are stable.

        What was written before may still not be. After an error with `sync` it is not known which of the two failed.
        """

    def order(self, buffers: Sequence[Buffer], position: int) -> WriteOrder | None:
        """What `pwritev` with `sync` would do, if that is a single call of the system."""

    def fdatasync(self) -> None:
        """Return once everything written is on stable storage."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def size(self) -> int:
        """The file's size."""

    def close(self) -> None:
        """Give the file back; closing twice does nothing."""


class Disk(Protocol):
    """A file system, as much of it as a log needs."""

    def create(self, path: Path) -> File:
        """A new empty file open for reading and writing, in place of any of that name."""

    def open(self, path: Path, *, writable: bool = False) -> File:
        """An existing file."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, atomically replacing what had it."""

    def unlink(self, path: Path) -> None:
        """Remove a file."""

    def list(self, directory: Path) -> list[str]:
        """The names in a directory, in no order."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents unless they exist."""

    def sync_directory(self, path: Path) -> None:
        """Return once names created, renamed and removed in it are on stable storage."""

    def lock(self, path: Path) -> File:
        """Keep other processes from locking this file until the result is closed or the process ends.

        Raises BlockingIOError when another holds it.
        """

    def uncache(self, path: Path, size: int, position: int) -> None:
        """These bytes will not be read again soon: the system need not keep them in memory."""

    def share(self, path: Path, size: int) -> Mapped:
        """The bytes of a file of this size, made if need be, in memory shared with whoever reads it; never synced."""


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_direct", "_fd")

    def __init__(self, fd: int, direct: DirectWriter | None = None) -> None:
        self._fd = fd
        self._direct = direct

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill a buffer as far as the file reaches."""
        filled = 0
        while filled < len(buffer):
            count = os.preadv(self._fd, [buffer[filled:]], position + filled)
            if not count:
                break
            filled += count
        return filled

    def pwritev(self, buffers: Sequence[Buffer], position: int, *, sync: bool = False) -> int:
        """Write all buffers back to back: a big write past the page cache, a small one synced in the same call."""
        size = sum(map(len, buffers))
        if self._direct is not None and size >= WORTHWHILE:
            self._write_blocks(self._direct, buffers, position, size)
        elif sync and _SYNC_FLAG and len(buffers) <= _BUFFERS_MAX:
            self._write(buffers, position, _SYNC_FLAG)
            return size
        else:
            self._write(buffers, position)
        if sync:
            self.fdatasync()
        return size

    def order(self, buffers: Sequence[Buffer], position: int) -> WriteOrder | None:
        """What `pwritev` with `sync` would do through the page cache."""
        if not _SYNC_FLAG or len(buffers) > _BUFFERS_MAX:
            return None
        return WriteOrder(self._fd, buffers, position, _SYNC_FLAG)

    def _write_blocks(self, direct: DirectWriter, buffers: Sequence[Buffer], position: int, size: int) -> None:
        """Write whole blocks directly; those shared with what is before and after go through the page cache.

        A file system may take the flag and then refuse the write (EINVAL): it is not asked again.
        """
        first, last = -(-position // BLOCK) * BLOCK, (position + size) // BLOCK * BLOCK
        head, rest = split(buffers, first - position)
        whole, tail = split(rest, last - first)
        self._write(head, position)
        try:
            direct.write(whole, first)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = None
            direct.close()
            self._write(whole, first)
        self._write(tail, last)

    def _write(self, buffers: Sequence[Buffer], position: int, flags: int = 0) -> None:
        """Write in as few calls as the system allows."""
        for first in range(0, len(buffers), _BUFFERS_MAX):
            chunk = buffers[first : first + _BUFFERS_MAX]
            wanted = sum(map(len, chunk))
            written = os.pwritev(self._fd, chunk, position, flags)
            if written < wanted:
                self._write_rest(b"".join(chunk), written, position, flags)
            position += wanted

    def _write_rest(self, data: bytes, written: int, position: int, flags: int) -> None:
        rest = memoryview(data)
        while written < len(rest):
            written += os.pwritev(self._fd, [rest[written:]], position + written, flags)

    def fdatasync(self) -> None:
        """Return once everything written is on stable storage."""
        _fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """The file's size."""
        return os.fstat(self._fd).st_size

    def lock(self) -> None:
        """Take the exclusive lock of this file or raise BlockingIOError."""
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Close the descriptor, once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._direct is not None:
            self._direct.close()
            self._direct = None


class OsDisk:
    """The file system of the operating system. What it makes is for its owner alone; what it writes is no link."""

    def create(self, path: Path) -> File:
        """A new empty file, in place of a link of that name too."""
        try:
            return OsFile(_open_private(path, os.O_TRUNC))
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        path.unlink()
        return OsFile(_open_private(path, os.O_EXCL))

    def open(self, path: Path, *, writable: bool = False) -> File:
        """An existing file."""
        if not writable:
            return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return OsFile(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), DirectWriter.open(path))

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def list(self, directory: Path) -> list[str]:
        """The names in a directory."""
        return os.listdir(directory)  # noqa: PTH208 - names, not paths

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents unless they exist."""
        make_private_directory(path)

    def sync_directory(self, path: Path) -> None:
        """Return once the directory's names are on stable storage."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> File:
        """An exclusive flock, given up when the process ends."""
        file = OsFile(_open_private(path))
        try:
            file.lock()
        except OSError:
            file.close()
            raise
        return file

    def uncache(self, path: Path, size: int, position: int) -> None:
        """Say so to the system, where it listens."""
        if hasattr(os, "posix_fadvise"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def share(self, path: Path, size: int) -> Mapped:
        """A mapping of the file, whose blocks are had beforehand: writing to it cannot fail for want of room."""
        fd = _open_private(path)
        try:
            os.posix_fallocate(fd, 0, size)
            return mmap(fd, size)
        finally:
            os.close(fd)


def make_private_directory(path: Path) -> None:
    """Create a directory and its parents unless they exist, for their owner alone."""
    if path.is_dir():
        return
    make_private_directory(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(PRIVATE_DIRECTORY)


def _open_private(path: Path, flags: int = 0) -> int:
    """A file open for reading and writing, made for its owner alone if it is not there."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, PRIVATE_FILE)
    try:
        os.fchmod(fd, PRIVATE_FILE)
    except PermissionError:  # somebody else's: the start warns of it
        pass
    except OSError:
        os.close(fd)
        raise
    return fd


def write_atomically(disk: Disk, path: Path, buffers: Sequence[Buffer]) -> None:
    """Create or replace a file so that after a crash it is there whole, as before, or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    file = disk.create(temporary)
    try:
        file.pwritev(buffers, 0)
        file.fdatasync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)


def keep_aside(disk: Disk, path: Path, data: bytes) -> str:
    """Store removed bytes under this name, or one like it that is free; returns the name."""
    free = _free(disk, path)
    write_atomically(disk, free, [data])
    return free.name


def rename_aside(disk: Disk, path: Path) -> str:
    """Take a bad file out of the way, all of it; returns its new name."""
    free = _free(disk, path.with_name(f"{path.name}.damaged-0"))
    disk.rename(path, free)
    disk.sync_directory(path.parent)
    return free.name


def _free(disk: Disk, path: Path) -> Path:
    """This name, or one like it that nothing has."""
    names = set(disk.list(path.parent))
    number = 1
    free = path
    while free.name in names:
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
