"""The broker with its feed under test, the load put on it, and what each process costs."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.brokers import Variant, all_variants, start_headrace
from bench.measure import run_load
from bench.process import Server

KEY = "dev-key"
SIZE = 100
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _SESSION, _TIMES = 1, 3, slice(11, 13)
"""Fields behind the name in /proc/PID/stat: the parent; user and system time."""


@dataclass(frozen=True, kw_only=True)
class Stand:
    """A broker that has a feed, in a directory of its own, and the load client."""

    server: Server
    directory: Path
    program: Path
    variant: Variant

    @property
    def endpoint(self) -> str:
        """Where the feed listens."""
        return f"grpc://127.0.0.1:{self.server.ports['flight']}"

    @property
    def data_dir(self) -> Path:
        """The broker's data directory."""
        return self.directory / "data"

    @property
    def log_bytes(self) -> int:
        """What the log takes on disk."""
        return sum(path.stat().st_blocks * 512 for path in (self.data_dir / "log").rglob("*") if path.is_file())

    @property
    def feed_pid(self) -> int:
        """The process of the feed."""
        broker = self.server.process.pid
        return next(pid for pid, fields in _processes().items() if int(fields[_PARENT]) == broker)

    def load(self, *arguments: str) -> dict[str, Any]:
        """Put a shape of load on the broker and wait for its end; what the client printed. Raises RunError."""
        return run_load(self.program, self.variant, self.server, SIZE, ["--size", str(SIZE), *arguments])


@contextmanager
def stand(program: Path, scratch: Path) -> Iterator[Stand]:
    """A fresh broker with its feed; it and its files are gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="pipeline-", dir=scratch))
    try:
        server = start_headrace(directory, sync="always", pure=False, feed=True)
        try:
            yield Stand(server=server, directory=directory, program=program, variant=all_variants()["headrace"])
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Meter:
    """Processor time of some families of processes from now on; of processes that end meanwhile, nothing is known."""

    def __init__(self, **roots: int) -> None:
        """Each family has a name and the process that started all others of it; one within another counts there."""
        self._roots = roots
        self._before = self._times()

    def read(self) -> dict[str, float]:
        """Seconds used since, by family."""
        used = {}
        for name, times in self._times().items():
            before = self._before[name]
            used[name] = sum(ticks - before.get(pid, 0) for pid, ticks in times.items()) / _TICKS_PER_S
        return used

    def _times(self) -> dict[str, dict[int, int]]:
        processes = _processes()
        return {name: self._family(root, processes) for name, root in self._roots.items()}

    def _family(self, root: int, processes: dict[int, list[str]]) -> dict[int, int]:
        """Who descends from the root or is in a session that one of them began, with the ticks each has used."""
        waiting, found = [root], {}
        while waiting:
            current = waiting.pop()
            found[current] = sum(map(int, processes.get(current, [])[_TIMES]))
            waiting += [
                child
                for child, fields in processes.items()
                if current in (int(fields[_PARENT]), int(fields[_SESSION]))
                and child not in found
                and child not in self._roots.values()
            ]
        return found


def folder_bytes(folder: Path) -> int:
    """What the Parquet files below a folder take."""
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def _processes() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
    return found
