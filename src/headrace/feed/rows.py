"""Arrow rows turned into batch parts, ready for the log. No step for a single message: Arrow and numpy do the work.

Knows columns and the batch layout; nothing of files, transactions or who is asking. The time of a part is left at 0.
What somebody sent has to go through `incoming` first: its buffers are trusted here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.feed.incoming import check_schema, first_null, taken_in
from headrace.model.batch import HEADER, HEADER_SIZE, PART_BATCH, Buffer, Column, Protocol, padded
from headrace.model.errors import BrokerError, Code
from headrace.model.marks import mark_part

PART_BYTES = 1 << 20
PART_ROWS_MAX = 65_536
ROW_BYTES_MAX = 16 << 20

__all__ = ["check_schema", "encode_plain", "encode_rows"]

Ends = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cells:
    """A column of bytes: row i is `data[ends[i]:ends[i + 1]]`."""

    ends: Ends
    data: memoryview

    def slices(self, first: int, last: int) -> list[Buffer]:
        """The rows from `first` to before `last`, as a batch stores a column."""
        ends = self.ends[first : last + 1]
        begin, end = int(ends[0]), int(ends[-1])
        return [*_padded((ends - begin).astype("<u4").tobytes()), *_padded(self.data[begin:end])]

    def size(self, first: int, last: int) -> int:
        """The bytes of these rows."""
        return int(self.ends[last] - self.ends[first])


@dataclass(frozen=True, slots=True)
class Part:
    """A part in pieces, to be written one after the other; `rows` of them are messages somebody sent."""

    pieces: list[Buffer]
    rows: int


def encode_rows(rows: pa.RecordBatch, topic: str | None, allow: Callable[[str], object]) -> Iterator[Part]:
    """The rows as batch parts, whoever sent them; see `incoming.taken_in` and `encode_plain`."""
    for plain in taken_in(rows):
        yield from encode_plain(plain, topic, allow)


def encode_plain(rows: pa.RecordBatch, topic: str | None, allow: Callable[[str], object]) -> Iterator[Part]:
    """Rows that were taken in as batch parts, those of one topic in their order.

    `topic` is where rows without one go. `allow` is asked once for every topic and raises what it likes.
    Raises BrokerError(INVALID) for rows that cannot be messages.
    """
    if not rows.num_rows:
        return
    names, groups = _topics(rows, topic)
    for name in names:
        allow(name)
    letters = _letters(rows)
    if letters is not None:
        groups = groups * 2 + (letters >= 0)
    order = np.argsort(groups, kind="stable") if groups.any() else None
    if order is not None:
        rows, groups = rows.take(order), groups[order]
        letters = letters[order] if letters is not None else None
    columns = _columns(rows)
    totals = _totals(columns)
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    for first, last in pairwise(edges):
        group = int(groups[first])
        name = names[group // 2 if letters is not None else group]
        for begin, end in _cut(totals, first, last):
            yield _part(name, columns, begin, end)
            if letters is not None and letters[begin] >= 0:
                yield Part([mark_part(letters[begin:end].astype("<u8").tobytes(), 0, Protocol.SPARK)], 0)


def _part(topic: str, columns: dict[Column, Cells], first: int, last: int) -> Part:
    name = topic.encode()
    pieces: list[Buffer] = [*_padded(name)]
    for cells in columns.values():
        pieces += cells.slices(first, last)
    flags = sum(column for column in columns if column)
    header = HEADER.pack(
        HEADER_SIZE + sum(map(len, pieces)), PART_BATCH, Protocol.SPARK, 1, flags, last - first, len(name),
        0, 0, 0, 0, columns[_VALUE].size(first, last), 0,
    )  # fmt: skip
    return Part([header, *pieces], last - first)


def _totals(columns: dict[Column, Cells]) -> Ends:
    """How many bytes all rows before each one take. Raises BrokerError(LIMIT) for a row that takes too many."""
    totals: Ends = 4 * len(columns) * np.arange(len(columns[_VALUE].ends), dtype=np.int64)
    for cells in columns.values():
        totals += cells.ends - cells.ends[0]
    biggest = int(np.diff(totals).max())
    if biggest > ROW_BYTES_MAX:
        raise BrokerError(Code.LIMIT, f"a row of {biggest} bytes; at most {ROW_BYTES_MAX} make a message")
    return totals


def _cut(totals: Ends, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Runs of rows that make parts of a sensible size."""
    while first < last:
        fits = int(np.searchsorted(totals, totals[first] + PART_BYTES, side="right")) - 1
        end = min(max(fits, first + 1), first + PART_ROWS_MAX, last)
        yield first, end
        first = end


def _topics(rows: pa.RecordBatch, topic: str | None) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The topics, and which of them each row goes to."""
    column = rows.column("topic") if "topic" in rows.schema.names else None
    if column is not None and column.null_count < rows.num_rows:
        if column.null_count and topic is None:
            place = first_null(column)
            raise BrokerError(Code.INVALID, f"topic is null in row {place}, and there is no other to fall back on")
        found = (column.fill_null(topic) if column.null_count else column).dictionary_encode()
        names: list[Any] = found.dictionary.to_pylist()
        return names, found.indices.to_numpy().astype(np.int64)
    if topic is None:
        raise BrokerError(Code.INVALID, "the rows name no topic, and there is no other to fall back on")
    return [topic], np.zeros(rows.num_rows, np.int64)


def _letters(rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """The dead letter each row is a copy of, -1 for none; None when no row is."""
    if "redriven_from" not in rows.schema.names:
        return None
    column = rows.column("redriven_from")
    if column.null_count == rows.num_rows:
        return None
    found: npt.NDArray[np.int64] = column.fill_null(-1).to_numpy()
    return found


def _columns(rows: pa.RecordBatch) -> dict[Column, Cells]:
    """The columns a batch stores, in its order; those without a single cell are left out."""
    found = {_VALUE: _cells(rows.column("value"))}
    for name, column in (("key", Column.KEY), ("headers", Column.HEADERS), ("message_id", Column.MESSAGE_ID)):
        if name in rows.schema.names and rows.column(name).null_count < rows.num_rows:
            cells = rows.column(name)
            found[column] = _header_cells(cells) if column is Column.HEADERS else _cells(cells)
    return found


def _cells(column: "pa.Array[Any]") -> Cells:
    """A column of bytes or text as cells; null is empty."""
    plain: pa.Array[Any] = column.cast(pa.binary())
    if plain.null_count:
        plain = plain.fill_null(b"")
    _, ends, data = plain.buffers()
    assert ends is not None
    return Cells(
        np.frombuffer(memoryview(ends), np.int32, len(plain) + 1, 4 * plain.offset).astype(np.int64),
        memoryview(data).cast("B") if data is not None else memoryview(b""),
    )


def _header_cells(column: Any) -> Cells:
    """The headers of each row as one cell: u16 key size, key, u32 value size, value, repeated."""
    import pyarrow.compute as pc  # takes long to load: with the first rows is early enough

    counts = column.value_lengths().fill_null(0).to_numpy()
    flat = column.flatten()
    keys = flat.field("key").cast(pa.binary())
    values = flat.field("value").fill_null(b"")
    key_sizes = pc.binary_length(keys).to_numpy()
    value_sizes = pc.binary_length(values).to_numpy()
    joined = _cells(
        pc.binary_join_element_wise(
            _numbers(key_sizes.astype("<u2"), 2), keys, _numbers(value_sizes.astype("<u4"), 4), values, b""
        )
    )
    rows = np.concatenate(([0], np.cumsum(counts)))
    return Cells(joined.ends[rows], joined.data)


def _numbers(numbers: npt.NDArray[np.unsignedinteger], size: int) -> "pa.Array[Any]":
    """Numbers as the bytes they are made of."""
    raw = pa.py_buffer(numbers.tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(numbers), [None, raw]).cast(pa.binary())


def _padded(data: Buffer) -> list[Buffer]:
    size = len(data)
    return [data, bytes(padded(size) - size)] if size % 8 else [data]


_VALUE = Column(0)
