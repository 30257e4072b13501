"""The gate for Arrow rows that are not ours: looked at whole, once, and made plain columns that the rest may trust.

Arrow's reader checks next to nothing of what arrives: offsets, lengths, indexes and texts are whatever the sender
wrote. Nothing here touches a cell before `validate` has looked at all of them, and nothing is unpacked before it is
known how much that will be. Knows Arrow types and limits; nothing of batches, files or who is asking.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.feed.schema import HEADERS
from headrace.model.errors import BrokerError, Code

COLUMNS = ("value", "key", "topic", "headers", "message_id", "redriven_from")
HEADER_KEY_MAX = 0xFFFF
HEADER_OVERHEAD = 6
UNPACKED_MAX = 64 << 20
"""Bytes that rows may unpack to if they take fewer packed, by dictionaries or by views of the same bytes."""

SLICE_BYTES = 16 << 20
"""Rows are unpacked in slices of about so many bytes."""

_DETAIL_MAX = 300

Array: TypeAlias = "pa.Array[Any]"
Sizes = npt.NDArray[np.int64]


def check_schema(schema: pa.Schema) -> None:
    """Raises BrokerError(INVALID) unless rows of this schema can be turned into messages."""
    try:
        _check_fields(schema)
    except UnicodeDecodeError:
        raise BrokerError(Code.INVALID, f"a column whose name is no text; rows may have {', '.join(COLUMNS)}") from None


def _check_fields(schema: pa.Schema) -> None:
    unknown = [name for name in schema.names if name not in COLUMNS]
    if unknown:
        raise BrokerError(Code.INVALID, f"unknown columns {', '.join(unknown)}; rows may have {', '.join(COLUMNS)}")
    if len(set(schema.names)) < len(schema.names):
        raise BrokerError(Code.INVALID, "a column is there twice")
    if "value" not in schema.names:
        raise BrokerError(Code.INVALID, "the column value is missing")
    for field in schema:
        _CHECKS[field.name](field.name, field.type)


def taken_in(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows with plain columns, as PLAIN has them, all of them sound. The schema has been checked.

    Raises BrokerError: INVALID for rows that are malformed or cannot be messages, LIMIT for rows that unpack to too
    much.
    """
    try:
        rows.validate(full=True)
        if not rows.num_rows:
            return
        _check_nulls(rows)
        for piece in _slices(rows):
            yield pa.RecordBatch.from_arrays(
                [_plain(name, piece.column(name)) for name in piece.schema.names],
                schema=pa.schema([(name, PLAIN[name]) for name in piece.schema.names]),
            )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise unreadable(error) from error


def unreadable(error: Exception) -> BrokerError:
    """The refusal of rows that Arrow cannot make sense of."""
    return BrokerError(Code.INVALID, f"the rows cannot be read: {str(error)[:_DETAIL_MAX]}")


def first_null(column: Array) -> int:
    """The number of the first row without a value; there is one."""
    if column.null_count == len(column):
        return 0  # a column of nothing takes no bytes, however long it says that it is
    return int(column.is_null().to_numpy(zero_copy_only=False).argmax())


def _check_nulls(rows: pa.RecordBatch) -> None:
    value = rows.column("value")
    if value.null_count:
        raise BrokerError(Code.INVALID, f"value is null in row {first_null(value)}: a message has a value")
    if "headers" not in rows.schema.names or pa.types.is_null(rows.column("headers").type):
        return
    column: Any = rows.column("headers")
    headers = column.flatten()
    if headers.null_count:
        raise BrokerError(Code.INVALID, "a header is null")
    key = headers.field("key")
    if len(key) and (pa.types.is_null(key.type) or key.null_count):
        raise BrokerError(Code.INVALID, "the key of a header is null")


def _slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in pieces that can be unpacked one by one; plain ones that are few as they are.

    Raises BrokerError(LIMIT).
    """
    packed = rows.nbytes
    if packed <= SLICE_BYTES and not any(map(may_swell, rows.schema.types)):
        yield rows
        return
    totals = np.zeros(rows.num_rows + 1, np.int64)
    for name in rows.schema.names:
        totals[1:] += _header_sizes(rows.column(name)) if name == "headers" else _sizes(rows.column(name))
    np.cumsum(totals, out=totals)
    unpacked = int(totals[-1])
    if unpacked > max(UNPACKED_MAX, packed):
        raise BrokerError(
            Code.LIMIT,
            f"{packed} bytes of rows unpack to {unpacked}, more than {UNPACKED_MAX}; send them plain, or fewer at once",
        )
    first = 0
    while first < rows.num_rows:
        fits = int(np.searchsorted(totals, totals[first] + SLICE_BYTES, side="right")) - 1
        last = min(max(fits, first + 1), rows.num_rows)
        yield rows.slice(first, last - first)
        first = last


def may_swell(kind: Any) -> bool:
    """Whether a column of this type may hold more than it takes."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return any(may_swell(field.type) for field in kind.value_type)
    return pa.types.is_dictionary(kind) or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind)


def _sizes(column: Any) -> Sizes:
    """How many bytes each cell of a column of bytes, text or numbers holds."""
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_integer(kind) or not len(column):
        return np.zeros(len(column), np.int64)
    if pa.types.is_dictionary(kind):
        sizes = np.append(_sizes(column.dictionary), 0)
        found: Sizes = sizes[column.indices.cast(pa.int64()).fill_null(-1).to_numpy()]
        return found
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        views = np.frombuffer(column.buffers()[1], np.int32)[4 * column.offset :: 4][: len(column)]
        present = column.is_valid().to_numpy(zero_copy_only=False)
        return np.where(present, views, 0).astype(np.int64)
    import pyarrow.compute as pc  # takes long to load: with the first rows is early enough

    return pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _header_sizes(column: Any) -> Sizes:
    """How many bytes the headers of each row hold, with what is stored beside them."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    headers = column.flatten()
    totals = np.zeros(len(headers) + 1, np.int64)
    np.cumsum(HEADER_OVERHEAD + _sizes(headers.field("key")) + _sizes(headers.field("value")), out=totals[1:])
    ends = np.zeros(len(column) + 1, np.int64)
    np.cumsum(column.value_lengths().fill_null(0).to_numpy(), out=ends[1:])
    return np.diff(totals[ends])


def _plain(name: str, column: Any) -> Array:
    """A column as the plain type of its name. Raises BrokerError(INVALID) for cells that may not be."""
    if name == "headers":
        return _plain_headers(column)
    plain: Any = column.cast(PLAIN[name])
    if name == "redriven_from" and plain.null_count < len(plain) and np.any(plain.fill_null(0).to_numpy() < 0):
        raise BrokerError(Code.INVALID, "redriven_from is negative: it is the offset of a dead letter")
    return plain  # type: ignore[no-any-return]


def _plain_headers(column: Any) -> Array:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), HEADERS)
    headers = column.flatten()
    key, value = headers.field("key"), headers.field("value")
    longest = int(_sizes(key).max(initial=0))
    if longest > HEADER_KEY_MAX:
        raise BrokerError(Code.INVALID, f"the key of a header is longer than {HEADER_KEY_MAX} bytes")
    cells = [key.cast(pa.string()), value.cast(pa.binary())]
    pairs = pa.StructArray.from_arrays(cells, fields=list(HEADERS.value_type))
    ends = np.append(0, np.cumsum(column.value_lengths().fill_null(0).to_numpy())).astype(np.int32)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    validity = pa.py_buffer(np.packbits(present, bitorder="little").data)
    return pa.Array.from_buffers(HEADERS, len(column), [validity, pa.py_buffer(ends.data)], children=[pairs])


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)


def _check_bytes(name: str, kind: pa.DataType) -> None:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_text(inner) or _is_bytes(inner) or pa.types.is_null(inner)):
        raise BrokerError(Code.INVALID, f"{name} is {kind}; it must be binary or string")


def _check_text(name: str, kind: pa.DataType) -> None:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_text(inner) or pa.types.is_null(inner)):
        raise BrokerError(Code.INVALID, f"{name} is {kind}; it must be string")


def _check_headers(name: str, kind: pa.DataType) -> None:
    if pa.types.is_null(kind):
        return
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    inner: Any = kind.value_type if is_list else kind  # type: ignore[attr-defined]  # not narrowed by the stubs
    if not is_list or not pa.types.is_struct(inner) or sorted(field.name for field in inner) != ["key", "value"]:
        raise BrokerError(Code.INVALID, f"{name} is {kind}; it must be list<struct<key: string, value: binary>>")
    _check_text("headers.key", inner.field("key").type)
    _check_bytes("headers.value", inner.field("value").type)


def _check_offset(name: str, kind: pa.DataType) -> None:
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise BrokerError(Code.INVALID, f"{name} is {kind}; it must be int64")


PLAIN: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "topic": pa.string(),
    "headers": HEADERS,
    "message_id": pa.string(),
    "redriven_from": pa.int64(),
}
"""The types of rows that were taken in."""

_CHECKS: dict[str, Callable[[str, pa.DataType], None]] = {
    "value": _check_bytes,
    "key": _check_bytes,
    "topic": _check_text,
    "headers": _check_headers,
    "message_id": _check_text,
    "redriven_from": _check_offset,
}
