"""Arrow's IPC messages: rows of ours on their way out, and rows that others send, looked at before they are decoded.

The decoder is pyarrow's. What it would do to memory is said in the header of each message: how many rows, how long each
buffer is, to how much a compressed one unpacks. Headers are read here first, with every place checked, and what goes
beyond the bounds is refused before anything is unpacked. What is in the buffers is for `rows` to check.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.feed.incoming import may_swell
from headrace.feed.wire import FlightData
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code

MESSAGE_MAX = 17 << 20
"""The longest message: one row of the biggest size and what is around it."""

UNPACKED_MAX = MESSAGE_MAX
DICTIONARIES_MAX = MESSAGE_MAX
ROWS_MAX = 1 << 20
HEADER_MAX = 256 << 10
COLUMNS_MAX = 64

_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<II")
_U16, _U32, _I32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<q")
_PAIR = struct.Struct("<qq")
_NOT_PACKED = -1


class OutgoingRows:
    """Rows of one schema as FlightData holds them: the header of a message, and its body as it lies in memory."""

    def __init__(self, schema: pa.Schema) -> None:
        self._pieces = _Pieces()
        self._writer = pa.ipc.new_stream(self._pieces, schema)  # type: ignore[arg-type]  # whatever can be written to
        self.schema = bytes(memoryview(schema.serialize())[_PREFIX.size :])
        self.encode(pa.RecordBatch.from_pylist([], schema))  # what is written first has the schema before it

    def encode(self, rows: pa.RecordBatch) -> tuple[bytes, list[Buffer]]:
        """Header and body of a message; nothing of the rows is copied."""
        self._writer.write_batch(rows)
        pieces, self._pieces.written = self._pieces.written, []
        head, size, count = b"", _PREFIX.size, 0
        while len(head) < size:
            head += pieces[count]
            count += 1
            if len(head) == _PREFIX.size:
                size += _PREFIX.unpack(head)[1]
        return head[_PREFIX.size :], list(pieces[count:])


class _Pieces:
    """A file that keeps what is written to it, piece by piece."""

    closed = False

    def __init__(self) -> None:
        self.written: list[memoryview] = []

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """One more piece."""
        self.written.append(memoryview(data))
        return len(data)


class Header(NamedTuple):
    """What the header of an IPC message says: its kind and sizes; of a dictionary which it is, and if it grows."""

    kind: int
    body: int
    rows: int = 0
    unpacked: int = 0
    dictionary: int = 0
    more: bool = False


class IncomingRows:
    """The rows of one upload, message by message. Raises BrokerError(INVALID or LIMIT) for what cannot be taken."""

    def __init__(self, schema: FlightData) -> None:
        """`schema` is the first message."""
        if _inspected(schema).kind != _SCHEMA:
            raise BrokerError(Code.INVALID, "the first message must be a schema")
        self._source = _Source()
        self._source.give(schema.header, memoryview(b""))
        self._dictionaries: dict[int, int] = {}
        self._kept: list[tuple[memoryview, memoryview, bool]] = []
        self.waiting_rows = self.waiting_bytes = 0
        try:
            self._reader = pa.ipc.open_stream(self._source)  # type: ignore[arg-type]  # whatever can be read
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BrokerError(Code.INVALID, f"the schema cannot be read: {_said(error)}") from None
        self.schema = self._reader.schema
        self.may_swell = any(map(may_swell, self.schema.types))
        if len(self.schema) > COLUMNS_MAX:
            raise BrokerError(Code.INVALID, f"{len(self.schema)} columns; rows may have at most {COLUMNS_MAX}")

    def check(self, message: FlightData) -> "Header | None":
        """What a message's header says; None for one without rows."""
        if not message.header:
            return None
        found = _inspected(message)
        if found.kind == _SCHEMA:
            raise BrokerError(Code.INVALID, "a second schema: there is one, in the first message")
        if found.kind == _DICTIONARY_BATCH:
            before = self._dictionaries.get(found.dictionary, 0) if found.more else 0
            self._dictionaries[found.dictionary] = before + found.unpacked
            if sum(self._dictionaries.values()) > DICTIONARIES_MAX:
                raise BrokerError(Code.LIMIT, f"dictionaries of more than {DICTIONARIES_MAX} bytes in one upload")
        return found

    def keep(self, message: FlightData, checked: "Header") -> None:
        """Keep a message that was checked, until its rows are cut off."""
        self._kept.append((message.header, message.body[: checked.body], checked.kind == _RECORD_BATCH))
        self.waiting_rows += checked.rows
        self.waiting_bytes += checked.unpacked

    def cut(self) -> Callable[[], list[pa.RecordBatch]]:
        """Every message kept since the last time: call what is returned for their rows, one cut after another."""
        kept, self._kept = self._kept, []
        self.waiting_rows = self.waiting_bytes = 0
        return lambda: self._decoded(kept)

    def _decoded(self, kept: "list[tuple[memoryview, memoryview, bool]]") -> list[pa.RecordBatch]:
        for header, body, _ in kept:
            self._source.give(header, body)
        try:
            found = [self._reader.read_next_batch() for _, _, has_rows in kept if has_rows]
        except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
            raise BrokerError(Code.INVALID, f"the rows cannot be read: {_said(error)}") from None
        if found and self._source.left and kept[-1][2]:
            raise BrokerError(Code.INVALID, "the rows cannot be read: something is left over behind them")
        return found


class _Source:
    """Messages as a file from which the decoder reads. It is given no copies: what it reads are views."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []

    @property
    def left(self) -> bool:
        """Whether there is something to be read."""
        return bool(self._pieces)

    def give(self, header: memoryview, body: memoryview) -> None:
        """One more message."""
        prefix = memoryview(_PREFIX.pack(_CONTINUATION, len(header)))
        self._pieces += [piece for piece in (prefix, header, body) if len(piece)]

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int) -> memoryview:
        """So many bytes; fewer at the end of a piece."""
        if not self._pieces:
            return memoryview(b"")
        piece = self._pieces[0]
        if size < len(piece):
            self._pieces[0] = piece[size:]
        else:
            del self._pieces[0]
        return piece[:size]


def _inspected(message: FlightData) -> Header:
    """What a message's header says, checked against the bounds and against its body. Raises BrokerError."""
    if len(message.header) > HEADER_MAX:
        raise BrokerError(Code.LIMIT, f"an IPC header of {len(message.header)} bytes; at most {HEADER_MAX} are read")
    try:
        found = _read(message.header, message.body)
    except (struct.error, IndexError):
        raise BrokerError(Code.INVALID, "an IPC header that points out of itself") from None
    if found.body > len(message.body):
        raise BrokerError(Code.INVALID, f"a body of {found.body} bytes, and {len(message.body)} were sent")
    if found.rows > ROWS_MAX:
        raise BrokerError(
            Code.LIMIT, f"{found.rows} rows in one message; at most {ROWS_MAX} are taken: send less at once"
        )
    if found.unpacked > UNPACKED_MAX:
        raise BrokerError(
            Code.LIMIT, f"a message that unpacks to {found.unpacked} bytes; at most {UNPACKED_MAX} are taken"
        )
    return found


def _read(header: memoryview, body: memoryview) -> Header:
    """Raises struct.error or IndexError when a place in the header is outside of it."""
    root = _Table(header, _at(_U32, header, 0))
    kind, size = root.number(1, "<B"), root.number(3, "<q")
    content = root.table(2)
    if size < 0 or content is None or kind not in (_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH):
        raise BrokerError(Code.INVALID, f"an IPC message of type {kind}; schemas, dictionaries and rows are taken")
    if kind == _SCHEMA:
        return Header(kind, size)
    dictionary, more = 0, False
    if kind == _DICTIONARY_BATCH:
        dictionary, more, content = content.number(0, "<q"), bool(content.number(2, "<B")), content.table(1)
        if content is None:
            raise BrokerError(Code.INVALID, "a dictionary without values")
    rows = max(content.number(0, "<q"), *(each for each, _ in content.pairs(1)), 0)
    unpacked = _unpacked(content, body[:size])
    return Header(kind, size, rows, unpacked, dictionary, more)


def _unpacked(content: "_Table", body: memoryview) -> int:
    """How many bytes the buffers of a batch take once it is decoded."""
    packed = content.table(3) is not None
    total = 0
    for place, length in content.pairs(2):
        if place < 0 or length < 0 or place + length > len(body):
            raise BrokerError(Code.INVALID, f"a buffer of {length} bytes at {place} of a body of {len(body)}")
        size = _at(_I64, body, place) if packed and length else length
        if size < 0 and size != _NOT_PACKED:
            raise BrokerError(Code.INVALID, f"a packed buffer of {size} bytes")
        total += length if size == _NOT_PACKED else size
    return total


class _Table:
    """A table of a flatbuffer. Its places are checked as they are followed."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _at(_I32, data, at)
        self._size = _at(_U16, data, self._fields)

    def number(self, field: int, form: str) -> int:
        """A number; 0 when it is left out."""
        place = self._place(field)
        return int(struct.unpack(form, self._bytes(place, struct.calcsize(form)))[0]) if place else 0

    def table(self, field: int) -> "_Table | None":
        """A table inside; None when there is none."""
        place = self._place(field)
        return _Table(self._data, place + _at(_U32, self._data, place)) if place else None

    def pairs(self, field: int) -> Any:
        """The pairs of numbers of a vector of nodes or buffers."""
        place = self._place(field)
        if not place:
            return ()
        start = place + _at(_U32, self._data, place)
        count = _at(_U32, self._data, start)
        return _PAIR.iter_unpack(self._bytes(start + _U32.size, count * _PAIR.size))

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        offset = _at(_U16, self._data, self._fields + slot) if slot + 2 <= self._size else 0
        return self._at + offset if offset else 0

    def _bytes(self, at: int, size: int) -> memoryview:
        if at + size > len(self._data):
            raise IndexError(at)
        return self._data[at : at + size]


def _at(form: struct.Struct, data: memoryview, place: int) -> int:
    if place < 0:
        raise IndexError(place)
    return int(form.unpack_from(data, place)[0])


def _said(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
