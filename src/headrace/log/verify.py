"""Checks every byte of a log directory without changing any."""

from pathlib import Path

from headrace.log.disk import Disk
from headrace.log.recovery import recover
from headrace.log.report import Report


def verify(directory: Path, disk: Disk) -> Report:
    """Walk every record and say what is there and what is not.

    Raises OSError when the directory cannot be read, StorageError for a log of a later version.
    """
    return recover(directory, disk, full=True, write=False).report
