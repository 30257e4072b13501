"""Following topics: exactly once over restarts, limits, lag, reports, data loss, a broker that goes and comes back."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from tests.harness.lakeside import Lakeside
from tests.spark.conftest import Publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, last)]


def follow(spark: "SparkSession", broker: Lakeside, **options: str) -> DataStreamReader:
    given = {"endpoint": broker.endpoint, "key": broker.key, "subscribe": "orders", "startingOffsets": "earliest"}
    return spark.readStream.format("headrace").options(**given | options)


def into(source: DataStreamReader, place: Path) -> DataStreamWriter:
    """Write the stream to Parquet files, with the checkpoint beside them."""
    return (
        source.load()
        .writeStream.format("parquet")
        .option("path", str(place / "rows"))
        .option("checkpointLocation", str(place / "checkpoint"))
    )


def once(writer: DataStreamWriter) -> StreamingQuery:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def stored(spark: "SparkSession", place: Path) -> list[bytes]:
    return [bytes(row.value) for row in spark.read.parquet(str(place / "rows")).orderBy("offset").collect()]


def batches(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def last_batch(query: StreamingQuery) -> int:
    return max(int(progress["batchId"]) for progress in query.recentProgress if progress["numInputRows"])


def test_two_streams_have_every_message_once_over_restarts(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    publish("orders", numbered(0, 100))
    once(into(follow(spark, feed_broker, reader="one"), one))
    publish("orders", numbered(100, 150))
    publish("payments", numbered(0, 10))
    for name, place in (("one", one), ("two", two)):
        once(into(follow(spark, feed_broker, reader=name), place))
    assert stored(spark, one) == stored(spark, two) == numbered(0, 150)
    last = sorted((one / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))[-1]
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    publish("orders", numbered(150, 160))
    once(into(follow(spark, feed_broker, reader="one"), one))
    assert stored(spark, one) == numbered(0, 160)


def test_available_now_takes_several_batches(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 100))
    query = once(into(follow(spark, feed_broker, maxOffsetsPerTrigger="30", minOffsetsPerTrigger="5"), tmp_path))
    assert batches(query) == [30, 30, 30, 10]
    assert stored(spark, tmp_path) == numbered(0, 100)
    source = json.loads(query.recentProgress[0].json)["sources"][0]
    behind = source["latestOffset"]["offset"] - source["endOffset"]["offset"]
    assert behind == 70, "the lag is in the progress"
    assert batches(once(into(follow(spark, feed_broker), tmp_path))) == []


def test_a_limit_in_bytes(spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path) -> None:
    for number in range(40):
        publish("orders", [bytes([number]) * 20_000])
    query = once(into(follow(spark, feed_broker, maxBytesPerTrigger="256k"), tmp_path))
    assert len(batches(query)) >= 4
    assert max(batches(query)) <= 13
    assert len(stored(spark, tmp_path)) == 40


def test_a_running_query_waits_for_enough(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 1))
    query = into(follow(spark, feed_broker, minOffsetsPerTrigger="10", maxTriggerDelay="1h"), tmp_path).start()
    try:
        query.processAllAvailable()
        assert batches(query) == [1], "the first batch waits for nothing"
        publish("orders", numbered(1, 5))
        query.processAllAvailable()
        assert batches(query) == [1]
        publish("orders", numbered(5, 11))
        query.processAllAvailable()
        assert batches(query) == [1, 10]
    finally:
        query.stop()
    assert stored(spark, tmp_path) == numbered(0, 11)


def test_what_does_not_concern_a_query_makes_no_batch(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 3))
    query = into(follow(spark, feed_broker), tmp_path).start()
    try:
        query.processAllAvailable()
        seen = last_batch(query)
        publish("payments", numbered(0, 500))
        query.processAllAvailable()
        assert last_batch(query) == seen
        publish("orders", numbered(3, 5))
        query.processAllAvailable()
        assert last_batch(query) == seen + 1
    finally:
        query.stop()
    assert stored(spark, tmp_path) == numbered(0, 5)


def test_a_stream_of_the_newest_begins_at_the_end(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 3))
    query = into(follow(spark, feed_broker, startingOffsets="latest"), tmp_path).start()
    try:
        query.processAllAvailable()
        publish("orders", numbered(3, 5))
        query.processAllAvailable()
    finally:
        query.stop()
    assert stored(spark, tmp_path) == numbered(3, 5)


def test_a_stream_can_begin_at_a_time(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 3))
    query = once(into(follow(spark, feed_broker, startingTimestamp="1000", maxOffsetsPerTrigger="2"), tmp_path))
    assert batches(query) == [2, 1]
    assert stored(spark, tmp_path) == numbered(0, 3)


def test_a_broker_killed_in_between_is_waited_for(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 100))
    query = into(follow(spark, feed_broker, maxOffsetsPerTrigger="7"), tmp_path).start()
    try:
        for number in range(3):
            feed_broker.kill()
            feed_broker.start()
            publish("orders", numbered(100 + 10 * number, 110 + 10 * number))
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
    assert stored(spark, tmp_path) == numbered(0, 130)


def another_log(broker: Lakeside) -> None:
    """What a broker is like whose data directory was lost."""
    broker.stop()
    shutil.rmtree(broker.data_dir / "log")
    broker.start()


def test_a_log_made_anew_stops_the_query_with_its_offsets(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 100))
    once(into(follow(spark, feed_broker), tmp_path))
    another_log(feed_broker)
    publish("orders", numbered(200, 205))
    with pytest.raises(StreamingQueryException, match=r"has read up to offset \d+, but the log ends at \d+"):
        once(into(follow(spark, feed_broker), tmp_path))
    once(into(follow(spark, feed_broker, failOnDataLoss="false"), tmp_path))
    assert sorted(stored(spark, tmp_path)) == [*numbered(0, 100), *numbered(200, 205)]
    publish("orders", numbered(205, 210))
    once(into(follow(spark, feed_broker), tmp_path))
    assert sorted(stored(spark, tmp_path)) == [*numbered(0, 100), *numbered(200, 210)]


def test_the_checkpoint_of_another_source_is_refused(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 5))
    once(into(follow(spark, feed_broker), tmp_path))
    for log in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"):
        log.write_text(log.read_text().replace('{"offset"', '{"orders-0"'))
    for crc in (tmp_path / "checkpoint" / "offsets").glob(".*.crc"):
        crc.unlink()
    with pytest.raises(StreamingQueryException, match="no offset of this source"):
        once(into(follow(spark, feed_broker), tmp_path))


def test_events_can_be_followed(spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path) -> None:
    publish("orders", numbered(0, 5))
    once(into(follow(spark, feed_broker, reader="first"), tmp_path / "messages"))
    events = spark.readStream.format("headrace").options(
        endpoint=feed_broker.endpoint, key=feed_broker.key, stream="events", startingOffsets="earliest"
    )
    once(into(events, tmp_path))
    assert spark.read.parquet(str(tmp_path / "rows")).where("event = 'reported'").count() >= 1


def test_a_query_of_the_newest_killed_in_its_first_batch_misses_nothing(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    publish("orders", numbered(0, 3))
    newest = {"startingOffsets": "latest"}
    once(into(follow(spark, feed_broker, **newest), tmp_path))
    for log in ("commits", "offsets"):
        assert [path.name for path in (tmp_path / "checkpoint" / log).glob("[0-9]*")] == ["0"]
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    publish("orders", numbered(3, 5))
    once(into(follow(spark, feed_broker, **newest), tmp_path))
    assert stored(spark, tmp_path) == numbered(3, 5)
