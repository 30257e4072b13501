"""A server under test as a child process: when it answered, what it costs, how it ends. Knows no broker."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class StartError(Exception):
    """A server did not come up; carries its own last words."""


def free_port() -> int:
    """A TCP port of the loopback nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(kw_only=True)
class Server:
    """A running server; `ready_s` is the time from its start to its first sign of readiness.

    `ports` are all it announced, by name.
    """

    process: subprocess.Popen[str]
    port: int
    ready_s: float
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def cpu_s(self) -> float:
        """Processor time used so far by all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    @property
    def resident_mib(self) -> float:
        """Memory resident now."""
        return self._status_mib("VmRSS:")

    @property
    def resident_peak_mib(self) -> float:
        """The most memory that was ever resident."""
        return self._status_mib("VmHWM:")

    def _status_mib(self, field: str) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
        return 0.0

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self._reap()

    def stop(self) -> float:
        """Ask it to end and return how long that took; killed when it does not."""
        began = time.perf_counter()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reap()
        return time.perf_counter() - began

    def _reap(self) -> None:
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def start_announcing(
    command: Sequence[str],
    listening: str,
    log: Path,
    environ: Mapping[str, str] | None = None,
    *,
    own_session: bool = False,
) -> Server:
    """A server that prints `listening <name> <scheme>://<host>:<port>` lines and then `ready`.

    `listening` is the listener whose port is wanted. `own_session` is how it runs when somebody else starts what runs
    beside it: Linux shares cores out among sessions first. Raises StartError.
    """
    began = time.perf_counter()
    process = _spawn(command, log, stdout=subprocess.PIPE, environ=environ, own_session=own_session)
    assert process.stdout is not None
    ports: dict[str, int] = {}
    for line in process.stdout:
        words = line.split()
        if words[:1] == ["listening"]:
            ports[words[1]] = int(words[2].rpartition(":")[2])
        if words == ["ready"] and listening in ports:
            ready_s = time.perf_counter() - began
            return Server(process=process, port=ports[listening], ready_s=ready_s, ports=ports)
    process.kill()
    process.wait()
    raise StartError(f"{command[0]} ended before it was ready: {_last_words(log)}")


def start_listening(command: Sequence[str], port: int, log: Path) -> Server:
    """A server that is ready once its port takes connections. Raises StartError."""
    began = time.perf_counter()
    process = _spawn(command, log, stdout=subprocess.DEVNULL)
    while time.perf_counter() - began < START_TIMEOUT_S and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return Server(process=process, port=port, ready_s=time.perf_counter() - began)
        time.sleep(0.01)
    process.kill()
    process.wait()
    raise StartError(f"{command[0]} did not listen: {_last_words(log)}")


def _spawn(
    command: Sequence[str],
    log: Path,
    *,
    stdout: int,
    environ: Mapping[str, str] | None = None,
    own_session: bool = False,
) -> subprocess.Popen[str]:
    with log.open("a") as stderr:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environ, text=True,
            start_new_session=own_session,
        )  # fmt: skip


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-3:]) if lines else "it said nothing"
