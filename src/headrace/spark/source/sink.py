"""Which columns of a DataFrame become messages, and of what type they must be. Looks at schemas and batches only."""

from difflib import get_close_matches
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, StringType, StructType

_PASSED_OVER = {"partition", "offset", "timestamp", "protocol"}
"""What a read has besides; a topic can be written into another without naming columns."""

_EXPECTED = {
    "value": "binary or string",
    "key": "binary or string",
    "topic": "string",
    "headers": "array<struct<key: string, value: binary>>",
    "message_id": "string",
    "redriven_from": "long, the offset of a dead letter",
}


class SinkSchemaError(ValueError):
    """A DataFrame that cannot be written to a topic; the message names the column."""


def message_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns to send, given the option `topic`, which wins over a column of that name.

    Raises SinkSchemaError.
    """
    for field in schema.fields:
        if field.name not in _EXPECTED and field.name not in _PASSED_OVER:
            _refuse_unknown(field.name)
        if field.name in _EXPECTED and not _fits(field.name, field.dataType):
            found = field.dataType.simpleString()
            raise SinkSchemaError(f"column {field.name} is {found}; it must be {_EXPECTED[field.name]}")
    names = schema.fieldNames()
    if "value" not in names:
        raise SinkSchemaError(f"there is no column value; the DataFrame has {', '.join(names) or 'no columns'}")
    if topic is None and "topic" not in names:
        raise SinkSchemaError("which topic? Give option topic or a column topic")
    return tuple(name for name in _EXPECTED if name in names and not (name == "topic" and topic is not None))


def project(batch: pa.RecordBatch, columns: tuple[str, ...], topic: str | None) -> pa.RecordBatch:
    """These columns of a batch, in types the feed knows.

    Raises SinkSchemaError when a row has no value, or no topic to go to.
    """
    arrays = []
    for name in columns:
        column = batch.column(name)
        if pa.types.is_large_string(column.type):
            column = column.cast(pa.string())
        elif pa.types.is_large_binary(column.type):
            column = column.cast(pa.binary())
        if column.null_count and (name == "value" or (name == "topic" and topic is None)):
            raise SinkSchemaError(f"column {name} is null in {column.null_count} of {len(column)} rows")
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _fits(name: str, kind: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(kind, BinaryType | StringType)
    if name == "redriven_from":
        return isinstance(kind, LongType)
    if name != "headers":
        return isinstance(kind, StringType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def _refuse_unknown(name: str) -> NoReturn:
    near = get_close_matches(name.lower(), _EXPECTED, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"a message has {', '.join(_EXPECTED)}; select what to write"
    raise SinkSchemaError(f"column {name} is no part of a message; {hint}")
