"""Streams into topics, exactly once: batches run again, brokers killed in the middle; `torture` kills drivers."""

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
