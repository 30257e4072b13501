"""A real `headrace serve` that can be killed, stopped and given a bad disk or a wrong clock, and comes back."""

import json
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path
from random import sample
from typing import Any

import pytest

DOORS = ("blipmq", "sspq", "fujin", "grpc", "http", "flight")
START_S = 60.0
OWN_PORTS = range(20_000, 30_000)
_RULE = struct.Struct("<iiiiqQ")
_SOURCE = Path(__file__).with_name("faults.c")


def build_faults(folder: Path) -> Path:
    """The library that does faults to whoever loads it first."""
    if shutil.which("gcc") is None:
        pytest.fail("gcc is needed to do faults to a broker: apt install gcc")
    library = folder / "faults.so"
    command = ["gcc", "-O2", "-fPIC", "-shared", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Rule:
    """What is wrong with disk and clock, shared with the process it is done to."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def set(self, *, write: int = 0, sync: int = 0, read: int = 0, delay_us: int = 0, clock_us: int = 0) -> None:
        """From now on writes, syncs and reads fail with these causes, wait so long, and the clock is so far off."""
        failed = self.failed
        self._shared[: _RULE.size] = _RULE.pack(write, sync, read, delay_us, clock_us, failed)

    @property
    def failed(self) -> int:
        """How many calls were made to fail so far."""
        count: int = _RULE.unpack_from(self._shared)[-1]
        return count


class Broker:
    """One data directory and the process that serves it now, always at the same addresses."""

    def __init__(self, folder: Path, library: Path, settings: dict[str, str]) -> None:
        self.data_dir = folder / "data"
        self.data_dir.mkdir(mode=0o700, exist_ok=True)
        self.rule = Rule(folder / "rule")
        self._errors = folder / "broker.log"
        self.endpoints: dict[str, str] = {}
        self.starts = 0
        self._environment = os.environ | {
            "LD_PRELOAD": str(library),
            "HEADRACE_FAULT_RULE": str(folder / "rule"),
            "HEADRACE_FAULT_BELOW": str(self.data_dir),
            **{f"HEADRACE_{name}": value for name, value in settings.items()},
            **{f"HEADRACE_LISTEN__{name.upper()}": f"127.0.0.1:{port}" for name, port in _free_ports().items()},
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> None:
        """Run until it says that it is ready."""
        command = [sys.executable, "-m", "headrace", "serve", "--dev", "--data-dir", str(self.data_dir), *arguments]
        with self._errors.open("a") as stderr:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
            )
        self.starts += 1
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening "):
                _, name, url = line.split()
                self.endpoints[name] = url
            if line.strip() == "ready":
                return
        raise AssertionError(f"the broker did not start: {self._errors.read_text()[-4000:]}")

    def signal(self, which: signal.Signals) -> None:
        """Send a signal to the broker and to its feed."""
        assert self._process is not None
        os.killpg(self._process.pid, which)

    def kill(self) -> None:
        """End it, and its feed, without a word."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def api(self, path: str) -> Any:
        """An answer of the HTTP API."""
        request = urllib.request.Request(self.endpoints["http"] + path, headers={"authorization": "Bearer dev-key"})
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            return json.load(answer)


def _free_ports() -> dict[str, int]:
    """A port for each door that nobody listens at, over UDP neither.

    Not one of those the system gives to clients: while the broker is away, somebody who dials would be given it.
    """
    found: dict[str, int] = {}
    for port in sample(OWN_PORTS, len(OWN_PORTS)):
        if len(found) < len(DOORS) and _is_free(port):
            found[DOORS[len(found)]] = port
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        try:
            stream.bind(("127.0.0.1", port))
            datagram.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
