"""Spark Connect: a server in a process of its own, a client that has no JVM."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.cluster import ConnectServer, bare_packages
from tests.harness.lakeside import Lakeside
from tests.spark.cluster.conftest import ORDERS, ROOT, Driver, connection

WHOLE = {"rows": ORDERS, "distinct": ORDERS}


def test_a_server_that_has_headrace_finds_the_source_by_itself(orders: Lakeside, tmp_path: Path) -> None:
    there = connection(orders)
    packages = bare_packages(tmp_path / "packages")
    for name in ("headrace", "pyspark_headrace.py"):
        (packages / name).symlink_to(ROOT / "src" / name)
    with serving(tmp_path, packages) as url, Driver(url, packages, tmp_path / "driver.log") as driver:
        assert driver.ask("found")["found"] == [True]
        assert driver.ask("read", options={**there, "subscribe": "orders"}) == {**WHOLE, "partitions": 1}
        source = {**there, "subscribe": "orders", "startingOffsets": "earliest"}
        sink = {**there, "topic": "copies", "checkpointLocation": str(tmp_path / "checkpoint")}
        assert driver.ask("copy", source=source, sink=sink) == ORDERS
        assert driver.ask("read", options={**there, "subscribe": "copies"}) == {**WHOLE, "partitions": 1}


def test_a_server_without_headrace_is_sent_the_source(orders: Lakeside, packages: Path, tmp_path: Path) -> None:
    there = connection(orders)
    with serving(tmp_path, packages) as url, Driver(url, packages, tmp_path / "driver.log") as driver:
        assert driver.ask("found")["found"] == [False]
        driver.ask("add_artifacts", folder=str(tmp_path))
        assert driver.ask("read", options={**there, "subscribe": "orders"}) == {**WHOLE, "partitions": 1}
        driver.ask("write", options={**there, "topic": "numbers"}, rows=100)
        assert driver.ask("read", options={**there, "subscribe": "numbers"})["distinct"] == 100


@contextmanager
def serving(folder: Path, packages: Path) -> Iterator[str]:
    """A Spark Connect server; nothing of it is left afterwards."""
    server = ConnectServer(folder, packages)
    try:
        yield server.url
    finally:
        server.close()
        assert server.processes() == {}
