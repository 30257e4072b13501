"""IPC messages both ways: pyarrow's own are the originals, and none unpacks to more than it may."""

import random
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed import ipc
from headrace.feed.ipc import IncomingRows, OutgoingRows
from headrace.feed.schema import EVENTS, HEADERS, MESSAGES
from headrace.feed.wire import FlightData, flight_data
from headrace.model.errors import BrokerError, Code

CODECS = [None, "lz4", "zstd"]


def sent(*batches: pa.RecordBatch, codec: Any = None, deltas: bool = False) -> list[FlightData]:
    """What a client would send: the schema, dictionaries, rows."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for each in batches:
            writer.write_batch(each)
    return [as_flight(each) for each in pa.ipc.MessageReader.open_stream(sink.getvalue())]


def as_flight(message: Any) -> FlightData:
    body = memoryview(message.body) if message.body is not None else memoryview(b"")
    return FlightData.decode(b"".join(flight_data(memoryview(message.metadata), b"", [body] if len(body) else [])))


def taken(messages: list[FlightData]) -> list[pa.RecordBatch]:
    """What is made of messages by us, one by one and all at once."""
    rows = IncomingRows(messages[0])
    found: list[pa.RecordBatch] = []
    for message in messages[1:]:
        checked = rows.check(message)
        if checked is not None:
            rows.keep(message, checked)
            found += rows.cut()()
    return found


def dictionaries() -> Iterator[pa.RecordBatch]:
    for words in (["a", "b", "a"], ["b", "c", "b"], ["a", "b", "c", "d"]):
        yield pa.record_batch({"value": pa.array(words).dictionary_encode()})


ROWS: list[pa.RecordBatch] = [
    pa.record_batch({"value": pa.array([b"one", b"", b"three"])}),
    pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary()), "key": pa.array([], pa.string())}),
    pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 5000] * 100), "topic": pa.array([None, "a"] * 50)}),
    pa.RecordBatch.from_pydict({
        "value": pa.array(["ä", "b"], pa.large_string()),
        "headers": pa.array([[{"key": "k", "value": b"v"}], None], HEADERS),
        "key": pa.nulls(2), "redriven_from": pa.array([1, None], pa.int64()),
        "message_id": pa.array(["x", "a long one, beyond twelve"], pa.string_view()),
    }),
]  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", ROWS)
def test_what_pyarrow_sends_is_what_we_get(rows: pa.RecordBatch, codec: str | None) -> None:
    assert taken(sent(rows, rows.slice(1), rows, codec=codec)) == [rows, rows.slice(1), rows]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("deltas", [True, False])
def test_dictionaries_grow_and_are_replaced(deltas: bool, codec: str | None) -> None:
    batches = list(dictionaries())
    found = taken(sent(*batches, codec=codec, deltas=deltas))
    assert [each.column(0).to_pylist() for each in found] == [each.column(0).to_pylist() for each in batches]


@pytest.mark.parametrize("schema", [MESSAGES, EVENTS, MESSAGES.empty_table().select(["value", "offset"]).schema])
def test_what_we_send_is_read_by_pyarrow(schema: pa.Schema) -> None:
    made = {"binary": b"x", "string": "y", "int64": 5, "int32": 6, "double": 1.5}
    given = [{each.name: made.get(str(each.type)) for each in schema if not each.nullable} for _ in range(3)]
    filled = [{each.name: made.get(str(each.type), 7 if "timestamp" in str(each.type) else None) for each in schema}]
    assert len(given) == 3
    outgoing = OutgoingRows(schema)
    header, body = outgoing.encode(pa.RecordBatch.from_pylist(filled * 3, schema))
    message = struct.pack("<II", 0xFFFFFFFF, len(outgoing.schema)) + outgoing.schema
    message += struct.pack("<II", 0xFFFFFFFF, len(header)) + header + b"".join(body)
    reader = pa.ipc.open_stream(message)
    assert reader.schema == schema
    assert reader.read_next_batch().to_pylist() == pa.RecordBatch.from_pylist(filled * 3, schema).to_pylist()
    assert outgoing.encode(pa.RecordBatch.from_pylist(filled, schema))[0] != header


BIG = ipc.UNPACKED_MAX + (1 << 20)
BOMBS = [
    pa.record_batch({"value": pa.array([bytes(BIG)], pa.binary())}),
    pa.record_batch({"value": pa.array([b"x" * (BIG // 64)] * 64, pa.binary())}),
    pa.record_batch({"value": pa.array([b""] * (BIG // 4), pa.binary())}),
    pa.record_batch({"value": pa.nulls(ipc.ROWS_MAX + 1, pa.binary())}),
    pa.record_batch({"value": pa.array([bytes(BIG)], pa.binary()).dictionary_encode()}),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bomb", range(len(BOMBS)))
def test_what_unpacks_to_too_much_is_refused_before_it_is_unpacked(bomb: int, codec: str | None) -> None:
    messages = sent(BOMBS[bomb], codec=codec)
    before = pa.total_allocated_bytes()
    with pytest.raises(BrokerError, match="at most") as refused:
        taken(messages)
    assert refused.value.code is Code.LIMIT
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("count", [ipc.ROWS_MAX + 1, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("places", [1, 2])
def test_rows_that_are_only_said_to_be_there_are_refused(count: int, places: int) -> None:
    schema, rows = sent(pa.record_batch({"value": pa.nulls(54321)}))
    header = bytes(rows.header).replace(struct.pack("<q", 54321), struct.pack("<q", count), places)
    with pytest.raises(BrokerError, match="rows in one message"):
        taken([schema, rows._replace(header=memoryview(header))])


def test_dictionaries_that_grow_and_grow_are_bounded() -> None:
    words = [f"{number:01000000}" for number in range(20)]
    batches = [pa.record_batch({"value": pa.array(words[: 2 + each]).dictionary_encode()}) for each in range(18)]
    with pytest.raises(BrokerError, match="dictionaries of more than"):
        taken(sent(*batches, deltas=True))


def test_messages_in_the_wrong_order_are_refused() -> None:
    schema, rows = sent(ROWS[0])
    for order, words in (([rows], "must be a schema"), ([schema, schema], "a second schema")):
        with pytest.raises(BrokerError, match=words) as refused:
            taken(order)
        assert refused.value.code is Code.INVALID
    first, *_, last = sent(next(dictionaries()))
    with pytest.raises(BrokerError, match="cannot be read"):
        taken([first, last])
    assert taken([schema, FlightData(None, memoryview(b""), memoryview(b"meta"))]) == []
    short = rows._replace(body=rows.body[:-8])
    with pytest.raises(BrokerError, match="a body of"):
        taken([schema, short])
    longer = rows._replace(body=memoryview(bytes(rows.body) + bytes(64)))
    assert taken([schema, longer, rows]) == [ROWS[0], ROWS[0]]


def test_schemas_of_many_columns_and_tensors_are_refused() -> None:
    wide = pa.record_batch({f"c{n}": pa.array([1]) for n in range(ipc.COLUMNS_MAX + 1)})
    with pytest.raises(BrokerError, match="at most 64"):
        taken(sent(wide))
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(__import__("numpy").zeros(8)), sink)
    tensor = as_flight(pa.ipc.read_message(pa.py_buffer(sink.getvalue())))
    for order in ([tensor], [sent(ROWS[0])[0], tensor]):
        with pytest.raises(BrokerError, match="type 4"):
            taken(order)


@given(seed=st.integers(0, 2**32), codec=st.sampled_from(CODECS), which=st.sampled_from([*range(len(ROWS)), -1]))
def test_whatever_is_changed_is_refused_or_read_and_never_costs_more_than_it_may(
    seed: int, codec: str | None, which: int
) -> None:
    chance = random.Random(seed)
    batches = [ROWS[which]] if which >= 0 else list(dictionaries())
    messages = sent(*batches, codec=codec)
    place = chance.randrange(len(messages))
    header, body = bytearray(messages[place].header), bytearray(messages[place].body)
    for _ in range(chance.randint(1, 4)):
        data = body if body and chance.random() < 0.3 else header
        at = chance.randrange(len(data))
        data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    messages[place] = FlightData(None, memoryview(bytes(header)), memoryview(bytes(body)))
    before = pa.default_memory_pool().bytes_allocated()
    try:
        found = taken(messages)
    except BrokerError as error:
        assert error.code in (Code.INVALID, Code.LIMIT)  # noqa: PT017 - either is right
        return
    assert pa.default_memory_pool().bytes_allocated() - before <= len(messages) * ipc.UNPACKED_MAX
    del found


@given(header=st.binary(max_size=300), body=st.binary(max_size=64))
def test_headers_that_are_none_are_refused(header: bytes, body: bytes) -> None:
    data = FlightData(None, memoryview(header), memoryview(body))
    rows = IncomingRows(sent(ROWS[0])[0])
    for read in (IncomingRows, rows.check):
        try:
            read(data)
        except BrokerError as error:
            assert error.code in (Code.INVALID, Code.LIMIT)  # noqa: PT017
