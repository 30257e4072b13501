"""Dead letters of the lake back where they came from: each at most once, whoever sends it back."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli import main
from headrace.feed.client import FeedClient
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.spark.back.journey import travel
from headrace.spark.back.plan import Plan
from headrace.spark.back.redrive import Redrive
from headrace.spark.back.sending import Broker
from tests.harness.lakeside import Lakeside
from tests.spark.lakes import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LETTERS = 12


async def bury(broker: Lakeside, *topics: str) -> None:
    """Publish messages to these topics and give all of them up."""
    async with GrpcqClient(broker.served.endpoints["grpc"], broker.key) as queue:
        for topic in topics:
            messages = [
                Message(topic="shop", action="do", payload=b"%d" % number, message_id=f"{topic}-{number}")
                for number in range(LETTERS // 2)
            ]
            await queue.publish(topic, messages)
            taken = await queue.consume(topic, LETTERS, wait_s=10)
            assert len(taken) == LETTERS // 2
            await queue.nack([delivery.receipt for delivery in taken], f"no {topic} today", dead=True)


async def payloads(broker: Lakeside, topic: str) -> list[bytes]:
    """What a grpcq worker gets from a topic."""
    async with GrpcqClient(broker.served.endpoints["grpc"], broker.key) as queue:
        taken = await queue.consume(topic, LETTERS, wait_s=10)
        await queue.ack([delivery.receipt for delivery in taken])
        return [Message.FromString(delivery.message).payload for delivery in taken]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    broker = Lakeside(tmp_path_factory.mktemp("broker"))
    broker.start()
    asyncio.run(bury(broker, "orders", "labels"))
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", broker: Lakeside, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(spark, broker, tmp_path_factory.mktemp("lake"), tables=("dead_letters",)).lake


def redrive(broker: Lakeside, *more: str) -> int:
    return main(["deadletters", "redrive", "--data-dir", str(broker.data_dir), *more])


def topic(spark: "SparkSession", broker: Lakeside, name: str) -> list[Any]:
    options = {"endpoint": broker.endpoint, "key": broker.key, "subscribe": name}
    return spark.read.format("headrace").options(**options).load().orderBy("offset").collect()


def test_a_refused_target_marks_nothing(
    spark: "SparkSession", broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FeedClient(broker.endpoint, key=broker.key) as client:
        before = client.span()
        assert redrive(broker, "--lake", str(lake), "--to", "$dead.orders") == 1
        assert "only the broker writes to $dead.orders" in capsys.readouterr().err
        assert redrive(broker, "--lake", str(lake), "--where", "age > 3") == 1
        assert "The columns are offset, timestamp, topic, origin_topic" in capsys.readouterr().err
        assert client.span() == before


def test_a_dry_run_shows_where_each_would_go(
    spark: "SparkSession", broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert redrive(broker, "--lake", str(lake), "--where", "origin_offset >= 0", "--dry-run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["topics"] == [
        {"from": "$dead.labels", "to": "labels", "rows": LETTERS // 2},
        {"from": "$dead.orders", "to": "orders", "rows": LETTERS // 2},
    ]
    assert topic(spark, broker, "$redriven") == []


def test_letters_go_back_once_whoever_sends_them(
    spark: "SparkSession", broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--where", "reason = 'no orders today' AND CAST(value AS string) <> '3'"]
    assert redrive(broker, "--lake", str(lake), "--topic", "orders", *where, "--json") == 0
    assert json.loads(capsys.readouterr().out)["redriven"] == LETTERS // 2
    letters, after = topic(spark, broker, "$dead.orders"), topic(spark, broker, "orders")
    copies = after[LETTERS // 2 :]
    for letter, copy in zip(letters, copies, strict=True):
        assert (copy.key, copy.value, copy.message_id) == (letter.key, letter.value, letter.message_id)
        own = [header for header in letter.headers if not header.key.startswith("headrace-")]
        assert copy.headers[:-1] == [*own, ("content-type", b"application/grpcq")]
        assert (copy.headers[-1].key, int(copy.headers[-1].value)) == ("headrace-redriven-from", letter.offset)
    assert asyncio.run(payloads(broker, "orders")) == [b"%d" % number for number in range(LETTERS // 2)]
    assert redrive(broker, "--json") == 0
    assert json.loads(capsys.readouterr().out)["redriven"] == LETTERS // 2
    assert redrive(broker, "--lake", str(lake), "--to", "elsewhere", "--json") == 0
    assert json.loads(capsys.readouterr().out)["redriven"] == 0
    assert topic(spark, broker, "elsewhere") == []
    assert [len(topic(spark, broker, name)) for name in ("orders", "labels")] == [LETTERS, LETTERS]


def test_what_somebody_else_sent_back_meanwhile_is_left_out(
    spark: "SparkSession", broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(bury(broker, "parcels"))
    settings = fill(spark, broker, lake, tables=("dead_letters",))
    wanted = Redrive(topic="parcels")
    told: list[int] = []

    def _meanwhile(_plan: Plan, _resumed: bool) -> None:
        told.append(redrive(broker, "--topic", "parcels", "--where", "offset % 2 = 0"))

    done = travel(
        spark,
        lake,
        wanted.wish,
        lambda: wanted.choose(spark, lake, settings.connection(), 0),
        Broker(options=settings.connection(), client=settings.client()),
        began=_meanwhile,
    )
    assert told == [0]
    assert "sent 3 back" in capsys.readouterr().out
    assert done is not None
    assert done.rows == LETTERS // 2
    ids = [row.message_id for row in topic(spark, broker, "parcels")]
    assert {ids.count(name) for name in ids} == {2}, "published and redriven"


def test_without_a_lake_nothing_can_be_edited(broker: Lakeside, capsys: pytest.CaptureFixture[str]) -> None:
    assert redrive(broker, "--set", "value = 'x'") == 2
    assert "--lake" in capsys.readouterr().err
