"""Envelopes out of batches of messages, with ptars and without it."""

from typing import Any

import pyarrow as pa
import pytest

from headrace.feed.schema import HEADERS
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.spark.pipeline.decoding import Decoder
from tests.unit.spark_lake.tables import NOON

TYPES: dict[str, Any] = {
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "topic": pa.string(),
    "protocol": pa.string(),
    "message_id": pa.string(),
    "headers": HEADERS,
    "value": pa.binary(),
}
GOOD = Message(
    originator="shop", topic="user.UserService", action="CreateUser", payload=b"\xffx", message_id="m",
    timestamp_ms=1500, metadata={"k": "v"},
).SerializeToString()  # fmt: skip


@pytest.fixture(params=[True, False], ids=["ptars", "protobuf"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return Decoder(fast=request.param)


def messages(*values: bytes | None, message_id: str | None = None) -> pa.RecordBatch:
    rows = [
        {
            "offset": at,
            "timestamp": NOON,
            "topic": "users",
            "protocol": "grpcq",
            "value": value,
            "message_id": message_id,
        }
        for at, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, pa.schema(TYPES))


def test_fields_become_columns(decoder: Decoder) -> None:
    assert decoder(messages(GOOD)).envelopes.to_pylist() == [
        {
            "offset": 0, "timestamp": NOON, "topic": "users", "originator": "shop", "service": "user.UserService",
            "action": "CreateUser", "message_id": "m", "payload": b"\xffx", "metadata": [("k", "v")],
            "sent": NOON.fromtimestamp(1.5, NOON.tzinfo),
        }
    ]  # fmt: skip


def test_what_does_not_decode_is_refused_alone(decoder: Decoder) -> None:
    values: list[bytes | None] = [GOOD] * 100
    values[3], values[50], values[99] = b"\xff\xff", b"\x12\x02\xff\xfe", None
    found = decoder(messages(*values))
    assert found.envelopes["offset"].to_pylist() == [at for at in range(100) if at not in (3, 50, 99)]
    assert found.refused["offset"].to_pylist() == [3, 50, 99]
    assert found.refused["value"].to_pylist() == [b"\xff\xff", b"\x12\x02\xff\xfe", None]
    reasons: list[Any] = found.refused["reason"].to_pylist()
    assert all(reason.startswith("not a grpcq.Message") for reason in reasons[:2])
    assert reasons[2] == "topic must not be empty"


def test_a_call_without_a_name_is_refused(decoder: Decoder) -> None:
    nameless = Message(topic="user.UserService").SerializeToString()
    found = decoder(messages(GOOD, nameless, GOOD))
    assert found.envelopes["offset"].to_pylist() == [0, 2]
    assert found.refused["reason"].to_pylist() == ["action must not be empty"]


def test_an_envelope_without_an_id_gets_the_messages_own_or_its_offset(decoder: Decoder) -> None:
    value = Message(topic="s", action="a").SerializeToString()
    assert decoder(messages(value, message_id="own")).envelopes["message_id"].to_pylist() == ["own"]
    assert decoder(messages(GOOD, value)).envelopes["message_id"].to_pylist() == ["m", "headrace-1"]
    assert decoder(messages(value)).envelopes["sent"].to_pylist() == [None]


def test_nothing_in_nothing_out(decoder: Decoder) -> None:
    found = decoder(messages())
    assert (found.envelopes.num_rows, found.refused.num_rows) == (0, 0)
    assert decoder(messages(b"\xff")).envelopes.num_rows == 0
