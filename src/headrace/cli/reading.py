"""Reading log files while somebody watches: a disk that counts what was read, and a look whether a broker is there."""

from pathlib import Path

from headrace.cli.failure import Failure
from headrace.cli.output import Meter
from headrace.log import OsDisk
from headrace.log.disk import File, OsFile
from headrace.log.format import LOCK_NAME


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
        self.pread_into = file.pread_into
        self.pwritev = file.pwritev
        self.fdatasync = file.fdatasync
        self.truncate = file.truncate
        self.order = file.order
        self.size = file.size
        self.close = file.close

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes, counted."""
        data = self._pread(size, position)
        self._disk.count(len(data))
        return data


def log_size(directory: Path) -> int:
    """The bytes of all segments."""
    return sum(path.stat().st_size for path in directory.glob("*.seg"))


def check_closed(directory: Path) -> None:
    """Raises Failure when a broker has the log in this directory open."""
    disk = OsDisk()
    try:
        disk.lock(directory / LOCK_NAME).close()
    except BlockingIOError:
        raise Failure(f"a broker has the log in {directory} open", "Stop it first: SIGTERM lets it drain.") from None
