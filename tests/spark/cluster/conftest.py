"""What tests against clusters share: a broker with something in it, drivers, and a Python that lacks headrace."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.home import spark_home
from headrace.spark.java import cache_dir, find_java
from tests.harness.cluster import LOOPBACK, ConnectServer, bare_packages, bare_python
from tests.harness.lakeside import Lakeside

ROOT = Path(__file__).parents[3]
ORDERS = 2000
WHOLE = {"rows": ORDERS, "distinct": ORDERS}


class Driver:
    """The process of `driver.py`."""

    def __init__(self, master: str, packages: Path, log: Path, **conf: str) -> None:
        settings = [f"{name.replace('_', '.')}={value}" for name, value in conf.items()]
        environ = os.environ | driver_environ(packages)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.cluster.driver", master, *settings],
                cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._log = log
        assert self.answer() == "ready"

    def ask(self, job: str, **arguments: Any) -> Any:
        """Do a job; what came of it."""
        self.begin(job, **arguments)
        return self.answer()

    def begin(self, job: str, **arguments: Any) -> None:
        """Begin a job."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([job, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What came of the job that was begun, once it is done."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver ended:\n{self._log.read_text()[-6000:]}"
        return json.loads(line)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *raised: object) -> None:
        """Have it end by itself; its JVM ends with it."""
        self._process.communicate(timeout=60)


@contextmanager
def serving(
    folder: Path, packages: Path, master: str = "local[2]", conf: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A Spark Connect server; nothing of it is left afterwards."""
    server = ConnectServer(folder, packages, master, conf)
    try:
        yield server.url
    finally:
        server.close()
        assert server.processes() == {}


def driver_environ(packages: Path) -> dict[str, str]:
    """The environment of a driver: it has headrace, while workers with the same interpreter have only `packages`."""
    return {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": bare_python(),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{packages}",
        "SPARK_HOME": str(spark_home(cache_dir())),
        "SPARK_LOCAL_IP": LOOPBACK,
    }


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything installed here but headrace."""
    return bare_packages(tmp_path_factory.mktemp("bare") / "packages")


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    """A broker whose topic `orders` holds ORDERS messages, all different."""
    broker = Lakeside(tmp_path_factory.mktemp("broker"))
    broker.start()
    asyncio.run(broker.publish("orders", [b"%06d" % number for number in range(ORDERS)]))
    yield broker
    broker.close()


def connection(broker: Lakeside) -> dict[str, str]:
    """The options that say where the broker is."""
    return {"endpoint": broker.endpoint, "key": broker.key}
