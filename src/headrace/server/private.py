"""The data directory as nobody's business but the broker's: directories 0700, files 0600, whatever the umask says.

What a broker wrote before is tightened; what somebody else put beside it is left alone and spoken of. Links are never
followed, but the data directory itself may be one.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.log.disk import PRIVATE_DIRECTORY, PRIVATE_FILE, make_private_directory
from headrace.model.errors import StorageError

OWN_DIRECTORIES = ("log", "staging")
OWN_FILES = ("endpoints.json", "dev-cert.pem", "dev-private-key.pem")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(data_dir: Path) -> list[str]:
    """Make the directory if need be, and keep others out of it and of what a broker keeps there.

    Returns what could not be, for people. Raises StorageError where a link stands for a directory of ours.
    """
    make_private_directory(data_dir)
    warnings = []
    for name in OWN_DIRECTORIES:
        place = data_dir / name
        if place.is_symlink():
            raise StorageError(f"{place} is a link, which may lead anywhere: set data_dir to where it leads instead")
    own = [data_dir / name for name in OWN_DIRECTORIES if (data_dir / name).is_dir()]
    inside = [*(data_dir / name for name in OWN_FILES), *_below(own)]
    if _is_open(data_dir):
        strangers = set(_names(data_dir)) - {*OWN_DIRECTORIES, *OWN_FILES}
        if strangers:
            warnings.append(
                f"{data_dir} is open to others and holds what is no broker's ({min(strangers)!r}): "
                f"give the broker a directory of its own, or chmod 0700 it"
            )
        else:
            own.append(data_dir.resolve())
    refused = [path for path in (*own, *inside) if not _tightened(path)]
    if refused:
        warnings.append(f"{refused[0]} and {len(refused) - 1} more are open to others and belong to somebody else")
    return warnings


def write_private(path: Path, data: bytes) -> None:
    """Create or replace a file in one step: nobody sees half of it, and no link of its name is followed."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb") as out:
        os.fchmod(out.fileno(), PRIVATE_FILE)
        out.write(data)
    temporary.replace(path)


def _below(directories: Iterable[Path]) -> Iterator[Path]:
    """Every file and directory in these."""
    for directory in directories:
        for place, folders, files in os.walk(directory):
            yield from (Path(place, name) for name in (*folders, *files))


def _names(directory: Path) -> list[str]:
    return os.listdir(directory)  # noqa: PTH208 - names, not paths


def _is_open(path: Path) -> bool:
    return bool(path.stat().st_mode & _OTHERS)


def _tightened(path: Path) -> bool:
    """Whether others are kept out now, if they were not before; links and what is gone are nothing to do."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        wanted = PRIVATE_DIRECTORY if stat.S_ISDIR(mode) else PRIVATE_FILE
        if mode & _OTHERS and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            try:
                path.chmod(wanted)
            except PermissionError:
                return False
    return True
