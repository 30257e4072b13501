"""Rows that are gone: by retention, before or after they were read, and by damage."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from headrace.log import Log, LogSettings, OsDisk
from tests.harness.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD, NEW = 20, 30
LATER_US = 1 << 60
SIZE = 10_000


def value(number: int) -> bytes:
    return (b"%06d" % number).ljust(SIZE, b".")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Lakeside]:
    """A broker whose segments hold six messages each."""
    broker = Lakeside(tmp_path / "data", LOG__SEGMENT_BYTES="65536")
    broker.start()
    yield broker
    broker.close()


def publish(broker: Lakeside, topic: str, first: int, last: int) -> None:
    for number in range(first, last):
        asyncio.run(broker.publish(topic, [value(number)]))


def segments(broker: Lakeside) -> list[Path]:
    return sorted((broker.data_dir / "log").glob("*.seg"))


def forget_oldest(broker: Lakeside, count: int) -> int:
    """What retention does, by the log itself, without waiting for it; the oldest offset that is left."""
    assert broker.stop() == 0
    log = Log.open(broker.data_dir / "log", OsDisk(), LogSettings())
    removal = log.retire(LATER_US, int(segments(broker)[count].stem))
    assert removal is not None
    removal.run()
    assert len(removal.segments) == count
    log.close()
    broker.start()
    return int(segments(broker)[0].stem)


def copy(spark: "SparkSession", broker: Lakeside, place: Path, **options: str) -> StreamingQuery:
    connection = {"endpoint": broker.endpoint, "key": broker.key, "subscribePattern": ".*", "reader": "copy"}
    rows = spark.readStream.format("headrace").options(**connection, startingOffsets="earliest", **options).load()
    query = (
        rows.selectExpr("offset", "topic", "INT(STRING(substring(value, 1, 6))) AS number")
        .writeStream.format("parquet")
        .options(path=str(place / "rows"), checkpointLocation=str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def numbers(spark: "SparkSession", place: Path) -> list[int]:
    return sorted(row.number for row in spark.read.parquet(str(place / "rows")).collect())


def test_a_topic_that_retention_took_after_it_was_read_stops_nothing(
    spark: "SparkSession", broker: Lakeside, tmp_path: Path
) -> None:
    publish(broker, "passing", 0, OLD)
    publish(broker, "orders", OLD, NEW)
    copy(spark, broker, tmp_path)
    assert forget_oldest(broker, 4) > OLD
    publish(broker, "orders", NEW, NEW + 5)
    copy(spark, broker, tmp_path)
    assert numbers(spark, tmp_path) == list(range(NEW + 5))


def test_rows_gone_before_they_were_read_are_named(spark: "SparkSession", broker: Lakeside, tmp_path: Path) -> None:
    publish(broker, "orders", 0, 5)
    copy(spark, broker, tmp_path)
    publish(broker, "orders", 5, NEW)
    earliest = forget_oldest(broker, 3)
    with pytest.raises(StreamingQueryException, match=rf"offsets \d+ to {earliest - 1} are gone"):
        copy(spark, broker, tmp_path)
    copy(spark, broker, tmp_path, failOnDataLoss="false")
    kept = numbers(spark, tmp_path)
    assert kept[:5] == list(range(5))
    assert kept[5] > 5
    assert kept[5:] == list(range(kept[5], NEW))
    copy(spark, broker, tmp_path)
    assert numbers(spark, tmp_path) == kept


def test_a_table_with_a_beginning_that_is_gone(spark: "SparkSession", broker: Lakeside) -> None:
    publish(broker, "orders", 0, OLD)
    earliest = forget_oldest(broker, 1)
    connection = {"endpoint": broker.endpoint, "key": broker.key, "subscribe": "orders"}
    rows = spark.read.format("headrace").options(**connection, startingOffsets="0")
    with pytest.raises(PySparkException, match=rf"offsets 0 to {earliest - 1} are gone"):
        rows.load().count()
    left = rows.option("failOnDataLoss", "false").load().count()
    assert 0 < left < OLD
    assert spark.read.format("headrace").options(**connection).load().count() == left


def test_damage_is_named_or_passed_over(spark: "SparkSession", broker: Lakeside) -> None:
    publish(broker, "orders", 0, OLD)
    damaged = segments(broker)[1]
    with damaged.open("r+b") as file:
        file.seek(SIZE + SIZE // 2)
        file.write(b"?")
    connection = {"endpoint": broker.endpoint, "key": broker.key, "subscribe": "orders"}
    rows = spark.read.format("headrace").options(**connection)
    with pytest.raises(PySparkException, match=r"\d+ offsets from \d+ on are gone, by damage"):
        rows.load().count()
    assert rows.option("failOnDataLoss", "false").load().count() == OLD - 1
