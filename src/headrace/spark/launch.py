"""Starts the JVM of a local driver without Spark's shell scripts, from an archive of loaded classes.

The scripts start one JVM to find out how to start another, and each loads thousands of classes from jars. Started
directly, with the classes mapped from an archive that the first run leaves behind, a session is there in less than half
the time.
The JVM ends when this process does, however that ends: it watches its standard input.
"""

import contextlib
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.spark.archive import archive_options, class_path
from headrace.spark.java import Java, SparkUnavailable
from headrace.spark.nursery import stand_in

OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
    "sun.util.calendar",
)  # fmt: skip
"""What Spark reaches into, as its own launcher lists it."""

LOGGING = Path(__file__).with_name("log4j2.properties")
STACK = "4m"
"""Plans of stateful queries are nested deeply enough to overflow a thread's usual stack when they are serialized."""

CLASSES_ROOM = "-XX:MetaspaceSize=256m"
"""Else the heap is collected again and again only because Spark has loaded more classes."""

COLLECTOR = "-XX:+UseParallelGC"
"""Rows that come and go by the million cost a fifth less without the barriers of a collector that works alongside."""

UNCHECKED = ("-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false")
"""Arrow need not ask for every cell whether it lies inside its buffer: Spark asks for rows and cells that are there."""

START_TIMEOUT_S = 120.0
LOOPBACK = "127.0.0.1"
_POLL_S = 0.02


@contextlib.contextmanager
def gateway(java: Java, home: Path, conf: Mapping[str, str], memory: str, log: Path | None = None) -> Iterator[None]:
    """A new JVM that the first session made inside this context connects to.

    What it and its workers print is appended to `log`, or goes where our own errors go. Raises SparkUnavailable when
    it does not come up.
    """
    python = interpreter(conf)
    with tempfile.TemporaryDirectory(prefix="headrace-spark-") as scratch:
        information = Path(scratch, "gateway")
        environ = os.environ | {
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(information),
            "JAVA_HOME": str(java.home),
            "PYSPARK_PYTHON": python,
            "SPARK_CONNECT_MODE": "0",
            "SPARK_HOME": str(home),
        }
        if conf.get("spark.master", "").startswith("local"):
            environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        with log.open("ab") if log is not None else contextlib.nullcontext() as output:
            process = subprocess.Popen(
                command(java, home, conf, memory),
                env=environ,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        port, secret = _connection(process, information, str(log) if log is not None else "its output above")
    ours = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret, "SPARK_HOME": str(home)}
    with _environ({**ours, "PYSPARK_PYTHON": python}):
        yield


def interpreter(conf: Mapping[str, str]) -> str:
    """The Python for Spark to start: the user's choice, else this one.

    A stand-in for it where Spark starts all of them here; the executors of a cluster look for it on their machines.
    """
    if chosen := conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON"):
        return chosen
    here = conf.get("spark.master", "").partition("[")[0] == "local"
    return stand_in(sys.executable) if here else sys.executable


@contextlib.contextmanager
def _environ(ours: Mapping[str, str]) -> Iterator[None]:
    """Our environment with these variables in it, for as long as this lasts."""
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def command(java: Java, home: Path, conf: Mapping[str, str], memory: str) -> list[str]:
    """The command line of the JVM."""
    own = conf.get("spark.driver.extraJavaOptions", "").split()
    settings = [f"--conf={name}={value}" for name, value in conf.items() if name != "spark.driver.extraJavaOptions"]
    return [
        str(java.executable),
        "-cp", class_path(home),
        f"-Xmx{memory}",
        f"-Xss{STACK}",
        CLASSES_ROOM,
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
        "--enable-native-access=ALL-UNNAMED",
        "-Djdk.lang.Process.launchMechanism=VFORK",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        f"-Dlog4j2.configurationFile={LOGGING}",
        *(() if any(option.startswith("-XX:+Use") and option.endswith("GC") for option in own) else (COLLECTOR,)),
        *UNCHECKED,
        *archive_options(java, home),
        *own,
        "org.apache.spark.deploy.SparkSubmit",
        *settings,
        "pyspark-shell",
    ]  # fmt: skip


def _connection(process: "subprocess.Popen[bytes]", information: Path, see: str) -> tuple[int, str]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not information.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SparkUnavailable(f"the JVM ended with {process.wait()} before Spark was up; see {see}")
        time.sleep(_POLL_S)
    data = information.read_bytes()
    port, size = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + size].decode()
