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


@dataclass
class DiskTimes:
    """Times of one 4 KiB append and fdatasync, gathered all through the run between the measurements.

    `samples_us` are of syncs back to back. `paced_us` are of syncs that were due every millisecond, counted from when
    they were due: as the latency of messages is, so that whatever stops the machine is in them as it is there.
    """

    samples_us: list[float] = field(default_factory=list)
    paced_us: list[float] = field(default_factory=list)

    def measure(self, directory: Path, seconds: float) -> None:
        """Add what the disk does now, one writer."""
        path = directory / "disk-probe"
        handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            until = time.perf_counter() + seconds
            while (began := time.perf_counter()) < until:
                self.samples_us.append(_sync(handle, began))
            due = time.perf_counter()
            for _ in range(int(seconds / PACE_S)):
                due += PACE_S
                time.sleep(max(0.0, due - time.perf_counter()))
                self.paced_us.append(_sync(handle, due))
        finally:
            os.close(handle)
            path.unlink()

    def quantile(self, share: float) -> float:
        """Microseconds that this share of the syncs back to back stayed under; 0 when nothing was measured."""
        return _quantile(self.samples_us, share)

    def paced_quantile(self, share: float) -> float:
        """The same of the syncs that were due every millisecond."""
        return _quantile(self.paced_us, share)


def _sync(handle: int, since: float) -> float:
    """Append a block and sync it; the microseconds since then."""
    os.write(handle, BLOCK)
    os.fdatasync(handle)
    return (time.perf_counter() - since) * 1e6


def _quantile(samples: list[float], share: float) -> float:
    if not samples:
        return 0.0
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


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
