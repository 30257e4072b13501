"""Writing DataFrames into topics: which rows become which messages, all or none of them, once."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F  # noqa: N812
from pyspark.testing import assertDataFrameEqual

from headrace.feed.client import FeedClient
from tests.harness.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    broker = Lakeside(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.close()


def write(rows: DataFrame, broker: Lakeside, **options: str) -> DataFrameWriter:
    given = {"endpoint": broker.endpoint, "key": broker.key} | options
    return rows.write.format("headrace").options(**given).mode("append")


def topic(spark: "SparkSession", broker: Lakeside, name: str) -> DataFrame:
    given = {"endpoint": broker.endpoint, "key": broker.key, "subscribe": name}
    return spark.read.format("headrace").options(**given).load()


def test_rows_become_messages(spark: "SparkSession", broker: Lakeside) -> None:
    schema = "key binary, value binary, headers array<struct<key string, value binary>>, message_id string"
    rows = spark.createDataFrame(
        [
            (b"k1", b"v1", [("colour", b"red"), ("size", b"")], "id-1"),
            (None, b"v2", None, None),
            (b"", b"", [], "id-3"),
        ],
        schema,
    )
    write(rows, broker, topic="full").save()
    kept = topic(spark, broker, "full")
    expected = spark.createDataFrame(
        [
            (b"k1", b"v1", [("colour", b"red"), ("size", b"")], "id-1", "full", "spark"),
            (None, b"v2", None, None, "full", "spark"),
            (None, b"", None, "id-3", "full", "spark"),
        ],
        f"{schema}, topic string, protocol string",
    )
    assertDataFrameEqual(kept.select(expected.columns), expected)
    assert kept.where("timestamp > now() - INTERVAL 1 HOUR").count() == 3


def test_text_is_written_as_utf8(spark: "SparkSession", broker: Lakeside) -> None:
    write(spark.createDataFrame([("ключ", "значение")], "key string, value string"), broker, topic="text").save()
    found = topic(spark, broker, "text").selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
    assert found.collect() == [("ключ", "значение")]


def test_the_topic_comes_from_a_column_or_the_option(spark: "SparkSession", broker: Lakeside) -> None:
    rows = spark.range(10).select(
        F.concat(F.lit("column-"), F.col("id") % 2).alias("topic"), F.col("id").cast("string").alias("value")
    )
    write(rows, broker).save()
    assert [topic(spark, broker, f"column-{number}").count() for number in (0, 1)] == [5, 5]
    write(rows, broker, topic="option").save()
    assert topic(spark, broker, "option").count() == 10
    assert topic(spark, broker, "column-0").count() == 5


def test_what_was_read_can_be_written(spark: "SparkSession", broker: Lakeside) -> None:
    write(spark.range(5).select(F.col("id").cast("string").alias("value")), broker, topic="original").save()
    original = topic(spark, broker, "original")
    write(original, broker, topic="copy").save()
    assertDataFrameEqual(topic(spark, broker, "copy").select("value"), original.select("value"))


def test_a_job_that_fails_writes_nothing(spark: "SparkSession", broker: Lakeside) -> None:
    rows = spark.range(0, 1000, 1, 4).select(
        F.when(F.col("id") < 900, F.col("id").cast("string")).otherwise(F.raise_error(F.lit("no more"))).alias("value")
    )
    with pytest.raises(PySparkException, match="no more"):
        write(rows, broker, topic="half").save()
    assert topic(spark, broker, "half").count() == 0


def test_a_named_job_is_done_once(spark: "SparkSession", broker: Lakeside) -> None:
    rows = spark.range(100).select(F.col("id").cast("string").alias("value"))
    for _ in range(2):
        write(rows, broker, topic="report", writer="report of today").save()
    assert topic(spark, broker, "report").count() == 100
    for batch in ("1", "1", "0"):
        write(rows, broker, topic="report", writer="report of today", batch=batch).save()
    assert topic(spark, broker, "report").count() == 200
    for _ in range(2):
        write(rows, broker, topic="report").save()
    assert topic(spark, broker, "report").count() == 400


def test_nothing_to_write_is_nothing_to_commit(spark: "SparkSession", broker: Lakeside) -> None:
    with FeedClient(broker.endpoint, key=broker.key) as client:
        before = client.span()
        write(spark.createDataFrame([], "value string"), broker, topic="none").save()
        assert client.span() == before


@pytest.mark.parametrize(
    ("query", "options", "said"),
    [
        ("SELECT 1 AS value", {"topic": "out"}, "column value is int; it must be binary or string"),
        ("SELECT 'a' AS vaule", {"topic": "out"}, "did you mean value?"),
        ("SELECT 'a' AS value", {}, "which topic? Give option topic or a column topic"),
        ("SELECT 'a' AS value", {"topik": "out"}, "unknown option topik for write; did you mean topic?"),
        ("SELECT CAST(NULL AS STRING) AS value", {"topic": "out"}, "column value is null in 1 of 1 rows"),
        ("SELECT 'a' AS value", {"topic": "$dead.out"}, "only the broker writes to $dead.out"),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: "SparkSession", broker: Lakeside, query: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark.sql(query), broker, **options).save()
    assert said in str(caught.value)


def test_a_topic_is_never_overwritten(spark: "SparkSession", broker: Lakeside) -> None:
    with pytest.raises(PySparkException, match="a topic only grows"):
        write(spark.sql("SELECT 'a' AS value"), broker, topic="out").mode("overwrite").save()
