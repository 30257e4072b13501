"""Small steps on a file system, each of them whole or not at all: write, rename, exchange, lock."""

import ctypes
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.spark.lake.table import LakeError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_LOCK_POLL_S = 0.002
_libc = ctypes.CDLL(None, use_errno=True)


def sync_file(path: Path) -> None:
    """Have a file's bytes on disk when this returns."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Have a folder's names on disk when this returns."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path) -> None:
    """The folder, and its name on disk; nothing to do when it is there."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """The file with these bytes, on disk when this returns; whoever reads sees the old bytes or the new ones."""
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def exchange(one: Path, other: Path) -> None:
    """Let two paths change places, so that at no moment either is missing.

    Raises LakeError where the file system cannot do that.
    """
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise LakeError(
            f"the file system of {other} cannot exchange folders, so Parquet tables cannot be compacted there"
        )
    raise OSError(code, os.strerror(code), str(one), None, str(other))


@contextmanager
def locked(path: Path, timeout_s: float | None = None) -> Iterator[None]:
    """Hold the lock of this name; it ends with the process too.

    Raises LakeError when another process holds it for longer than `timeout_s` (None: waits for ever).
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(descriptor, path, timeout_s)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, timeout_s: float | None) -> None:
    if timeout_s is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    ends = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= ends:
                raise LakeError(f"another process holds {path}") from None
            time.sleep(_LOCK_POLL_S)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
