"""Arrow rows whose buffers are anything: what is taken in is sound, all else is refused, and nothing else happens."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed.incoming import PLAIN, SLICE_BYTES, UNPACKED_MAX, taken_in
from headrace.feed.rows import check_schema, encode_rows
from headrace.feed.schema import HEADERS
from headrace.feed.staging import Put, Upload
from headrace.kernels.gate import Fault, check_part
from headrace.model.batch import Batch
from headrace.model.errors import BrokerError, Code
from headrace.model.names import check_topic
from headrace.model.parts import batches_in
from tests.crash.faultdisk import FaultDisk
from tests.harness.drivers import uploaded
from tests.harness.properties import tried

TEXT = (pa.string(), pa.large_string(), pa.string_view())
BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())
WIDTHS = {1: "b", 2: "h", 4: "i", 8: "q"}

numbers = st.integers(-3, 12) | st.sampled_from((127, 300_000, 2**31 - 1, -(2**31), 2**31))


class Clay:
    """Buffers that are zeros while arrays are made of them, which Arrow looks at a little, and anything afterwards."""

    def __init__(self) -> None:
        self._buffers: list[tuple[bytearray, bytes]] = []

    def buffer(self, contents: bytes) -> pa.Buffer:
        """A buffer that will hold this."""
        data = bytearray(len(contents))
        self._buffers.append((data, contents))
        return pa.py_buffer(data)

    def ints(self, values: list[int], size: int) -> pa.Buffer:
        """Numbers of this many bytes, cut to what fits."""
        return self.buffer(packed(values, size))

    def burn(self) -> None:
        """Fill them."""
        for data, contents in self._buffers:
            data[:] = contents


def packed(values: list[int], size: int) -> bytes:
    top = 1 << (8 * size - 1)
    return struct.pack(f"<{len(values)}{WIDTHS[size]}", *((v + top) % (2 * top) - top for v in values))


def outcome(batch: pa.RecordBatch, topic: str | None = "orders") -> list[Batch] | BrokerError:
    """The batches made of these rows, each of which is as it should be, or why they were refused."""
    try:
        check_schema(batch.schema)
        data = b"".join(piece for part in encode_rows(batch, topic, check_topic) for piece in part.pieces)
    except BrokerError as error:
        refused = error
    else:
        return sound(data)
    assert refused.code in (Code.INVALID, Code.LIMIT)
    assert refused.detail
    return refused


def sound(data: bytes) -> list[Batch]:
    """The batches in this, every message of which is read."""
    found = batches_in(data, 0, len(data), 0)
    for each in found:
        assert check_part(data, each.start, each.start + each.size) == Fault.SOUND
        for index in range(each.count):
            each.message(index)
    return found


@st.composite
def bitmaps(draw: st.DrawFn) -> pa.Buffer | None:
    return draw(st.none() | st.binary(min_size=1, max_size=2).map(pa.py_buffer))


@st.composite
def cells(draw: st.DrawFn, clay: Clay, kinds: tuple[Any, ...], length: int) -> Any:
    """A column of bytes or text whose ends, views, bytes and validity are anything."""
    kind = draw(st.sampled_from(kinds))
    data = pa.py_buffer(draw(st.binary(max_size=12) | st.text(max_size=6).map(str.encode)))
    present = draw(bitmaps())
    if kind in (pa.string_view(), pa.binary_view()):
        view = st.tuples(numbers, st.binary(min_size=4, max_size=4), numbers, numbers)
        views = draw(st.lists(view, min_size=length, max_size=length))
        made = b"".join(packed([a], 4) + b + packed([c, d], 4) for a, b, c, d in views)
        return pa.Array.from_buffers(kind, length, [present, clay.buffer(made), data])
    size = 8 if kind in (pa.large_string(), pa.large_binary()) else 4
    orderly = st.lists(st.integers(0, 6), min_size=length, max_size=length).map(sorted).map(lambda e: [0, *e])
    ends = draw(orderly | st.lists(numbers, min_size=length + 1, max_size=length + 1))
    return pa.Array.from_buffers(kind, length, [present, clay.ints(ends, size), data])


@st.composite
def dictionaries(draw: st.DrawFn, clay: Clay, kinds: tuple[Any, ...], length: int) -> Any:
    """A column of indexes into a dictionary, both of which are anything."""
    values = draw(cells(clay, kinds, draw(st.integers(0, 4))))
    size = draw(st.sampled_from(sorted(WIDTHS)))
    index = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[size]
    indexes = draw(st.lists(st.integers(0, 3) | numbers, min_size=length, max_size=length))
    codes: Any = pa.Array.from_buffers(index, length, [draw(bitmaps()), clay.ints(indexes, size)])
    return pa.DictionaryArray.from_arrays(codes, values, safe=False)


@st.composite
def header_lists(draw: st.DrawFn, clay: Clay, length: int) -> Any:
    """A column of lists of pairs, each level of which is anything."""
    inner = draw(st.integers(0, 6))
    key, value = draw(columns(clay, TEXT, inner)), draw(columns(clay, BYTES, inner))
    kind = pa.struct([("key", key.type), ("value", value.type)])
    pairs = pa.StructArray.from_buffers(kind, inner, [draw(bitmaps())], children=[key, value])
    size = draw(st.sampled_from((4, 8)))
    outer: Any = (pa.list_ if size == 4 else pa.large_list)(pairs.type)
    orderly = st.lists(st.integers(0, inner), min_size=length, max_size=length).map(sorted).map(lambda e: [0, *e])
    ends = draw(orderly | st.lists(numbers, min_size=length + 1, max_size=length + 1))
    return pa.Array.from_buffers(outer, length, [draw(bitmaps()), clay.ints(ends, size)], children=[pairs])


def columns(clay: Clay, kinds: tuple[Any, ...], length: int) -> Any:
    plain = cells(clay, kinds, length)
    return plain | plain | dictionaries(clay, kinds, length) | st.just(pa.nulls(length))


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of which any buffer may be anything, now and then cut out of longer ones."""
    clay, length = Clay(), draw(st.integers(0, 6))
    made = {"value": draw(columns(clay, (*BYTES, pa.string()), length))}
    for name, kind in (
        ("key", columns(clay, (*BYTES, pa.string()), length)),
        ("topic", columns(clay, TEXT, length)),
        ("headers", header_lists(clay, length)),
        ("message_id", columns(clay, TEXT, length)),
    ):
        if draw(st.booleans()):
            made[name] = draw(kind)
    if draw(st.booleans()):
        letters = clay.ints(draw(st.lists(numbers, min_size=length, max_size=length)), 8)
        kind = draw(st.sampled_from((pa.int64(), pa.uint64())))
        made["redriven_from"] = pa.Array.from_buffers(kind, length, [draw(bitmaps()), letters])
    batch = pa.RecordBatch.from_arrays(list(made.values()), list(made))
    clay.burn()
    first = draw(st.integers(0, length))
    return batch.slice(first, draw(st.integers(0, length))) if draw(st.booleans()) else batch


@tried(1500)
@given(batch=batches())
def test_whatever_the_buffers_are_rows_are_messages_or_are_refused(batch: pa.RecordBatch) -> None:
    outcome(batch)


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


STREAMS = [
    _stream(rows(value=[b"one", b"two", b"three"], topic=["a", "b", "a"])),
    _stream(rows(value=pa.array(["x", "yy", "x"]).dictionary_encode(), message_id=["1", "2", "3"])),
    _stream(rows(value=pa.array([b"v", b"w"]), headers=pa.array([[("k", b"1")], None], HEADERS))),
    _stream(rows(value=pa.array([b"v" * 20, b"w"], pa.binary_view()), key=pa.array([b"", None]))),
]


@tried(600)
@given(
    stream=st.sampled_from(STREAMS),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_stream_with_any_bytes_changed_is_staged_as_sound_batches_or_refused(
    stream: bytes, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(stream)
    for place, byte in changes:
        data[int(place * len(data))] = byte
    try:
        reader = pa.ipc.open_stream(bytes(data))
    except (pa.ArrowException, OSError):
        return
    disk, directory = FaultDisk(), Path("staging")
    put = Put("query", 0, "", "orders")
    try:
        upload = Upload(disk, directory, "ann", put, reader.schema, allow=check_topic, now=1)
        try:
            batches = list(reader)
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            upload.abandon()
            return
        receipt = uploaded(upload, batches)
    except BrokerError as error:
        refused = error
    else:
        sound(bytes(disk.contents(directory / receipt.file)))
        return
    assert refused.code in (Code.INVALID, Code.LIMIT)
    assert disk.list(directory) == []


def raw(clay: Clay, kind: Any, ends: list[int], data: bytes, *, size: int = 4) -> Any:
    return pa.Array.from_buffers(kind, len(ends) - 1, [None, clay.ints(ends, size), pa.py_buffer(data)])


def indexed(clay: Clay, indexes: list[int], size: int = 4) -> Any:
    kind: Any = {4: pa.int32(), 8: pa.int64()}[size]
    codes: Any = pa.Array.from_buffers(kind, len(indexes), [None, clay.ints(indexes, size)])
    return pa.DictionaryArray.from_arrays(codes, pa.array(["a", "b"]), safe=False)


def lists(clay: Clay, ends: list[int]) -> Any:
    pairs = pa.array([{"key": "k", "value": b"v"}] * 2, HEADERS.value_type)
    return pa.Array.from_buffers(HEADERS, len(ends) - 1, [None, clay.ints(ends, 4)], children=[pairs])


GOOD = pa.array([b"x", b"y"])
MALFORMED: dict[str, Callable[[Clay], dict[str, Any]]] = {
    "offsets fall": lambda clay: {"value": raw(clay, pa.binary(), [0, 7, 3], b"1234567")},
    "offsets beyond": lambda clay: {"value": raw(clay, pa.binary(), [0, 300_000, 7], b"1234567")},
    "offsets beyond at the end": lambda clay: {"value": raw(clay, pa.binary(), [0, 3, 1 << 30], b"1234567")},
    "offsets negative": lambda clay: {"value": raw(clay, pa.binary(), [-9, 3, 7], b"1234567")},
    "large offsets": lambda clay: {"value": raw(clay, pa.large_binary(), [0, 1 << 62, 7], b"1234567", size=8)},
    "text": lambda clay: {"value": GOOD, "message_id": raw(clay, pa.string(), [0, 2, 3], b"\xff\xfea")},
    "text over two cells": lambda clay: {"value": GOOD, "message_id": raw(clay, pa.string(), [0, 1, 2], "ü".encode())},
    "large text": lambda clay: {
        "value": GOOD,
        "message_id": raw(clay, pa.large_string(), [0, 1, 2], b"\xc0\x80", size=8),
    },
    "topic text": lambda clay: {"value": GOOD, "topic": raw(clay, pa.string(), [0, 1, 2], b"\xff\xfe")},
    "topic index beyond": lambda clay: {"value": GOOD, "topic": indexed(clay, [0, 5])},
    "topic index negative": lambda clay: {"value": GOOD, "topic": indexed(clay, [0, -7])},
    "topic index huge": lambda clay: {"value": GOOD, "topic": indexed(clay, [0, 1 << 40], 8)},
    "value index beyond": lambda clay: {"value": indexed(clay, [0, 2])},
    "header lists beyond": lambda clay: {"value": GOOD, "headers": lists(clay, [0, 1, 9])},
    "header lists fall": lambda clay: {"value": GOOD, "headers": lists(clay, [0, 2, 1])},
    "header lists negative": lambda clay: {"value": GOOD, "headers": lists(clay, [-1, 1, 2])},
    "letters beyond": lambda clay: {"value": GOOD, "redriven_from": pa.array([1, 1 << 63], pa.uint64())},
    "letters negative": lambda clay: {"value": GOOD, "redriven_from": pa.array([1, -1], pa.int64())},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_rows_are_refused(name: str) -> None:
    clay = Clay()
    columns = MALFORMED[name](clay)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    clay.burn()
    refused = outcome(batch)
    assert isinstance(refused, BrokerError)
    assert refused.code is Code.INVALID


def _swollen(count: int) -> dict[str, Callable[[], Any]]:
    long = b"." * 100_000
    return {
        "dictionary": lambda: pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int8()), pa.array([long])),
        "views": lambda: pa.Array.from_buffers(
            pa.binary_view(),
            count,
            [None, pa.py_buffer(struct.pack("<i4sii", len(long), long[:4], 0, 0) * count), pa.py_buffer(long)],
        ),
    }


@pytest.mark.parametrize("how", ["dictionary", "views"])
def test_rows_that_unpack_to_far_more_than_they_take_are_refused_before_they_are(how: str) -> None:
    much = pa.record_batch({"value": _swollen(10_000)[how]()})
    before = pa.total_allocated_bytes()
    refused = outcome(much)
    assert isinstance(refused, BrokerError)
    assert refused.code is Code.LIMIT
    assert "unpack to 1000000000" in refused.detail
    assert pa.total_allocated_bytes() - before < UNPACKED_MAX
    some = pa.record_batch({"value": _swollen(500)[how]()})
    found = outcome(some)
    assert not isinstance(found, BrokerError)
    assert sum(each.count for each in found) == 500
    sizes = [each.nbytes for each in taken_in(some)]
    assert max(sizes) < 2 * SLICE_BYTES
    assert len(sizes) > 2


def _nothing(count: int) -> Any:
    return pa.Array.from_buffers(pa.null(), count, [None])


def test_counts_without_bytes_are_refused_before_anything_is_made_of_them() -> None:
    huge = 1 << 40
    nothing = pa.RecordBatch.from_arrays([_nothing(huge)], ["value"])
    assert isinstance(outcome(nothing), BrokerError)
    pairs = pa.StructArray.from_arrays([_nothing(1 << 30), _nothing(1 << 30)], ["key", "value"])
    ends = pa.py_buffer(packed([0, 1 << 30], 4))
    lists = pa.Array.from_buffers(pa.list_(pairs.type), 1, [None, ends], children=[pairs])
    before = pa.total_allocated_bytes()
    assert isinstance(outcome(pa.record_batch({"value": pa.array([b"x"]), "headers": lists})), BrokerError)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_columns_of_every_type_are_made_plain() -> None:
    for kind in (*TEXT, *BYTES):
        for column in (pa.array(["a", "b", "a"]).cast(pa.string()).cast(kind), None):
            found = column if column is not None else pa.array(["a", "b", "a"]).dictionary_encode()
            (plain,) = taken_in(pa.record_batch({"value": found}))
            assert plain.schema.field("value").type == PLAIN["value"]
            assert plain.column("value").to_pylist() == [b"a", b"b", b"a"]
