"""Which DataFrames can be written to topics."""

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StructType

from headrace.spark.source.sink import SinkSchemaError, message_columns, project


def schema(**columns: str) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


PAIR = StructType().add("key", "string").add("value", "binary")


def test_a_value_is_enough_when_the_topic_is_given() -> None:
    assert message_columns(schema(value="binary"), "out") == ("value",)
    assert message_columns(schema(value="string"), "out") == ("value",)


def test_the_option_topic_wins_over_the_column() -> None:
    both = schema(topic="string", value="binary")
    assert message_columns(both, None) == ("value", "topic")
    assert message_columns(both, "out") == ("value",)


def test_what_was_read_can_be_written() -> None:
    read = schema(
        key="binary", value="binary", topic="string", partition="integer", offset="long", timestamp="timestamp",
        protocol="string", message_id="string",
    )  # fmt: skip
    assert message_columns(read, None) == ("value", "key", "topic", "message_id")


def test_headers_are_pairs_of_a_name_and_bytes() -> None:
    pairs = schema(value="binary").add("headers", ArrayType(PAIR))
    assert message_columns(pairs, "out") == ("value", "headers")
    texts = schema(value="binary").add("headers", ArrayType(StructType().add("key", "string").add("value", "string")))
    with pytest.raises(SinkSchemaError, match="column headers"):
        message_columns(texts, "out")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"vaule": "binary"}, "column vaule is no part of a message; did you mean value?"),
        ({"value": "binary", "total": "integer"}, "column total is no part of a message; a message has value"),
        ({"value": "integer"}, "column value is int; it must be binary or string"),
        ({"value": "binary", "headers": "string"}, "column headers is string; it must be array<struct<key: string"),
        ({"key": "binary"}, "there is no column value; the DataFrame has key"),
        ({"value": "binary"}, "which topic?"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, str], said: str) -> None:
    with pytest.raises(SinkSchemaError) as caught:
        message_columns(schema(**columns), None)
    assert said in str(caught.value)


def test_rows_without_a_value_or_topic_are_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"a", None], "topic": ["t", "t"]})
    with pytest.raises(SinkSchemaError, match="column value is null in 1 of 2 rows"):
        project(batch, ("value",), "out")
    batch = pa.RecordBatch.from_pydict({"value": [b"a"], "topic": pa.array([None], pa.string())})
    with pytest.raises(SinkSchemaError, match="column topic is null"):
        project(batch, ("value", "topic"), None)


def test_large_types_become_plain_ones() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a"], pa.large_string()), pa.array([b"k"], pa.large_binary()), pa.array([1])],
        names=["value", "key", "offset"],
    )
    plain = project(batch, ("value", "key"), "out")
    assert plain.schema.types == [pa.string(), pa.binary()]
