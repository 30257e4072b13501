"""Damages to a data directory, any of them told by a seed: bytes, sizes, names, whole files, older and foreign ones."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.crash.directories import Directory

PAGE = 512
GARBAGE_MAX = 300


class Harm(NamedTuple):
    """What was done to which file."""

    kind: str
    file: str
    detail: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


def harmed(directory: Directory, copy: Path, chance: random.Random) -> list[Harm]:
    """Damage a copy of a directory: one file mostly, sometimes all files of a kind that is kept twice."""
    if chance.random() < 0.06:
        return _twins(copy, chance)
    path = _pick(copy, chance)
    kind = chance.choice(list(KINDS))
    return [Harm(kind, str(path.relative_to(copy)), KINDS[kind](directory, copy, path, chance))]


def _pick(copy: Path, chance: random.Random) -> Path:
    """A file; each kind of file as likely as another, however many there are."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(copy.rglob("*")):
        if path.is_file():
            kinds.setdefault(path.suffix or path.name, []).append(path)
    weights = [4 if kind == ".seg" else 1 for kind in kinds]
    return chance.choice(kinds[chance.choices(list(kinds), weights)[0]])


def _twins(copy: Path, chance: random.Random) -> list[Harm]:
    """Both files of something that is kept twice."""
    pattern = chance.choice(("log/*.snap", "log/*.catalog", "staging/*.manifest"))
    harms = []
    for path in sorted(copy.glob(pattern)):
        kind = chance.choice(("removed", "emptied", "garbage", "flipped"))
        harms.append(Harm(kind, str(path.relative_to(copy)), KINDS[kind](None, copy, path, chance)))
    return harms


Done = Callable[[Directory | None, Path, Path, random.Random], str]


def _flipped(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return "nothing"
    at, bit = chance.randrange(len(data)), chance.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at}"


def _overwritten(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return "nothing"
    at = chance.randrange(len(data))
    size = min(chance.randint(1, GARBAGE_MAX), len(data) - at)
    data[at : at + size] = chance.randbytes(size)
    path.write_bytes(data)
    return f"bytes {at} to {at + size}"


def _zeroed(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    page = chance.randrange(len(data) // PAGE + 1) * PAGE
    size = min(chance.choice((PAGE, 4096)), len(data) - page)
    data[page : page + size] = bytes(size)
    path.write_bytes(data)
    return f"bytes {page} to {page + size}"


def _cut(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    data = path.read_bytes()
    kept = chance.randrange(len(data) + 1)
    path.write_bytes(data[:kept])
    return f"to {kept} of {len(data)} bytes"


def _extended(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    size = chance.randint(1, 2 * GARBAGE_MAX)
    more = bytes(size) if chance.random() < 0.5 else chance.randbytes(size)
    path.write_bytes(path.read_bytes() + more)
    return f"by {size} bytes"


def _removed(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    path.unlink()
    return ""


def _emptied(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    path.write_bytes(b"")
    return ""


def _garbage(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    path.write_bytes(chance.randbytes(chance.choice((path.stat().st_size, 100))))
    return ""


def _swapped(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    other = _another(copy, path, chance)
    ours, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(ours)
    return f"with {other.relative_to(copy)}"


def _replaced(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    other = _another(copy, path, chance)
    path.write_bytes(other.read_bytes())
    return f"by {other.relative_to(copy)}"


def _doubled(_: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    """The same file once more, under a number of its own."""
    stem = f"{chance.randrange(500):020}"
    name = path.name.replace(path.name.partition(".")[0], stem) if path.suffix else f"{path.name}.copy"
    target = path.with_name(name)
    if target.exists():
        return "nothing"
    shutil.copyfile(path, target)
    return f"as {name}"


def _older(directory: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    assert directory is not None
    return _from(directory.earlier, copy, path)


def _foreign(directory: Directory | None, copy: Path, path: Path, chance: random.Random) -> str:
    assert directory is not None
    there = directory.foreign / path.relative_to(copy)
    if not there.exists():
        same = sorted(there.parent.glob(f"*{path.suffix}"))
        there = chance.choice(same) if same else there
    return _take(there, path)


def _from(source: Path, copy: Path, path: Path) -> str:
    return _take(source / path.relative_to(copy), path)


def _take(source: Path, path: Path) -> str:
    if not source.is_file():
        return "nothing"
    shutil.copyfile(source, path)
    return f"{source.name}"


def _another(copy: Path, path: Path, chance: random.Random) -> Path:
    """A file of the same kind, if there is one."""
    same = [each for each in sorted(path.parent.glob(f"*{path.suffix}")) if each.is_file() and each != path]
    return chance.choice(same) if same else path


KINDS: dict[str, Done] = {
    "flipped": _flipped,
    "overwritten": _overwritten,
    "zeroed": _zeroed,
    "cut": _cut,
    "extended": _extended,
    "removed": _removed,
    "emptied": _emptied,
    "garbage": _garbage,
    "swapped": _swapped,
    "replaced": _replaced,
    "doubled": _doubled,
    "older": _older,
    "foreign": _foreign,
}
