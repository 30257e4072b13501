"""Spark Connect: a server in a process of its own, a client that has no JVM."""

from pathlib import Path
from typing import Any

from tests.harness.cluster import ConnectServer, bare_packages
from tests.harness.lakeside import Lakeside
from tests.spark.cluster.conftest import ORDERS, ROOT, Driver, connection

WHOLE = {"rows": ORDERS, "distinct": ORDERS}


def test_a_server_that_has_headrace_finds_the_source_by_itself(orders: Lakeside, tmp_path: Path) -> None:
    packages = bare_packages(tmp_path / "packages")
    for name in ("headrace", "pyspark_headrace.py"):
        (packages / name).symlink_to(ROOT / "src" / name)
    assert _read_and_follow(orders, packages, tmp_path, found=True) == []


def test_a_server_without_headrace_is_sent_the_source(orders: Lakeside, packages: Path, tmp_path: Path) -> None:
    assert _read_and_follow(orders, packages, tmp_path, found=False) == []


def _read_and_follow(orders: Lakeside, packages: Path, folder: Path, *, found: bool) -> list[int]:
    """Read a topic and copy it by a stream; returns the processes that are left of the server, once it has ended."""
    there = connection(orders)
    copies = f"copies.{found}"
    server = ConnectServer(folder, packages)
    try:
        with Driver(server.url, packages, folder / "driver.log") as driver:
            assert driver.ask("found")["found"] == [found]
            if not found:
                driver.ask("add_artifacts", folder=str(folder))
            read: dict[str, Any] = driver.ask("read", options={**there, "subscribe": "orders"})
            assert read == {**WHOLE, "partitions": 1}
            source = {**there, "subscribe": "orders", "startingOffsets": "earliest"}
            sink = {**there, "topic": copies, "checkpointLocation": str(folder / "checkpoint")}
            assert driver.ask("copy", source=source, sink=sink) == ORDERS
            assert driver.ask("read", options={**there, "subscribe": copies}) == {**WHOLE, "partitions": 1}
    finally:
        server.close()
    return list(server.processes())
