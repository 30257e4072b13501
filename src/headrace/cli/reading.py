"""Reading log files while somebody watches: a disk that counts what was read, and a lock against a running broker."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.cli.failure import Failure
from headrace.cli.output import Meter
from headrace.log import OsDisk
from headrace.log.disk import File, OsFile

LOCK_NAME = "lock"


class WatchedDisk(OsDisk):
    """The real disk; the meter is told how many bytes have been read through it."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._read = 0

    def open(self, path: Path, *, writable: bool = False) -> File:
        """An existing file whose reads are counted."""
        file = super().open(path, writable=writable)
        assert isinstance(file, OsFile)
        return _WatchedFile(file, self)

    def count(self, size: int) -> None:
        """So much more was read."""
        self._read += size
        self._meter(self._read)


class _WatchedFile:
    """An open file that tells its disk what is read."""

    def __init__(self, file: OsFile, disk: WatchedDisk) -> None:
        self._disk = disk
        self._pread = file.pread
        self.pwritev = file.pwritev
        self.fdatasync = file.fdatasync
        self.truncate = file.truncate
        self.size = file.size
        self.close = file.close

    def pread(self, size: int, position: int) -> bytes:
        data = self._pread(size, position)
        self._disk.count(len(data))
        return data


def log_size(directory: Path) -> int:
    """The bytes of all segments."""
    return sum(path.stat().st_size for path in directory.glob("*.seg"))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep a broker from starting on this log meanwhile.

    Raises Failure when one is running.
    """
    with (directory.parent / LOCK_NAME).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"a broker is running on {directory}", "Stop it first: SIGTERM lets it drain.") from None
        yield
