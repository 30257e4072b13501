"""Streams into topics, exactly once: batches run again, brokers and drivers killed in the middle."""

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.feed.client import FeedClient
from headrace.feed.ticket import Ticket
from tests.harness.lakeside import Lakeside
from tests.spark.conftest import Publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, last)]


def copy(spark: "SparkSession", broker: Lakeside, checkpoint: Path, **options: str) -> DataStreamWriter:
    """Copy the topic `orders` to `copies`."""
    connection = {"endpoint": broker.endpoint, "key": broker.key}
    source = {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    orders = spark.readStream.format("headrace").options(**connection | source | options).load()
    sink = orders.select("value").writeStream.format("headrace")
    return sink.options(**connection, topic="copies", checkpointLocation=str(checkpoint))


def once(writer: DataStreamWriter) -> StreamingQuery:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def copies(broker: Lakeside) -> list[bytes]:
    with FeedClient(broker.endpoint, key=broker.key) as client:
        ticket = Ticket(topics=("copies",), columns=("value",))
        return [value for batch in client.read(ticket) for value in batch.column(0).to_pylist() if value is not None]


def forget_last(log: Path) -> int:
    """Take the last entry out of a log of the checkpoint; its number."""
    last = max(int(path.name) for path in log.glob("[0-9]*"))
    (log / str(last)).unlink()
    (log / f".{last}.crc").unlink(missing_ok=True)
    return last


def test_a_batch_that_runs_again_is_not_written_again(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 100))
    once(copy(spark, feed_broker, tmp_path / "checkpoint"))
    assert sorted(copies(feed_broker)) == numbered(0, 100)
    for _ in range(2):
        forget_last(tmp_path / "checkpoint" / "commits")
        once(copy(spark, feed_broker, tmp_path / "checkpoint"))
        assert sorted(copies(feed_broker)) == numbered(0, 100)
    publish("orders", numbered(100, 120))
    once(copy(spark, feed_broker, tmp_path / "checkpoint"))
    assert sorted(copies(feed_broker)) == numbered(0, 120)


def test_batches_without_rows_do_not_bother_the_broker(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 10))
    connection = {"endpoint": feed_broker.endpoint, "key": feed_broker.key}
    orders = spark.readStream.format("headrace").options(
        **connection, subscribe="orders", startingOffsets="earliest", reader=""
    )
    none = orders.load().where("CAST(value AS STRING) = 'nothing'").select("value")
    sink = none.writeStream.format("headrace").options(
        **connection, topic="copies", checkpointLocation=str(tmp_path / "checkpoint")
    )
    with FeedClient(feed_broker.endpoint, key=feed_broker.key) as client:
        before = client.span()
        assert [each["numInputRows"] for each in once(sink).recentProgress] == [10]
        assert client.span() == before


def test_a_broker_killed_in_between_loses_and_doubles_nothing(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 400))
    query = copy(spark, feed_broker, tmp_path / "checkpoint").start()
    try:
        for _ in range(2):
            feed_broker.kill()
            feed_broker.start()
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(copies(feed_broker)) == numbered(0, 400)


def test_a_row_that_cannot_be_a_message_stops_the_query_and_leaves_nothing(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 10))
    connection = {"endpoint": feed_broker.endpoint, "key": feed_broker.key}
    orders = spark.readStream.format("headrace").options(**connection, subscribe="orders", startingOffsets="earliest")
    nulls = orders.load().selectExpr("IF(CAST(value AS STRING) = '000007', NULL, value) AS value")
    sink = nulls.writeStream.format("headrace").options(
        **connection, topic="copies", checkpointLocation=str(tmp_path / "checkpoint")
    )
    with pytest.raises(StreamingQueryException, match="column value is null in 1 of 10 rows"):
        once(sink)
    assert copies(feed_broker) == []


def start_copying(broker: Lakeside, checkpoint: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.spark.writer_process", broker.endpoint, broker.key, str(checkpoint)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def copied(client: FeedClient) -> int:
    return sum(each.messages for each in client.topics() if each.topic == "copies")


def kill_driver(process: "subprocess.Popen[bytes]") -> None:
    """End the driver, its JVM and every worker with -9, all at the same moment."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("seed", [20261116])
def test_a_driver_killed_at_any_moment_leaves_every_row_once(
    feed_broker: Lakeside, publish: Publish, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    rows = 4_000
    publish("orders", numbered(0, rows))
    checkpoint = tmp_path / "checkpoint"
    for kill in range(3):
        process = start_copying(feed_broker, checkpoint)
        with FeedClient(feed_broker.endpoint, key=feed_broker.key) as client:
            goal = copied(client) + chance.randrange(1, 1000)
            while copied(client) < goal and process.poll() is None:
                client.wait(client.span().latest, 1.0)
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0, 0.2))
        kill_driver(process)
        if kill == 1:
            feed_broker.kill()
            feed_broker.start()
    assert len(copies(feed_broker)) < rows, "the last kill came after the end"
    assert start_copying(feed_broker, checkpoint).wait(120) == 0
    assert sorted(copies(feed_broker)) == numbered(0, rows)
