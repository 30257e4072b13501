"""Tables of batches turned into Arrow columns of messages. Kernels copy the bytes, numpy does the arithmetic.

Knows the layout of a table of parts and the schema of messages; reads nothing and decides nothing.
"""

from array import array
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.feed.schema import HEADERS, TIMESTAMP
from headrace.kernels.columns import HEADERS as HEADERS_COLUMN
from headrace.kernels.columns import KEY, MESSAGE_ID, VALUE, gather_cells, measure_headers, split_headers
from headrace.kernels.records import BATCH_COLUMNS, BATCH_PROTOCOL, CODE, OFFSET, ROWS, WIDTH
from headrace.kernels.records import TIMESTAMP as TIMESTAMP_COLUMN
from headrace.log.walk import Parts
from headrace.model.batch import Protocol
from headrace.model.parts import MalformedPart

Numbers = npt.NDArray[np.int64]
Array: TypeAlias = "pa.Array[Any]"
Cells = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]
"""Where each row's cell ends, beginning with 0, and the bytes of all of them."""

_KNOWN = {protocol.value: protocol.name.lower() for protocol in Protocol}
PROTOCOLS = pa.array([_KNOWN.get(code, str(code)) for code in range(256)])


def table_of(parts: Parts) -> Numbers:
    """The parts' table, one row a part."""
    return np.frombuffer(parts.table, np.int64, WIDTH * parts.parts).reshape(parts.parts, WIDTH)


def chosen(parts: Parts, kept: npt.NDArray[np.bool_]) -> Parts:
    """Those of the parts that are `kept`."""
    if kept.all():
        return parts
    rows = table_of(parts)[kept]
    table = array("q")
    table.frombytes(rows.tobytes())
    return parts._replace(table=table, parts=len(rows), rows=int(rows[:, ROWS].sum()))


def may_be_envelopes(table: Numbers) -> npt.NDArray[np.bool_]:
    """Of each batch whether it came by grpcq or has headers, which may say that a message is an envelope."""
    with_headers = table[:, BATCH_COLUMNS + 3 * HEADERS_COLUMN + 2] > 0
    found: npt.NDArray[np.bool_] = with_headers | (table[:, BATCH_PROTOCOL] == Protocol.GRPCQ)
    return found


class MessageColumns:
    """Makes the columns of one schema. `names` are the topics by their codes; more may be added as the walk goes on."""

    def __init__(self, schema: pa.Schema, names: list[str]) -> None:
        self._schema = schema
        self._names = names
        self._topics = pa.array(names, pa.string())
        self._makers = [_MAKERS[name] for name in schema.names]

    def rows(self, parts: Parts) -> pa.RecordBatch:
        """One row for each chosen message. Raises MalformedPart for cells that are not what they should be."""
        table = table_of(parts)
        if len(self._topics) < len(self._names):
            self._topics = pa.array(self._names, pa.string())
        columns = [make(parts, table, self._topics) for make in self._makers]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def named(names: Array, codes: Numbers, rows: Numbers) -> Array:
    """The names of codes, each for so many rows."""
    if len(codes) == 1 or (codes == codes[0]).all():
        return repeated(names[int(codes[0])].as_py(), int(rows.sum()))
    return names.take(np.repeat(codes, rows))


def repeated(name: str, rows: int) -> Array:
    """One name for all of the rows. Arrow's own `repeat` copies it row by row."""
    cell = name.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(cell))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends.data), pa.py_buffer(cell * rows)])


def gathered(parts: Parts, table: Numbers, column: int) -> Cells:
    """The cells of one column. Raises MalformedPart when they are in no order."""
    slot = BATCH_COLUMNS + 3 * column
    sizes = table[:, slot + 2]
    ends = np.zeros(parts.rows + 1, np.uint32)
    cells = np.empty(int(sizes.sum()), np.uint8)
    gather_cells(parts.buffer, parts.table, parts.parts, column, ends.data[1:], cells.data)
    shifts = np.cumsum(sizes) - sizes - table[:, slot + 1]
    ends[1:] += np.repeat(shifts, table[:, ROWS]).astype(np.uint32)
    signed = ends.view(np.int32)
    if (signed[1:] < signed[:-1]).any():
        raise MalformedPart(f"cells of column {column} are in no order behind offset {table[0, OFFSET]}")
    return signed, cells


def _value(parts: Parts, table: Numbers, topics: Array) -> Array:
    ends, cells = gathered(parts, table, VALUE)
    return pa.Array.from_buffers(pa.binary(), parts.rows, [None, pa.py_buffer(ends.data), pa.py_buffer(cells.data)])


def _value_size(parts: Parts, table: Numbers, topics: Array) -> Array:
    return pa.array(np.diff(gathered(parts, table, VALUE)[0]))


def _key(parts: Parts, table: Numbers, topics: Array) -> Array:
    return _optional(pa.binary(), parts, table, KEY)


def _message_id(parts: Parts, table: Numbers, topics: Array) -> Array:
    return _optional(pa.string(), parts, table, MESSAGE_ID)


def _optional(kind: Any, parts: Parts, table: Numbers, column: int) -> Array:
    """A column in which an empty cell means that there is none."""
    if not table[:, BATCH_COLUMNS + 3 * column + 2].any():
        missing: Array = pa.nulls(parts.rows, kind)
        return missing
    ends, cells = gathered(parts, table, column)
    return pa.Array.from_buffers(kind, parts.rows, [_present(ends), pa.py_buffer(ends.data), pa.py_buffer(cells.data)])


def _present(ends: npt.NDArray[np.int32]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(ends[1:] > ends[:-1], bitorder="little").data)


def _headers(parts: Parts, table: Numbers, topics: Array) -> Array:
    if not table[:, BATCH_COLUMNS + 3 * HEADERS_COLUMN + 2].any():
        return pa.nulls(parts.rows, HEADERS)
    ends, cells = gathered(parts, table, HEADERS_COLUMN)
    count, keys_size, values_size = measure_headers(ends.data, cells.data)
    if count < 0:
        raise MalformedPart(f"headers that are none behind offset {table[0, OFFSET]}")
    list_ends = np.empty(parts.rows + 1, np.int32)
    key_ends, value_ends = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
    keys, values = np.empty(keys_size, np.uint8), np.empty(values_size, np.uint8)
    split_headers(ends.data, cells.data, list_ends.data, key_ends.data, keys.data, value_ends.data, values.data)
    pairs = pa.StructArray.from_arrays(
        [
            pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(key_ends.data), pa.py_buffer(keys.data)]),
            pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(value_ends.data), pa.py_buffer(values.data)]),
        ],
        fields=list(HEADERS.value_type),
    )
    return pa.Array.from_buffers(HEADERS, parts.rows, [_present(ends), pa.py_buffer(list_ends.data)], children=[pairs])


def _partition(parts: Parts, table: Numbers, topics: Array) -> Array:
    return pa.array(np.zeros(parts.rows, np.int32))


def _offset(parts: Parts, table: Numbers, topics: Array) -> Array:
    rows = table[:, ROWS]
    return pa.array(np.repeat(table[:, OFFSET] - (np.cumsum(rows) - rows), rows) + np.arange(parts.rows))


def _timestamp(parts: Parts, table: Numbers, topics: Array) -> Array:
    return pa.array(np.repeat(table[:, TIMESTAMP_COLUMN], table[:, ROWS])).view(TIMESTAMP)


def _protocol(parts: Parts, table: Numbers, topics: Array) -> Array:
    return named(PROTOCOLS, table[:, BATCH_PROTOCOL], table[:, ROWS])


def _topic(parts: Parts, table: Numbers, topics: Array) -> Array:
    return named(topics, table[:, CODE], table[:, ROWS])


_MAKERS: dict[str, Callable[[Parts, Numbers, Array], Array]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "headers": _headers,
    "protocol": _protocol,
    "message_id": _message_id,
    "value_size": _value_size,
}
