"""A broker with a little of everything in its log, and pipelines over it, for the tests of the tables."""

import asyncio
import json
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.feed.schema import HEADERS
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.spark.pipeline.run import Pipeline
from headrace.spark.pipeline.settings import Settings
from headrace.spark.pipeline.tables import chosen
from tests.harness.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENVELOPE = [{"key": "content-type", "value": b"application/grpcq"}]


def call(number: int, payload: bytes = b"") -> Message:
    """A call of a method, with an id."""
    return Message(topic="user.UserService", action="CreateUser", message_id=f"m{number}", payload=payload)


def settings_of(broker: Lakeside, lake: Path, **given: Any) -> Settings:
    """The settings of a pipeline from this broker into this lake."""
    return Settings(lake=lake, endpoint=broker.endpoint, key=broker.key, every_s=0.0, **given)


def catch_up(spark: "SparkSession", settings: Settings, tables: Sequence[str], **given: Any) -> None:
    """Run the pipeline of these tables until they have caught up."""
    pipeline = Pipeline(spark, chosen(tables) if tables else [], settings, once=True, **given)
    for _ in pipeline.run(threading.Event(), look_s=0.05):
        continue
    assert pipeline.done


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a Parquet table as a plain reader sees them, by offset or minute."""
    found = [row for path in (lake / table).glob("**/*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=lambda row: (row.get("offset", 0), str(row.get("minute")), str(row.get("message_offset"))))


def send_calls(broker: Lakeside, topic: str, calls: Sequence[Message]) -> None:
    """Publish calls over grpcq."""

    async def _send() -> None:
        async with GrpcqClient(broker.served.endpoints["grpc"], broker.key) as client:
            await client.publish(topic, calls)

    asyncio.run(_send())


def settle(broker: Lakeside, topic: str, *, dead: bool = False) -> None:
    """Take everything of a topic over grpcq, and ack it or give it up."""

    async def _settle() -> None:
        async with GrpcqClient(broker.served.endpoints["grpc"], broker.key) as client:
            taken = await client.consume(topic, max_batch=100, wait_s=5.0)
            receipts = [each.receipt for each in taken]
            assert receipts
            refused = await client.nack(receipts, "no such user", dead=True) if dead else await client.ack(receipts)
            assert not refused

    asyncio.run(_settle())


def send_as_envelopes(broker: Lakeside, topic: str, values: Sequence[bytes]) -> None:
    """Publish values by another door, with the claim that they are envelopes."""
    kinds: dict[str, Any] = {"value": pa.binary(), "headers": HEADERS}
    batch = pa.RecordBatch.from_pylist([{"value": v, "headers": ENVELOPE} for v in values], pa.schema(kinds))
    client = settings_of(broker, Path()).client()
    client.commit(f"test-{topic}", 0, [client.stage(f"test-{topic}", 0, "0", topic, [batch])])


def redrive(broker: Lakeside, offsets: Sequence[int]) -> None:
    """Have the broker send dead letters back."""
    request = urllib.request.Request(
        broker.served.endpoints["http"] + "/api/dead-letters/redrive",
        data=json.dumps({"offsets": list(offsets)}).encode(),
        headers={"authorization": f"Bearer {broker.key}", "content-type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["redriven"] == len(offsets)
