"""What the figures were measured on: processor, memory, disk and its sync time, versions. Changes nothing."""

import os
import platform
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.brokers import jetstream_can_sync, version_of

BLOCK = os.urandom(4096)
PACE_S = 0.001
_PACKAGES = ("headrace", "uvloop", "isal", "cython")


class Times(list[float]):
    """Microseconds."""

    def quantile(self, share: float) -> float:
        """What this share of them stayed under; 0 when nothing was measured."""
        return sorted(self)[min(len(self) - 1, int(len(self) * share))] if self else 0.0


@dataclass
class DiskTimes:
    """Times of one 4 KiB append and fdatasync, one writer, taken between the runs they are to be compared with.

    hurried   syncs back to back, as fast as they go
    paced     syncs as often as the bursts of the latency scenario ask for one: each from its call to its return
    waited    the same ones from when they were due: with all that stops the machine, as in the latency of messages
    """

    hurried: Times = field(default_factory=Times)
    paced: Times = field(default_factory=Times)
    waited: Times = field(default_factory=Times)

    def measure(self, directory: Path, seconds: float) -> None:
        """Add what the disk does now, half of the time back to back."""
        path = directory / "disk-probe"
        handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            until = time.perf_counter() + seconds / 2
            while (began := time.perf_counter()) < until:
                self.hurried.append(1e6 * (_sync(handle) - began))
            due = time.perf_counter()
            for _ in range(int(seconds / 2 / PACE_S)):
                due += PACE_S
                time.sleep(max(0.0, due - time.perf_counter()))
                began = time.perf_counter()
                ended = _sync(handle)
                self.paced.append(1e6 * (ended - began))
                self.waited.append(1e6 * (ended - due))
        finally:
            os.close(handle)
            path.unlink()


def _sync(handle: int) -> float:
    """Append a block and sync it; when that was done."""
    os.write(handle, BLOCK)
    os.fdatasync(handle)
    return time.perf_counter()


def describe(directory: Path) -> dict[str, str]:
    """The machine, the software and the commit, as lines of a table."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "processor": f"{_field('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores",
        "memory": f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) / (1 << 20):.0f} GiB",
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(directory),
        "Python": platform.python_version(),
        "packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
        "Redis": version_of("redis-server") or "not installed (apt install redis-server)",
        "NATS": _nats(),
    }


def _nats() -> str:
    found = version_of("nats-server")
    if not found:
        return "not installed (apt install nats-server)"
    return found if jetstream_can_sync() else f"{found}, without `sync_interval: always` (2.10 and later have it)"


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "0"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _file_system(directory: Path) -> str:
    """The type of the file system a directory is on."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, found, *_ = line.split()
        if str(directory.resolve()).startswith(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind
