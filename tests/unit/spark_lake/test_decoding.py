"""Envelopes out of batches of messages, with ptars and without it."""

import struct
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.feed.schema import HEADERS
from headrace.kernels.envelopes import mark_plain
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.spark.pipeline.decoding import Decoder
from tests.harness.properties import tried
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


def varint(number: int, longer: int = 0) -> bytes:
    """A number as it travels, by so many bytes longer than it need be."""
    out = bytearray()
    while number > 0x7F or longer:
        out.append(number & 0x7F | 0x80)
        if number <= 0x7F:
            longer -= 1
        number >>= 7
    return bytes([*out, number])


def sized(number: int, body: bytes, longer: int = 0) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(body), longer) + body


texts = st.text(max_size=4).map(str.encode) | st.sampled_from((b"", b" a", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0"))
entries = st.builds(
    lambda pairs: b"".join(sized(number, body) for number, body in pairs),
    st.just([(1, b"k"), (2, b"v")])
    | st.tuples(texts, texts).map(lambda pair: [(1, pair[0]), (2, pair[1])])
    | st.lists(st.tuples(st.integers(1, 3), texts), max_size=3),
)
wire = st.one_of(
    st.tuples(st.sampled_from((1, 2, 3, 5)), texts).map(lambda field: sized(*field)),
    st.binary(max_size=6).map(lambda body: sized(4, body)),
    entries.map(lambda body: sized(7, body)),
    st.tuples(st.integers(0, (1 << 64) - 1) | st.integers(0, 1 << 48), st.integers(0, 2)).map(
        lambda number: b"\x30" + varint(*number)
    ),
    st.tuples(st.integers(0, 20), st.integers(0, 7), st.binary(max_size=9)).map(
        lambda field: varint(field[0] << 3 | field[1]) + field[2]
    ),
    st.tuples(st.integers(1, 7), st.binary(max_size=4), st.integers(0, 3)).map(lambda field: sized(*field)),
    st.binary(max_size=4),
)
TWO_ENTRIES = Message(topic="t", action="ü", metadata={"a": "", "b": "c"}).SerializeToString()
envelopes = st.builds(
    lambda base, fields, shuffled: b"".join(fields) + base if shuffled else base + b"".join(fields),
    st.sampled_from((GOOD, b"\x12\x01s\x1a\x01a", TWO_ENTRIES, b"")),
    st.lists(wire, max_size=4),
    st.booleans(),
)  # fmt: skip
changed = st.builds(
    lambda value, at, byte: value[: at % len(value)] + bytes([byte]) + value[at % len(value) + 1 :] if value else value,
    envelopes, st.integers(0, 200), st.integers(0, 255),
)  # fmt: skip


def by_protobuf(value: bytes) -> Message | None:
    """What protobuf itself says; None for what is no message, or names no call."""
    try:
        message = Message.FromString(value)
    except DecodeError:
        return None
    return message if message.topic and message.action else None


@tried(600)
@given(values=st.lists(envelopes | changed | st.just(GOOD), min_size=1, max_size=30))
@example([bytes.fromhex("0affffffffffffffffff01")])
@example([GOOD, bytes.fromhex("0affffffffffffffffff01"), GOOD])
@example([GOOD + sized(7, sized(1, b"k") + sized(2, b"another"))])
@example([GOOD + b"\x0b\x0c"])
@example([b"\x12\x01s\x1a\x01a\x30" + varint((1 << 64) - 1)])
@example([b"\x12\x01s\x1a\x01a\x30" + varint((1 << 63) - 1)])
def test_whatever_the_bytes_are_it_says_what_protobuf_says(values: list[bytes]) -> None:
    expected = [by_protobuf(value) for value in values]
    for fast in (True, False):
        found = Decoder(fast=fast)(messages(*values))
        at = [place for place, message in enumerate(expected) if message is not None]
        assert found.envelopes["offset"].to_pylist() == at
        assert found.refused["offset"].to_pylist() == [n for n in range(len(values)) if n not in at]
        assert all(found.refused["reason"].to_pylist())
        rows = found.envelopes.to_pylist()
        for row, place in zip(rows, at, strict=True):
            message = expected[place]
            assert message is not None
            assert (row["originator"], row["service"], row["action"]) == (
                message.originator, message.topic, message.action,
            )  # fmt: skip
            assert (row["payload"], dict(row["metadata"])) == (message.payload, dict(message.metadata))
            assert len(row["metadata"]) == len(message.metadata)
            assert row["message_id"] == (message.message_id or f"headrace-{place}")
            assert (row["sent"] is None) == (not -62_135_596_800_000 <= message.timestamp_ms < 253_402_300_800_000
                                             or not message.timestamp_ms)  # fmt: skip


def test_what_protobuf_writes_is_plain() -> None:
    metadata = {f"key {n}": "v" * n for n in range(16)}
    for message in (Message.FromString(GOOD), Message(topic="t", action="a", metadata=metadata, timestamp_ms=-1)):
        data = message.SerializeToString()
        marks = bytearray(1)
        mark_plain(memoryview(struct.pack("<ii", 0, len(data))).cast("i"), data, marks)
        assert marks == b"\1"
