"""Spark Connect: a server in a process of its own, a client that has no JVM."""

from pathlib import Path

from tests.harness.lakeside import Lakeside
from tests.spark.cluster.conftest import WHOLE, Driver, connection, serving


def test_a_server_without_headrace_is_sent_the_source(orders: Lakeside, packages: Path, tmp_path: Path) -> None:
    there = connection(orders)
    with serving(tmp_path, packages) as url, Driver(url, packages, tmp_path / "driver.log") as driver:
        assert driver.ask("found")["found"] == [False]
        driver.ask("add_artifacts", folder=str(tmp_path))
        assert driver.ask("read", options={**there, "subscribe": "orders"}) == {**WHOLE, "partitions": 1}
        driver.ask("write", options={**there, "topic": "numbers"}, rows=100)
        assert driver.ask("read", options={**there, "subscribe": "numbers"})["distinct"] == 100
