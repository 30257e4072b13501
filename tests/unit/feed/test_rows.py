"""Rows of every shape become the messages they say, in order; what cannot be a message is refused with its reason."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed import rows as rows_module
from headrace.feed.rows import ROW_BYTES_MAX, check_schema, encode_rows
from headrace.feed.schema import HEADERS
from headrace.model.batch import Batch, Message, Protocol, build_batch
from headrace.model.errors import BrokerError, Code
from headrace.model.marks import marked_offsets
from headrace.model.names import REDRIVEN_TOPIC
from headrace.model.parts import iter_parts


def encoded(batch: pa.RecordBatch, topic: str | None = None) -> bytes:
    check_schema(batch.schema)
    return b"".join(piece for part in encode_rows(batch, topic, lambda topic: None) for piece in part.pieces)


def batches(batch: pa.RecordBatch, topic: str | None = None) -> list[Batch]:
    data = encoded(batch, topic)
    found = list(iter_parts(data, 0, len(data), 0))
    assert all(isinstance(part, Batch) for part in found)
    return [part for part in found if isinstance(part, Batch)]


def messages(batch: pa.RecordBatch, topic: str | None = None) -> list[Message]:
    return [part.message(index) for part in batches(batch, topic) for index in range(part.count)]


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_one_topic_is_laid_out_byte_for_byte_as_a_batch_is() -> None:
    batch = rows(
        value=[b"one", b"", b"three"],
        key=[b"k", b"", b"kk"],
        headers=pa.array([[("a", b"1"), ("bb", b"")], [], [("c", b"xyz")]], HEADERS),
        message_id=["i", "", "ü"],
    )
    assert encoded(batch, "out") == build_batch(
        "out",
        [b"one", b"", b"three"],
        timestamp_us=0,
        protocol=Protocol.SPARK,
        keys=[b"k", b"", b"kk"],
        headers=[[("a", b"1"), ("bb", b"")], [], [("c", b"xyz")]],
        message_ids=["i", "", "ü"],
    )


CELL = st.none() | st.binary(max_size=20)
HEADER = st.tuples(st.text(max_size=8), st.binary(max_size=8))
ROW = st.tuples(
    st.binary(max_size=30),
    CELL,
    st.none() | st.sampled_from(["a", "b", "ü"]),
    st.none() | st.lists(HEADER, max_size=3),
    st.none() | st.text(max_size=5),
)


@given(table=st.lists(ROW, min_size=1, max_size=30), cut=st.integers(0, 29))
def test_any_rows_come_out_as_they_went_in(table: list[tuple[Any, ...]], cut: int) -> None:
    columns = list(zip(*table, strict=True))
    batch = rows(
        value=pa.array(columns[0], pa.binary()),
        key=pa.array(columns[1], pa.binary()),
        topic=pa.array(columns[2], pa.string()),
        headers=pa.array(columns[3], HEADERS),
        message_id=pa.array(columns[4], pa.string()),
    ).slice(min(cut, len(table) - 1))
    wanted: dict[str, list[Any]] = {}
    for value, key, topic, headers, message_id in table[min(cut, len(table) - 1) :]:
        wanted.setdefault(topic or "default", []).append((value, key or None, list(headers or ()), message_id or None))
    found: dict[str, list[Any]] = {}
    for message in messages(batch, "default"):
        row = (message.value, message.key, list(message.headers), message.message_id)
        found.setdefault(message.topic, []).append(row)
    assert found == wanted


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)  # fmt: skip
def test_values_may_be_text_or_bytes_of_any_kind(kind: pa.DataType) -> None:
    column = pa.array(["x", "yy", "x"]).cast(pa.string() if pa.types.is_dictionary(kind) else kind)
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column
    assert [message.value for message in messages(rows(value=column), "out")] == [b"x", b"yy", b"x"]


def test_a_slice_of_a_bigger_array_is_only_that_slice() -> None:
    batch = rows(value=pa.array([b"%d" % n for n in range(100)]), key=pa.array([b"k%d" % n for n in range(100)]))
    found = messages(batch.slice(40, 3), "out")
    assert [(m.value, m.key) for m in found] == [(b"40", b"k40"), (b"41", b"k41"), (b"42", b"k42")]


def test_columns_without_a_single_cell_are_left_out() -> None:
    batch = rows(
        value=[b"x"], key=pa.array([None], pa.binary()), headers=pa.array([None], HEADERS), message_id=pa.nulls(1)
    )
    (part,) = batches(batch, "out")
    assert part.columns == 0


def test_no_rows_are_no_parts() -> None:
    assert encoded(rows(value=pa.array([], pa.binary())), "out") == b""


def test_many_rows_are_cut_into_parts_of_a_sensible_size() -> None:
    big = [b"." * 300_000, b"." * 900_000, b"x", b"." * 3_000_000, b"y"]
    assert [part.count for part in batches(rows(value=big), "out")] == [1, 2, 1, 1]
    small = pa.array([b""] * (rows_module.PART_ROWS_MAX + 5))
    assert [part.count for part in batches(rows(value=small), "out")] == [rows_module.PART_ROWS_MAX, 5]


def test_a_mark_follows_the_copies_it_names() -> None:
    batch = rows(
        value=[b"1", b"2", b"3", b"4", b"5"],
        topic=["a", "b", "a", "b", "a"],
        redriven_from=pa.array([10, None, 30, 40, None], pa.int64()),
    )
    found = [(p.topic, [p.value(i) for i in range(p.count)]) for p in batches(batch)]
    assert [topic for topic, _ in found] == ["a", "a", REDRIVEN_TOPIC, "b", "b", REDRIVEN_TOPIC]
    assert [values for topic, values in found if topic != REDRIVEN_TOPIC] == [[b"5"], [b"1", b"3"], [b"2"], [b"4"]]
    marks = [marked_offsets(values[0]) for topic, values in found if topic == REDRIVEN_TOPIC]
    assert marks == [(10, 30), (40,)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": [b"k"]}, "the column value is missing"),
        ({"value": [b"x"], "offset": [1]}, "unknown columns offset; rows may have value, key, topic"),
        ({"value": [1]}, "value is int64; it must be binary or string"),
        ({"value": [b"x"], "topic": [b"t"]}, "topic is binary; it must be string"),
        ({"value": [b"x"], "headers": ["a=b"]}, "headers is string; it must be list<struct"),
        ({"value": [b"x"], "headers": [[{"key": "a"}]]}, "must be list<struct"),
        ({"value": [b"x"], "headers": [[{"key": 1, "value": b"x"}]]}, "headers.key is int64"),
        ({"value": [b"x"], "redriven_from": ["7"]}, "redriven_from is string; it must be int64"),
        ({"value": [b"x"], "topic": ["a"], "redriven_from": [-7]}, "redriven_from is negative"),
        ({"value": [b"x", None], "topic": ["a", "a"]}, "value is null in row 1"),
        ({"value": [b"x", b"y"], "topic": ["a", None]}, "topic is null in row 1"),
        ({"value": [b"x"]}, "the rows name no topic"),
        ({"value": [b"x"], "topic": ["a"], "headers": [[None, {"key": "a", "value": b"x"}]]}, "a header is null"),
        ({"value": [b"x"], "topic": ["a"], "headers": [[{"key": None, "value": b"x"}, {"key": "a", "value": b""}]]},
         "the key of a header is null"),
        ({"value": [b"x"], "topic": ["a"], "headers": [[{"key": "k" * 70_000, "value": b"x"}]]}, "longer than 65535"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_message_is_refused(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(BrokerError, match=words) as refused:
        encoded(rows(**columns))
    assert refused.value.code is Code.INVALID


def test_a_column_that_is_there_twice_is_refused() -> None:
    schema = pa.schema([("value", pa.binary()), ("value", pa.binary())])
    with pytest.raises(BrokerError, match="twice"):
        check_schema(schema)


def test_a_row_that_is_too_big_is_refused() -> None:
    with pytest.raises(BrokerError, match="at most") as refused:
        encoded(rows(value=[b"." * (ROW_BYTES_MAX + 1)]), "out")
    assert refused.value.code is Code.LIMIT


def test_every_topic_is_asked_for_once() -> None:
    asked: list[str] = []
    batch = rows(value=[b"1", b"2", b"3"], topic=["a", "b", "a"])
    list(encode_rows(batch, None, asked.append))
    assert asked == ["a", "b"]
