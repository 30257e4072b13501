"""Which directory of which machine, said so that nobody takes another for it. Knows the standard library only."""

from pathlib import Path
from typing import NamedTuple

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Whereabouts(NamedTuple):
    """A directory as this boot of this machine knows it; equal for two processes only if they see the same one."""

    path: str
    machine: str
    device: int
    inode: int


def whereabouts(directory: Path) -> Whereabouts | None:
    """Where a directory is; None when it is not here, or the system cannot be told from others."""
    try:
        found = directory.stat()
        return Whereabouts(str(directory.resolve()), BOOT_ID.read_text().strip(), found.st_dev, found.st_ino)
    except OSError:
        return None
