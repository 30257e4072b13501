"""One Spark session for the whole run, and a real broker beside it for each test."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.spark.session import new_session
from tests.harness.archive import have_archive
from tests.harness.cluster import quick_java
from tests.harness.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Publish = Callable[[str, list[bytes]], None]

QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stopTimeout": "30s",
}


def pytest_configure(config: pytest.Config) -> None:
    """Prepare for every JVM that is started here, by whatever command."""
    if not hasattr(config, "workerinput"):
        have_archive()
    os.environ.setdefault("JDK_JAVA_OPTIONS", quick_java())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that nobody has to wait for it alone in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session every Spark test shares."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = QUICK | {"spark.sql.warehouse.dir": str(warehouse)}
    session = new_session("headrace tests", master="local[2]", memory="1g", conf=conf)
    yield session
    session.stop()


@pytest.fixture
def feed_broker(tmp_path: Path) -> Iterator[Lakeside]:
    """A running broker with its feed: `endpoint`, `key`, `kill`, `start`. It stores whatever it is sent twice twice."""
    broker = Lakeside(tmp_path / "data", GRPCQ__DEDUP_S="0")
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def publish(feed_broker: Lakeside) -> Publish:
    """Publish values to a topic of that broker; durable on return."""
    return lambda topic, values: asyncio.run(feed_broker.publish(topic, values))
