"""The columns of the feed's two streams, as Arrow schemas. Knows pyarrow and nothing else of headrace."""

from collections.abc import Sequence

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

_MESSAGES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "headers": HEADERS,
    "protocol": pa.string(),
    "message_id": pa.string(),
}
_MAY_BE_MISSING = {"key", "headers", "message_id"}
MESSAGES = pa.schema([pa.field(name, kind, name in _MAY_BE_MISSING) for name, kind in _MESSAGES.items()])
"""One row a message. A key, headers or a message id that a message does not have is null, nothing else ever is."""

_EVENTS: dict[str, pa.DataType] = {
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "event": pa.string(),
    "topic": pa.string(),
    "subscription": pa.string(),
    "message_offset": pa.int64(),
    "attempt": pa.int32(),
    "reason": pa.string(),
    "latency_ms": pa.float64(),
    "subscription_id": pa.int64(),
}
EVENTS = pa.schema(_EVENTS)
"""One row for each message an event is about, one row for an event about none."""

STREAMS = {"messages": MESSAGES, "events": EVENTS}
_BY_NAME_ONLY = {"messages": pa.schema([pa.field("value_size", pa.int32(), nullable=False)]), "events": pa.schema([])}
"""Columns that only those get who name them."""


class BadColumns(ValueError):
    """Columns that a stream does not have, or none at all."""


def select(stream: str, columns: Sequence[str] | None) -> pa.Schema:
    """The schema of a stream cut down to these columns, in their order; None means all.

    Raises BadColumns, naming what there is.
    """
    schema = STREAMS[stream]
    if columns is None:
        return schema
    schema = pa.schema([*schema, *_BY_NAME_ONLY[stream]])
    unknown = sorted(set(columns) - set(schema.names))
    if unknown or not columns or len(set(columns)) != len(columns):
        fault = f"unknown columns {', '.join(unknown)}" if unknown else "columns must be named once each, at least one"
        raise BadColumns(f"{fault}; {stream} have {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])
