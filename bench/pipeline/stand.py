"""The broker with its feed under test, the load put on it, and what each process costs."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
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
_PARENT, _TIMES = 1, slice(11, 15)
"""Fields behind the name in /proc/PID/stat: the parent; user and system time, its own and of children that ended."""


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

    def load(self, *arguments: str) -> dict[str, Any]:
        """Put a shape of load on the broker and wait for its end; what the client printed. Raises RunError."""
        return run_load(self.program, self.variant, self.server, SIZE, ["--size", str(SIZE), *arguments])

    def start_load(self, *arguments: str) -> "subprocess.Popen[str]":
        """The same without waiting."""
        command = [
            str(self.program), "--target", "blipmq", "--port", str(self.server.port), "--size", str(SIZE), *arguments,
        ]  # fmt: skip
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def cpu_s(self) -> tuple[float, float]:
        """Processor time used so far by the broker, and by its feed."""
        feed = sum(cpu_s(child) for child in children(self.server.process.pid))
        return self.server.cpu_s, feed


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


def children(pid: int) -> list[int]:
    """The processes that this one has started and that are alive."""
    return [child for child, fields in _processes().items() if int(fields[_PARENT]) == pid]


def cpu_s(pid: int) -> float:
    """Processor time of a process and of everything it started."""
    processes = _processes()
    family, found = [pid], 0.0
    while family:
        current = family.pop()
        found += sum(map(int, processes.get(current, [])[_TIMES])) / _TICKS_PER_S
        family += [child for child, fields in processes.items() if int(fields[_PARENT]) == current]
    return found


def folder_bytes(folder: Path) -> int:
    """What the Parquet files below a folder take."""
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the ordered ones stays under."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _processes() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
    return found
