"""What `headrace doctor` looks at: each check measures one thing of this machine and says what it means."""

import importlib
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.cli.render import duration, number, percentile, size

OK, WARN, FAIL = "ok", "warn", "fail"

PYTHON_MIN = (3, 11)
FREE_WARN = 1 << 30
FREE_FAIL = 64 << 20
FILES_WARN = 4096
SYNC_SAMPLES = 100
SYNC_SLOW_S = 0.05
PAGE_SIZE = 4096
OVER_UDP = ("fujin",)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    state: str
    detail: str
    advice: str = ""

    def row(self) -> dict[str, Any]:
        """As a row to print."""
        return asdict(self)


def python() -> Finding:
    """The interpreter."""
    detail = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info < PYTHON_MIN:
        return Finding("python", FAIL, detail, "headrace needs Python 3.11 or newer.")
    return Finding("python", OK, detail)


def system() -> Finding:
    """The operating system and the processors."""
    detail = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs"
    if platform.system() != "Linux":
        return Finding("platform", WARN, detail, "Durability is tested on Linux only.")
    return Finding("platform", OK, detail)


def kernels() -> Finding:
    """Whether the hot path runs compiled."""
    from headrace.kernels import compiled

    if compiled():
        return Finding("kernels", OK, "compiled")
    if os.environ.get("HEADRACE_PURE") == "1":
        return Finding("kernels", WARN, "interpreted: HEADRACE_PURE=1 asks for it", "Unset HEADRACE_PURE.")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return Finding(
            "kernels",
            WARN,
            "interpreted: there was no C compiler",
            "Install one and reinstall headrace: 3 to 5 times faster.",
        )
    return Finding(
        "kernels",
        WARN,
        "interpreted: not built",
        "Reinstall headrace (`pip install -e .`) and look at the compiler's output.",
    )


def package(name: str, purpose: str, without: str) -> Finding:
    """An optional package that makes something faster."""
    try:
        version = _version_of(name)
    except ImportError as error:
        return Finding(name, WARN, f"not usable ({error}): {without}", f"pip install {name}")
    return Finding(name, OK, f"{version}: {purpose}" if version else purpose)


def needed(package: str, module: str, listener: str, *, used: bool) -> Finding:
    """A package without which a listener cannot be opened; that is no fault where it is switched off."""
    try:
        version = _version_of(module)
    except ImportError as error:
        advice = f"pip install {package}, or set listen.{listener} to the empty text."
        return Finding(package, FAIL if used else WARN, f"not usable ({error}): no {listener} listener", advice)
    return Finding(package, OK, f"{version}: the {listener} listener" if version else f"the {listener} listener")


def _version_of(module: str) -> str:
    found = getattr(importlib.import_module(module), "__version__", "")
    return found if isinstance(found, str) else ""


def open_files() -> Finding:
    """How many sockets and segments may be open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = "unlimited" if soft == resource.RLIM_INFINITY else number(soft)
    if soft != resource.RLIM_INFINITY and soft < FILES_WARN:
        allowed = "any number" if hard == resource.RLIM_INFINITY else number(hard)
        return Finding(
            "open files", WARN, f"{text} at once", f"Each connection takes one: `ulimit -n` may raise it to {allowed}."
        )
    return Finding("open files", OK, f"{text} at once")


def data_dir(directory: Path) -> list[Finding]:
    """Whether the data directory can be written, has room, and how long its disk takes to sync."""
    place = existing_part(directory)
    try:
        with tempfile.TemporaryFile(dir=place, prefix=".headrace-doctor-") as file:
            free = shutil.disk_usage(place).free
            times = sync_times(file.fileno())
    except OSError as error:
        advice = "Choose another with --data-dir, or change its owner or mode."
        return [Finding("data directory", FAIL, f"{directory}: {error.strerror} ({place})", advice)]
    made = "writable" if place == directory else f"will be made in {place}"
    room = OK if free >= FREE_WARN else WARN if free >= FREE_FAIL else FAIL
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    return [
        Finding("data directory", OK, f"{directory}: {made}"),
        Finding(
            "free space",
            room,
            size(free),
            "" if room == OK else "A full disk refuses publishes until there is room again.",
        ),
        Finding(
            "sync time",
            OK if p50 < SYNC_SLOW_S else WARN,
            f"fdatasync of 4 KiB: p50 {duration(p50)}, p99 {duration(p99)}",
            "" if p50 < SYNC_SLOW_S else "Every durable publish waits for one: use a faster disk.",
        ),
    ]


def existing_part(directory: Path) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    place = directory.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def sync_times(descriptor: int) -> list[float]:
    """Seconds taken by appends of one page with fdatasync, in order of length."""
    page = bytes(PAGE_SIZE)
    times = []
    for _ in range(SYNC_SAMPLES):
        began = time.perf_counter()
        os.write(descriptor, page)
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - began)
    return sorted(times)


def port(name: str, host: str, number: int, running: dict[str, str]) -> Finding:
    """Whether a listener could bind; `running` holds the endpoints a broker in this data directory wrote."""
    check = f"port {name}"
    over = "/udp" if name in OVER_UDP else ""
    kind = socket.SOCK_DGRAM if name in OVER_UDP else socket.SOCK_STREAM
    try:
        family, _, _, _, address = socket.getaddrinfo(host, number, type=kind)[0]
        with socket.socket(family, kind) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if running.get(name, "").endswith(f":{number}"):
            return Finding(check, OK, f"{host}:{number}{over} is in use by the broker of this data directory")
        advice = f"End what holds it, or set listen.{name} to another address."
        return Finding(check, FAIL, f"{host}:{number}{over}: {error.strerror or error}", advice)
    return Finding(check, OK, f"{host}:{number}{over} is free" if number else f"{host}: takes a free one")
