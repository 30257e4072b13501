"""From the log into every table, with a real broker, its feed and Spark."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.spark.lake.layout import Layout
from headrace.spark.lake.table import LakeError
from headrace.spark.pipeline.backfill import backfill
from headrace.spark.pipeline.handlers import Handler
from headrace.spark.pipeline.positions import position
from headrace.spark.pipeline.tables import TABLES
from headrace.spark.pipeline.watching import status
from tests.harness.lakeside import Lakeside
from tests.spark.conftest import Publish
from tests.spark.shopfloor import (
    call,
    catch_up,
    redrive,
    rows,
    send_as_envelopes,
    send_calls,
    settings_of,
    settle,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CORRUPT = b"\xff\xffnot protobuf"


def test_every_table_tells_its_part(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    settings = settings_of(feed_broker, tmp_path / "lake")
    lake = settings.lake
    publish("orders", [b"one", b"two", b"three"])
    send_calls(feed_broker, "users", [call(1, b"a"), call(2, b"b"), call(1, b"a")])
    send_as_envelopes(feed_broker, "users", [call(3).SerializeToString(), CORRUPT])
    send_calls(feed_broker, "jobs", [call(4)])
    settle(feed_broker, "users")
    settle(feed_broker, "jobs", dead=True)
    catch_up(spark, settings, list(TABLES))

    messages = rows(lake, "messages")
    assert [row["value"] for row in messages if row["topic"] == "orders"] == [b"one", b"two", b"three"]
    assert len({row["offset"] for row in messages}) == len(messages) == 10
    events = rows(lake, "events")
    acked = [row for row in events if row["event"] == "acked"]
    assert {row["message_offset"] for row in acked} == {row["offset"] for row in messages if row["topic"] == "users"}
    assert [row["message_id"] for row in rows(lake, "envelopes")] == ["m1", "m2", "m3", "m4"]
    [bad] = rows(lake, "quarantine")
    assert (bad["topic"], bad["value"]) == ("users", CORRUPT)
    assert bad["reason"].startswith("not a grpcq.Message")
    [letter] = rows(lake, "dead_letters")
    origin = [row["offset"] for row in messages if row["topic"] == "jobs"]
    assert (letter["origin_topic"], [letter["origin_offset"]], letter["reason"]) == ("jobs", origin, "no such user")
    assert letter["redriven"] is False
    traffic = {(row["topic"], row["protocol"]): row["messages"] for row in rows(lake, "traffic")}
    assert traffic["orders", "blipmq"] == 3
    assert sum(traffic.values()) == 9
    assert [(row["topic"], row["acked"]) for row in rows(lake, "latency")] == [("users", 5)]

    redrive(feed_broker, [letter["offset"]])
    publish("orders", [b"four"])
    catch_up(spark, settings, list(TABLES))
    [letter] = rows(lake, "dead_letters")
    assert letter["redriven"] is True
    assert letter["reason"] == "no such user"
    assert sum(row["messages"] for row in rows(lake, "traffic") if row["topic"] == "orders") == 4
    assert len(rows(lake, "envelopes")) == 4, "what was sent back has the id it had"
    latest = settings.client().span().latest
    assert status(TABLES["messages"], settings, latest).rows == len(rows(lake, "messages")) == 13


def test_without_checkpoints_no_row_comes_twice(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    settings = settings_of(feed_broker, tmp_path / "lake")
    publish("a", [b"1", b"2"])
    catch_up(spark, settings, ["messages"])
    shutil.rmtree(Layout(settings.lake).checkpoint("messages"))
    publish("a", [b"3"])
    catch_up(spark, settings, ["messages"])
    assert [row["value"] for row in rows(settings.lake, "messages")] == [b"1", b"2", b"3"]


def test_a_range_is_filled_in_once(
    spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path
) -> None:
    settings = settings_of(feed_broker, tmp_path / "lake")
    publish("a", [b"%d" % number for number in range(20)])
    messages, traffic = TABLES["messages"], TABLES["traffic"]
    assert backfill(spark, messages, settings, 5, 10).rows == 5
    assert backfill(spark, messages, settings, 0, 12).rows == 7
    assert backfill(spark, messages, settings, 0, 12).rows == 0
    assert [row["offset"] for row in rows(settings.lake, "messages")] == list(range(12))
    catch_up(spark, settings, ["messages"])
    assert [row["offset"] for row in rows(settings.lake, "messages")] == list(range(20))
    reached = position(settings.lake, "messages")
    assert reached is not None
    assert backfill(spark, messages, settings, 0, 1 << 40).end <= reached
    assert len(rows(settings.lake, "messages")) == 20
    assert backfill(spark, traffic, settings, 3, 4).rows >= 1
    assert sum(row["messages"] for row in rows(settings.lake, "traffic")) == 20, "a part of a minute counts all of it"


def test_envelopes_are_filled_in_by_offset_and_id(spark: "SparkSession", feed_broker: Lakeside, tmp_path: Path) -> None:
    settings = settings_of(feed_broker, tmp_path / "lake")
    send_calls(feed_broker, "users", [call(1), call(2), call(1)])
    end = settings.client().span().latest
    assert backfill(spark, TABLES["envelopes"], settings, 0, 1).rows == 1
    assert backfill(spark, TABLES["envelopes"], settings, 0, end).rows == 1
    assert sorted(row["message_id"] for row in rows(settings.lake, "envelopes")) == ["m1", "m2"]


def test_one_pipeline_a_lake(spark: "SparkSession", feed_broker: Lakeside, tmp_path: Path) -> None:
    from headrace.spark.lake.disk import locked

    settings = settings_of(feed_broker, tmp_path / "lake")
    Layout(settings.lake).run_lock.parent.mkdir(parents=True)
    with locked(Layout(settings.lake).run_lock), pytest.raises(LakeError, match="another process"):
        catch_up(spark, settings, ["messages"])


def _double(calls: "pa.RecordBatch") -> "pa.RecordBatch":
    import pyarrow as pa
    import pyarrow.compute as pc

    payloads = calls.column("payload")
    if b"bad" in payloads.to_pylist():
        raise ValueError("bad payload")
    return pa.record_batch({"value": pc.binary_join_element_wise(payloads, payloads, b"")})  # type: ignore[call-overload]


def test_handlers_publish_results_and_failures_once(
    spark: "SparkSession", feed_broker: Lakeside, tmp_path: Path
) -> None:
    settings = settings_of(feed_broker, tmp_path / "lake")
    send_calls(feed_broker, "users", [call(1, b"x"), call(2, b"bad"), call(3, b"y"), call(3, b"y")])
    handlers = {("user.UserService", "CreateUser"): Handler(_double, "doubled")}
    catch_up(spark, settings, [], handlers=handlers)
    catch_up(spark, settings, ["messages"], handlers=handlers)
    found = rows(settings.lake, "messages")
    assert sorted(row["value"] for row in found if row["topic"] == "doubled") == [b"xx", b"yy"]
    [dead] = [row for row in found if row["topic"] == "dead.users"]
    headers = {each["key"]: each["value"] for each in dead["headers"]}
    assert dead["value"] == call(2, b"bad").SerializeToString() or dead["message_id"] == "m2"
    assert headers["headrace-reason"] == b"ValueError: bad payload"
    assert headers["headrace-origin-topic"] == b"users"
