"""Reading topics as tables: rows, ranges, partitions, filters, SQL. No test registers the source; Spark finds it."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, Row
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from headrace.feed.client import FeedClient
from headrace.server.dev_certificate import dev_certificate
from tests.harness.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
    "headers:array<struct<key:string,value:binary>>,protocol:string,message_id:string>"
)
Read = Callable[..., DataFrameReader]

ORDERS = [b"order %d" % number for number in range(50)]
PAYMENTS = [b"payment %d" % number for number in range(20)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    """A broker with two topics, the orders before and behind the payments."""
    broker = Lakeside(tmp_path_factory.mktemp("broker"))
    broker.start()
    for topic, values in (("orders", ORDERS[:30]), ("payments", PAYMENTS), ("orders", ORDERS[30:])):
        asyncio.run(broker.publish(topic, values))
    yield broker
    broker.close()


@pytest.fixture
def read(spark: "SparkSession", broker: Lakeside) -> Read:
    """A reader with these options and those that connect it."""
    connection = {"endpoint": broker.endpoint, "key": broker.key}
    return lambda **options: spark.read.format("headrace").options(**(connection | options))


def values(rows: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in rows.orderBy("offset").collect()]


def test_a_topic_is_a_table(read: Read) -> None:
    orders = read(subscribe="orders").load()
    assert orders.schema.simpleString() == MESSAGES
    assert {field.name for field in orders.schema if field.nullable} == {"key", "headers", "message_id"}
    assert values(orders) == ORDERS
    kept = orders.select("key", "topic", "partition", "headers", "protocol", "message_id").distinct()
    expected = (
        "key binary, topic string, partition int, headers array<struct<key string, value binary>>, protocol string"
    )
    row = (None, "orders", 0, None, "blipmq", None)
    assertDataFrameEqual(kept, orders.sparkSession.createDataFrame([row], f"{expected}, message_id string"))


def test_the_same_offsets_are_the_same_rows(read: Read) -> None:
    first = read(subscribePattern=".*").load()
    low, high = first.selectExpr("min(offset)", "max(offset)").first() or (0, 0)
    bounds = {"startingOffsets": str(low), "endingOffsets": str(high + 1), "subscribePattern": ".*"}
    assertDataFrameEqual(first, read(**bounds).load())
    assertDataFrameEqual(first, read(**bounds, minPartitions="7").load())


def test_topics_by_name_and_by_pattern(read: Read) -> None:
    assert values(read(subscribe="orders,payments").load()) == ORDERS[:30] + PAYMENTS + ORDERS[30:]
    assert read(subscribe="nothing").load().count() == 0


def test_a_pattern_is_for_the_whole_name(read: Read) -> None:
    assert values(read(subscribePattern="pay.*").load()) == PAYMENTS
    assert read(subscribePattern="pay").load().count() == 0


def test_columns_are_read_as_asked_for(read: Read) -> None:
    narrow = read(subscribe="payments", columns="offset,value").load()
    assert narrow.columns == ["offset", "value"]
    assert values(narrow) == PAYMENTS
    declared = read(subscribe="payments").schema(StructType().add("value", "binary").add("offset", "long")).load()
    assert declared.columns == ["value", "offset"]
    assert "headers" not in read(subscribe="orders", includeHeaders="false").load().columns


def test_through_the_feed_the_rows_are_the_same(read: Read) -> None:
    near, far = (read(subscribe="orders", shortCircuit=text).load() for text in ("true", "false"))
    assertDataFrameEqual(near, far)
    assert values(far) == ORDERS


@pytest.mark.parametrize("near", ["true", "false"])
def test_a_schema_may_call_columns_nullable_that_are_not(read: Read, near: str) -> None:
    rows = read(subscribe="orders", shortCircuit=near).schema("offset bigint, value binary").load()
    assert all(field.nullable for field in rows.schema)
    assert values(rows) == ORDERS


@pytest.mark.parametrize(
    ("given", "fault"),
    [("value string", "value must be binary"), ("key binary NOT NULL", "key must be .* may be null")],
)
def test_a_schema_that_is_not_ours_is_refused(read: Read, given: str, fault: str) -> None:
    wrong = read(subscribe="orders").schema(given)
    with pytest.raises(PySparkException, match=fault):
        wrong.load().collect()


def test_ends_by_offset_and_by_time(read: Read) -> None:
    every = read(subscribe="orders").load().selectExpr("offset", "value", "unix_millis(timestamp) AS ms")
    rows = every.orderBy("offset").collect()
    first, last = str(rows[10].offset), str(rows[20].offset)
    middle = read(subscribe="orders", startingOffsets=first, endingOffsets=last)
    assert values(middle.load()) == ORDERS[10:20]
    later = rows[30].ms
    behind = read(subscribe="orders", startingTimestamp=str(later)).load()
    assert set(ORDERS[30:]) <= set(values(behind))
    before = [bytes(row.value) for row in rows if row.ms < later]
    assert values(read(subscribe="orders", endingTimestamp=str(later)).load()) == before


def test_partitions_are_as_many_as_asked_for(read: Read) -> None:
    assert read(subscribe="orders").load().rdd.getNumPartitions() == 1
    few = read(subscribe="orders", maxRecordsPerPartition="9").load()
    sizes = few.rdd.glom().map(len).collect()
    assert sum(sizes) == len(ORDERS)
    assert max(sizes) <= 9
    assert read(subscribe="orders", minPartitions="5").load().rdd.getNumPartitions() >= 5
    assert values(few) == ORDERS


FILTERS = [
    "topic = 'payments'",
    "topic IN ('payments', 'orders') AND offset >= 35",
    "offset > 3 AND offset <= 40 AND NOT topic = 'payments'",
    "offset = 33",
    "topic = 'payments' AND topic = 'orders'",
    "timestamp >= TIMESTAMP'2020-01-01' AND timestamp < TIMESTAMP'2120-01-01'",
    "timestamp > TIMESTAMP'2120-01-01'",
    "topic LIKE 'pay%' OR offset < 7",
    "offset < 0",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_pushed_down_or_not_give_the_same(spark: "SparkSession", read: Read, condition: str) -> None:
    every = read(subscribePattern=".*").load()
    expected = spark.createDataFrame(every.collect(), every.schema).where(condition)
    assertDataFrameEqual(every.where(condition), expected)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assertDataFrameEqual(every.where(condition), expected)
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_what_was_pushed_down_is_gone_from_the_plan(read: Read) -> None:
    kept = read(subscribePattern=".*").load().where("topic = 'payments' AND offset >= 3 AND protocol = 'x'")
    plan = kept._jdf.queryExecution().executedPlan().toString()
    assert "= payments" not in plan
    assert ">= 3" not in plan
    assert "= x" in plan


def test_a_table_in_sql_remembers_its_options(spark: "SparkSession", broker: Lakeside) -> None:
    spark.sql(f"CREATE TABLE paid USING headrace OPTIONS (subscribe 'payments', endpoint '{broker.endpoint}')")
    try:
        assert spark.sql("SELECT count(*) AS n FROM paid").collect() == [Row(n=20)]
        assert spark.sql("SELECT count(*) AS n FROM paid WHERE offset < 35").collect()[0].n < 20
        assert spark.table("paid").where("topic = 'orders'").count() == 0
    finally:
        spark.sql("DROP TABLE paid")


def test_a_view_in_sql(spark: "SparkSession", broker: Lakeside) -> None:
    options = f"subscribe 'payments', endpoint '{broker.endpoint}', key '{broker.key}'"
    spark.sql(f"CREATE TEMPORARY VIEW paid_view USING headrace OPTIONS ({options})")
    assert spark.table("paid_view").count() == 20
    spark.catalog.dropTempView("paid_view")


def test_events_are_a_table(read: Read, broker: Lakeside) -> None:
    with FeedClient(broker.endpoint, key=broker.key) as client:
        client.report("somebody", ["orders"], 1)
    events = read(stream="events").load()
    assert events.columns[:9] == [
        "offset", "timestamp", "event", "topic", "subscription", "message_offset", "attempt", "reason", "latency_ms",
    ]  # fmt: skip
    assert events.where("event = 'reported'").count() >= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscibe": "orders"}, "unknown option subscibe for read; did you mean subscribe?"),
        ({"subscribe": "orders", "startingOffsets": "100000"}, "the log ends at offset"),
        ({"subscribe": "orders", "key": "wrong"}, "key"),
        (
            {"subscribe": "orders", "endpoint": "grpc://127.0.0.1:1", "retryTimeout": "0s"},
            "no broker answers at grpc://127.0.0.1:1",
        ),
    ],
)
def test_errors_say_what_is_wrong(read: Read, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException) as caught:
        read(**options).load().count()
    assert said in str(caught.value)


def test_a_broker_with_tls(spark: "SparkSession", tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path, now=datetime.now(UTC))
    broker = Lakeside(tmp_path / "data", TLS__CERT=str(cert), TLS__KEY=str(key))
    broker.start()
    try:
        assert broker.endpoint.startswith("grpc+tls://")
        connection = {"endpoint": broker.endpoint, "key": broker.key, "tlsRoots": str(cert)}
        rows = spark.createDataFrame([(value,) for value in ORDERS], "value binary")
        rows.write.format("headrace").options(**connection, topic="orders").mode("append").save()
        orders = spark.read.format("headrace").options(**connection, subscribe="orders").load()
        assert sorted(values(orders)) == sorted(ORDERS)
    finally:
        broker.close()
