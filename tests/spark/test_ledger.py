"""The ledger over a broker that did everything a broker does, and over lakes and logs that somebody tampered with."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headrace.cli import main
from headrace.cli.ledger import print_screen
from headrace.cli.output import Output
from headrace.protocols.blipmq.client import BlipmqClient, ClientSettings
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import TableSpec
from headrace.spark.ledger.ledger import Ledger, balance
from headrace.spark.ledger.log import Log
from headrace.spark.ledger.offsets import Run
from headrace.spark.ledger.rules import Fault
from headrace.spark.ledger.tables import check_table
from headrace.spark.pipeline.settings import Settings
from tests.harness.eventually import eventually
from tests.harness.lakeside import Lakeside
from tests.spark.lakes import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENT = {"RETRY__BACKOFF_MS": "3600000", "TOPICS__brief__TTL_S": "1"}
ONE_BY_ONE = ClientSettings(prefetch=1)


def api(broker: Lakeside, path: str, method: str = "GET") -> Any:
    request = Request(broker.served.endpoints["http"] + path, method=method)
    request.add_header("authorization", f"Bearer {broker.key}")
    with urlopen(request) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def subscriptions(broker: Lakeside) -> dict[int, Any]:
    return {each["id"]: each for each in api(broker, "/api/subscriptions")["subscriptions"]}


def order(number: int) -> Message:
    return Message(topic="shop.Orders", action="Place", payload=b"order %d" % number, message_id=f"id-{number}")


async def trade(broker: Lakeside) -> None:
    """Publish thirty orders that a shared queue, two consumers and one that leaves are to settle in every way."""
    endpoints = broker.served.endpoints
    async with (
        await BlipmqClient.connect(endpoints["blipmq"], broker.key, settings=ONE_BY_ONE) as client,
        GrpcqClient(endpoints["grpc"], broker.key) as queue,
    ):
        await client.publish_many("orders", [b"before anybody came"] * 5)
        steady, careless, leaving = [await client.subscribe("orders", qos=qos) for qos in (1, 0, 1)]
        unread = await client.subscribe("brief")
        await queue.publish("orders", [order(number) for number in range(30)])
        await client.publish_many("brief", [b"gone in a second"] * 4)
        for subscription, count in ((steady, 20), (careless, 10), (leaving, 5)):
            for _ in range(count):
                (delivery,) = await subscription.take(1)
                await delivery.ack()
        await client.fence()
        taken = await queue.consume("orders", 10, wait_s=10)
        receipts = [delivery.receipt for delivery in taken]
        assert len(receipts) == 10
        await queue.ack(receipts[:6])
        await queue.nack(receipts[6:8], "unpayable", dead=True)
        await queue.nack(receipts[8:9], "try later")
        api(broker, f"/api/subscriptions/{leaving.id}", "DELETE")
        await eventually(lambda: subscriptions(broker)[unread.id]["expired"] == 4)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    broker = Lakeside(tmp_path_factory.mktemp("broker"), **PATIENT)
    broker.start()
    asyncio.run(trade(broker))
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", broker: Lakeside, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return fill(spark, broker, tmp_path_factory.mktemp("lake"))


def proved(spark: "SparkSession", settings: Settings, lake: Path | None = None, **given: Any) -> Ledger:
    return balance(spark, settings.client(), settings.connection(), lake or settings.lake, **given)


def misfits(ledger: Ledger) -> set[tuple[str, str, int]]:
    return {(each["where"], each["fault"], each["offset"]) for each in ledger.misfits()}


def rewrite(settings: Settings, lake: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of a table's biggest file behind everybody's back."""
    files = open_store(lake, settings.form, TableSpec(name=table)).files()
    path = max(files, key=lambda file: file.rows or 0).path
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def without(offset: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.filter(pc.not_equal(rows["offset"], pa.scalar(offset)))


def changed(offset: int) -> Callable[[pa.Table], pa.Table]:
    def _change(rows: pa.Table) -> pa.Table:
        values = pc.if_else(pc.equal(rows["offset"], pa.scalar(offset)), pa.scalar(b"tampered with"), rows["value"])
        return rows.set_column(rows.schema.get_field_index("value"), "value", values)

    return _change


def doubled(offset: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: pa.concat_tables([rows, rows.filter(pc.equal(rows["offset"], pa.scalar(offset)))])


def test_every_subscription_balances_and_agrees_with_the_broker(
    spark: "SparkSession", broker: Lakeside, lake: Settings
) -> None:
    ledger = proved(spark, lake)
    assert ledger.balanced
    assert misfits(ledger) == set()
    found = {
        (each.life.topic, each.life.name): (each.published, each.acked, each.delivered, each.pending, each.left)
        for each in ledger.accounts.accounts
    }
    assert found == {
        ("orders", "1"): (30, 20, 0, 10, 0),
        ("orders", "2"): (30, 0, 10, 20, 0),
        ("orders", "3"): (30, 5, 0, 0, 25),
        ("brief", "4"): (4, 0, 0, 0, 0),
        ("orders", "grpcq"): (35, 6, 0, 27, 0),
    }
    told = subscriptions(broker)
    assert told.keys() == {1, 2, 4, 5}
    for each in ledger.accounts.accounts:
        if not each.removed:
            known = told[each.life.subscription]
            assert each.pending == known["pending"] + known["deferred"] + known["in_flight"]
            counts = each.acked, each.dead, each.expired, each.dropped
            assert counts == tuple(known[name] for name in ("acked", "dead", "expired", "dropped"))
    assert [(table.table, table.expected == table.found) for table in ledger.tables] == [
        ("messages", True),
        ("events", True),
    ]


def test_rows_removed_doubled_and_changed_are_named(
    spark: "SparkSession", lake: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(lake.lake, copy)
    rows = spark.read.parquet(str(lake.lake / "messages")).where("topic = 'orders'").orderBy("offset").collect()
    gone, twice, other = (row["offset"] for row in rows[3:6])
    for change in (without(gone), doubled(twice), changed(other)):
        rewrite(lake, copy, "messages", change)
    event = spark.read.parquet(str(lake.lake / "events")).where("event = 'acked'").head()
    assert event is not None
    rewrite(lake, copy, "events", without(event["offset"]))
    ledger = proved(spark, lake, copy)
    assert not ledger.balanced
    assert misfits(ledger) == {
        ("messages", Fault.MISSING, gone),
        ("messages", Fault.TWICE, twice),
        ("messages", Fault.DIFFERS, other),
        ("events", Fault.MISSING, event["offset"]),
    }
    assert ledger.accounts.balanced
    print_screen(Output(), ledger)
    out = capsys.readouterr().out
    assert f"offset {gone}: not in the table (table messages)" in out
    assert out.splitlines()[-1].endswith("NOT balanced")
    assert len(out.splitlines()) < 24, "fits one screen"


def test_a_row_the_log_never_had_is_foreign_and_lag_is_none(
    spark: "SparkSession", broker: Lakeside, lake: Settings, tmp_path: Path
) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(lake.lake, copy)
    with lake.client() as client:
        event = client.span().earliest + 5
    rewrite(lake, copy, "messages", lambda rows: pa.concat_tables([rows, moved(rows.slice(0, 1), event)]))
    asyncio.run(broker.publish("orders", [b"not yet in any table"] * 3))
    ledger = proved(spark, lake, copy)
    assert misfits(ledger) == {("messages", Fault.FOREIGN, event)}
    assert ledger.tables[0].behind == 3


def moved(rows: pa.Table, offset: int) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array([offset]))


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_of_any_format_is_compared(spark: "SparkSession", broker: Lakeside, tmp_path: Path, form: str) -> None:
    settings = fill(spark, broker, tmp_path, form=form, tables=("messages",))
    with settings.client() as client:
        span = Run(*client.span())
    log = Log(spark=spark, options=settings.connection(), span=span)
    assert check_table(log, tmp_path, "messages", span, []).balanced
    rewrite(settings, tmp_path, "messages", changed(span.start))
    assert check_table(log, tmp_path, "messages", span, []).faults == {Fault.DIFFERS: 1}


def test_a_range_has_a_balance_of_its_own(spark: "SparkSession", lake: Settings) -> None:
    orders = spark.read.parquet(str(lake.lake / "messages")).where("topic = 'orders' AND protocol = 'grpcq'")
    offsets = [row["offset"] for row in orders.orderBy("offset").collect()]
    ledger = proved(spark, lake, begin=str(offsets[4]), end=str(offsets[14]))
    assert ledger.balanced
    accounts = {each.life.name: each for each in ledger.accounts.accounts}
    assert {name: each.published for name, each in accounts.items()} == dict.fromkeys(("1", "2", "3", "grpcq"), 10)
    assert accounts["1"].acked == 10
    assert (accounts["3"].acked, accounts["3"].left) == (1, 9)
    assert ledger.tables[0].found == 10
    later = proved(spark, lake, begin="2100-01-01")
    assert later.balanced
    assert later.run.size == 0


def test_a_record_gone_from_the_log_is_named(
    spark: "SparkSession", broker: Lakeside, lake: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brief = spark.read.parquet(str(lake.lake / "messages")).where("topic = 'brief'").orderBy("offset").collect()
    damaged = Lakeside(tmp_path / "data", **PATIENT)
    shutil.copytree(broker.data_dir / "log", tmp_path / "data" / "log")
    (segment,) = (tmp_path / "data" / "log").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(brief[0]["value"])] ^= 0x40
    segment.write_bytes(content)
    assert main(["log", "repair", str(tmp_path / "data" / "log"), "--yes"]) == 0
    damaged.start()
    try:
        run = Run(brief[0]["offset"], brief[-1]["offset"] + 1)
        command = ["ledger", "--data-dir", str(damaged.data_dir), "--lake", str(lake.lake)]
        capsys.readouterr()
        assert main([*command, "--json"]) == 1
        *listed, summary = map(json.loads, capsys.readouterr().out.splitlines())
        assert [(each["where"], each["fault"], each["offset"], each["count"]) for each in listed] == [
            ("log", "lost from the log", run.start, run.size)
        ]
        assert summary["balanced"] is False
        assert summary["lost"] == [{"first": run.start, "count": run.size}]
        assert summary["tables"][0]["saved"] == run.size
        assert main([*command, "--from", str(run.end)]) == 0
        assert "balanced" in capsys.readouterr().out
    finally:
        damaged.close()
