"""Rows of the lake back into a topic: the right ones, in order, each once, whoever is killed meanwhile."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli import main
from headrace.feed.client import FeedClient
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from tests.harness.eventually import eventually
from tests.harness.lakeside import Lakeside
from tests.spark.lakes import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = 60


def order(number: int) -> Message:
    return Message(
        topic="shop.Orders", action="Place", payload=b"order %d" % number, message_id=f"id-{number}",
        metadata={"tier": "gold" if number % 2 else "tin"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    broker = Lakeside(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", broker: Lakeside, tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def _publish() -> None:
        async with GrpcqClient(broker.served.endpoints["grpc"], broker.key) as queue:
            await queue.publish("orders", [order(number) for number in range(ORDERS)])

    asyncio.run(_publish())
    asyncio.run(broker.publish("noise", [b"not meant"] * 5))
    return fill(spark, broker, tmp_path_factory.mktemp("lake"), tables=("messages",)).lake


def arguments(broker: Lakeside, lake: Path, where: str, to: str, *more: str) -> list[str]:
    return ["replay", "--data-dir", str(broker.data_dir), "--lake", str(lake), "--where", where, "--to", to, *more]


def topic(spark: "SparkSession", broker: Lakeside, name: str) -> list[Any]:
    options = {"endpoint": broker.endpoint, "key": broker.key, "subscribe": name}
    return spark.read.format("headrace").options(**options).load().orderBy("offset").collect()


def origins(rows: list[Any]) -> list[int]:
    """Which offsets the rows were replayed from."""
    found = [header.value for row in rows for header in row.headers if header.key == "headrace-replayed-from"]
    assert len(found) == len(rows)
    return [int(value) for value in found]


def test_rows_arrive_as_they_were_and_say_where_from(
    spark: "SparkSession", broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = arguments(broker, lake, "topic = 'orders' AND timestamp > now() - INTERVAL 1 HOUR", "again", "--json")
    assert main(wanted) == 0
    assert json.loads(capsys.readouterr().out)["sent"] == ORDERS
    before, after = topic(spark, broker, "orders"), topic(spark, broker, "again")
    assert origins(after) == [row.offset for row in before]
    for one, other in zip(before, after, strict=True):
        assert (other.key, other.value, other.message_id) == (one.key, one.value, one.message_id)
        assert other.headers[:-1] == [*one.headers, ("content-type", b"application/grpcq")]
    assert main(wanted) == 0
    assert json.loads(capsys.readouterr().out)["sent"] == 0
    assert len(topic(spark, broker, "again")) == ORDERS


def test_rows_can_be_edited_and_replayed_again_under_another_name(
    spark: "SparkSession", broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "topic = 'noise' AND offset % 2 = 0"
    edits = ["--set", "value = upper(value)", "--set", "key = cast(offset AS string)"]
    for identity in ("first", "second", "second"):
        assert main(arguments(broker, lake, where, "loud", *edits, "--id", identity)) == 0
    rows = topic(spark, broker, "loud")
    chosen = [row.offset for row in topic(spark, broker, "noise") if row.offset % 2 == 0]
    assert origins(rows) == chosen * 2
    assert {row.value for row in rows} == {b"NOT MEANT"}
    assert [row.key for row in rows] == [b"%d" % offset for offset in chosen * 2]
    assert main(arguments(broker, lake, "true", "loud", "--id", "first")) == 1
    assert "the id first belongs to something else" in capsys.readouterr().err


def test_a_dry_run_shows_what_and_how_many_and_sends_nothing(
    spark: "SparkSession", broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = arguments(broker, lake, "topic IN ('orders', 'noise')", "rehearsed", "--dry-run")
    assert main([*wanted, "--set", "value = concat('<', topic, '>')", "--rate", "13"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[1:] for line in out.splitlines()] == [["rehearsed", "-", "<orders>"]] * 20
    assert "5 of noise would go to rehearsed" in err
    assert "60 of orders would go to rehearsed" in err
    assert "65 would be sent, in about 5.0 s; nothing was done" in err
    assert main([*wanted, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 65
    assert topic(spark, broker, "rehearsed") == []


@pytest.mark.parametrize(
    ("where", "to", "more", "said"),
    [
        ("age > 3", "out", [], "The columns are key, value, topic, partition, offset"),
        ("topic = = 'x'", "out", [], "Syntax error"),
        ("true", "out", ["--set", "value = nope(value)"], "--set value"),
        ("true", "out", ["--set", "offset = 1"], "'offset' cannot be set"),
        ("true", "out", ["--table", "nothing"], "has no rows in a table 'nothing'; it has messages"),
        ("true", "$dead.orders", [], "only the broker writes to $dead.orders"),
        ("true", "out", ["--set", "value = CAST(NULL AS binary)", "--id", "nulls"], "value is null in 65"),
    ],
)
def test_what_makes_no_sense_is_said_and_nothing_is_sent(
    broker: Lakeside,
    lake: Path,
    capsys: pytest.CaptureFixture[str],
    where: str,
    to: str,
    more: list[str],
    said: str,
) -> None:
    with FeedClient(broker.endpoint, key=broker.key) as client:
        before = client.span()
        assert main(arguments(broker, lake, where, to, *more)) == 1
        assert said in capsys.readouterr().err
        assert client.span() == before


@pytest.mark.usefixtures("spark")
def test_nothing_chosen_is_no_failure(broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(broker, lake, "topic = 'nobody'", "out")) == 0
    assert capsys.readouterr().out == "no row is chosen; nothing was sent\n"


def test_a_killed_replay_goes_on_behind_its_last_chunk(
    spark: "SparkSession", broker: Lakeside, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = arguments(broker, lake, "topic = 'orders'", "survivors")
    slow = [sys.executable, "-m", "headrace", *wanted, "--rate", "10", "--master", "local[1]", "--memory", "1g"]
    with subprocess.Popen(slow, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("replay "))
        identity = line.split()[1].removesuffix(":")
        with FeedClient(broker.endpoint, key=broker.key) as client:
            asyncio.run(eventually(lambda: (client.committed(f"replay:{identity}") or 0) >= 1))
            process.kill()
            process.wait()
            sent = client.committed(f"replay:{identity}")
    assert sent is not None
    assert sent < 5, "killed too late to prove anything"
    broker.kill()
    broker.start()
    asyncio.run(broker.publish("orders", [b"came later"]))
    fill(spark, broker, lake, tables=("messages",))
    assert main([*wanted, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["id"] == identity
    assert done["rows"] == ORDERS
    assert 0 < done["sent"] < ORDERS
    rows = topic(spark, broker, "survivors")
    assert origins(rows) == [row.offset for row in topic(spark, broker, "orders")][:ORDERS]
