"""The canonical batch: messages of one topic, laid out once and read by every protocol, the log and Arrow.

A batch is one *part* of a log record. Little-endian, every section padded with zeros to 8 bytes:

    0  u32 size           the whole part, header and padding included
    4  u8  kind           PART_BATCH
    5  u8  protocol       the door it came in by (Protocol)
    6  u8  qos            0 at most once, 1 at least once
    7  u8  columns        bit set of the optional columns that follow the values
    8  u32 count          messages in the batch, at least 1
    12 u16 topic_len
    14 u16 max_attempts   0: the topic's setting; ATTEMPTS_UNLIMITED: retried for ever
    16 i64 timestamp_us   when the broker received it
    24 i64 due_us         not delivered before; 0: at once
    32 i64 expires_us     not delivered from then on; 0: never
    40 u32 values_size
    44 u32 zero
    48     topic, then u32 ends[count + 1] beginning with 0, then the values back to back,
           then for each bit of `columns`, lowest first: u32 ends[count + 1], bytes back to back

`ends` and the bytes after it are exactly an Arrow binary column, so nobody has to look at single messages to read one.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from itertools import accumulate

PART_BATCH = 1
HEADER = struct.Struct("<IBBBBIHHqqqII")
HEADER_SIZE = HEADER.size
ATTEMPTS_UNLIMITED = 0xFFFF
TIME_MAX_US = 1 << 62
"""No time in a batch is later: two of them can be added without leaving 64 bits."""

assert HEADER_SIZE == 48

Buffer = bytes | bytearray | memoryview


class Protocol(IntEnum):
    """The door a message came in by."""

    INTERNAL = 0
    BLIPMQ = 1
    SSPQ = 2
    FUJIN = 3
    GRPCQ = 4
    SPARK = 5


class Column(IntFlag):
    """Optional columns of a batch, in the order in which they are stored."""

    KEY = 1
    HEADERS = 2
    MESSAGE_ID = 4


Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Message:
    """One message taken out of its batch: for browsing, tracing and dead-lettering, never on the hot path."""

    offset: int
    topic: str
    value: bytes
    timestamp_us: int
    qos: int = 1
    protocol: Protocol = Protocol.INTERNAL
    key: bytes | None = None
    headers: Headers = ()
    message_id: str | None = None


class Batch:
    """A stored batch: where its part begins in a buffer, and the header fields delivery decides by.

    `buffer[start:start + size]` is the part; `base` is the offset of its first message. `fault` is empty, or why nobody
    is to be given these messages: what was stored is not what a batch may be, see `model.mending`.
    """

    __slots__ = (
        "base", "buffer", "columns", "count", "due_us", "expires_us", "fault", "max_attempts", "protocol", "qos",
        "size", "start", "timestamp_us", "topic", "topic_size", "values_size",
    )  # fmt: skip

    count: int
    values_size: int

    def __init__(self, buffer: Buffer, start: int, base: int, topic: str | None = None, fault: str = "") -> None:
        (
            self.size, kind, protocol, self.qos, self.columns, self.count, self.topic_size,
            self.max_attempts, self.timestamp_us, self.due_us, self.expires_us, self.values_size, _,
        ) = HEADER.unpack_from(buffer, start)  # fmt: skip
        assert kind == PART_BATCH
        self.protocol: int = protocol
        self.buffer = buffer
        self.start = start
        self.base = base
        self.fault = fault
        if topic is None:
            at = start + HEADER_SIZE
            topic = bytes(buffer[at : at + self.topic_size]).decode(errors="replace")
        self.topic = topic

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.base + self.count

    @property
    def ends_start(self) -> int:
        """Where in the buffer the array of end offsets begins."""
        return self.start + HEADER_SIZE + padded(self.topic_size)

    @property
    def values_start(self) -> int:
        """Where in the buffer the values begin."""
        return self.ends_start + padded(4 * (self.count + 1))

    def value(self, index: int) -> bytes:
        """The value of one message."""
        return self._cell(self.ends_start, index)

    def value_size(self, index: int) -> int:
        """How many bytes the value of one message has."""
        first, last = struct.unpack_from("<II", self.buffer, self.ends_start + 4 * index)
        return int(last - first)

    def value_part(self, index: int, start: int, size: int) -> bytes:
        """Up to so many bytes of the value of one message, from byte `start` of it on."""
        return self._cell(self.ends_start, index, start, size)

    def message(self, index: int, value_max: int | None = None) -> Message:
        """One message with everything known about it, or with only so many bytes of its value."""
        columns = self._column_starts()
        key = headers = message_id = None
        if Column.KEY in columns:
            key = self._cell(columns[Column.KEY], index)
        if Column.HEADERS in columns:
            headers = decode_headers(self._cell(columns[Column.HEADERS], index))
        if Column.MESSAGE_ID in columns:
            message_id = self._cell(columns[Column.MESSAGE_ID], index).decode()
        return Message(
            offset=self.base + index,
            topic=self.topic,
            value=self._cell(self.ends_start, index, 0, value_max),
            timestamp_us=self.timestamp_us,
            qos=self.qos,
            protocol=Protocol(self.protocol),
            key=key or None,
            headers=headers or (),
            message_id=message_id or None,
        )

    def rows_containing(self, column: Column, needle: bytes) -> Iterator[int]:
        """The messages that have these bytes somewhere in a column, in order; the others cost nothing each."""
        ends_start = self._column_starts().get(column)
        if ends_start is None or not needle:
            return
        view = memoryview(self.buffer)
        ends = view[ends_start : ends_start + 4 * (self.count + 1)].cast("I")
        data = ends_start + padded(4 * (self.count + 1))
        cells = bytes(view[data : data + ends[self.count]])
        at = cells.find(needle)
        while at >= 0:
            index = bisect_right(ends, at) - 1
            if at + len(needle) <= ends[index + 1]:
                yield index
            at = cells.find(needle, ends[index + 1])

    def column_start(self, column: Column) -> int | None:
        """Where the ends of an optional column begin; None when there is no such column."""
        return self._column_starts().get(column)

    def only(self, indexes: Sequence[int]) -> bytes:
        """The part with only these of the messages. For the few batches that something is left out of."""
        starts = (self.ends_start, *self._column_starts().values())
        columns = [[self._cell(start, index) for index in indexes] for start in starts]
        at = self.start + HEADER_SIZE
        name = bytes(self.buffer[at : at + self.topic_size])
        body = b"".join((_padded(name), *map(_column, columns)))
        header = HEADER.pack(
            HEADER_SIZE + len(body), PART_BATCH, self.protocol, self.qos, self.columns, len(indexes), len(name),
            self.max_attempts, self.timestamp_us, self.due_us, self.expires_us, sum(map(len, columns[0])), 0,
        )  # fmt: skip
        return header + body

    def _cell(self, ends_start: int, index: int, start: int = 0, size: int | None = None) -> bytes:
        first, last = struct.unpack_from("<II", self.buffer, ends_start + 4 * index)
        first = min(first + start, last)
        if size is not None:
            last = min(last, first + size)
        data = ends_start + padded(4 * (self.count + 1))
        return bytes(self.buffer[data + first : data + last])

    def _column_starts(self) -> dict[Column, int]:
        """Where the ends of each optional column begin."""
        starts: dict[Column, int] = {}
        ends_size = padded(4 * (self.count + 1))
        at = self.values_start + padded(self.values_size)
        for column in Column:
            if self.columns & column:
                starts[column] = at
                (size,) = struct.unpack_from("<I", self.buffer, at + 4 * self.count)
                at += ends_size + padded(size)
        return starts


def padded(size: int) -> int:
    """The size rounded up to the next multiple of 8."""
    return (size + 7) & ~7


def build_batch(
    topic: str,
    values: Sequence[bytes],
    *,
    timestamp_us: int,
    qos: int = 1,
    protocol: Protocol = Protocol.INTERNAL,
    max_attempts: int = 0,
    due_us: int = 0,
    expires_us: int = 0,
    keys: Sequence[bytes] | None = None,
    headers: Sequence[Headers] | None = None,
    message_ids: Sequence[str] | None = None,
) -> bytes:
    """The part for these messages. The plain way; doors with a hot path build the same bytes in a kernel."""
    columns = Column(0)
    extra: list[bytes] = []
    if keys is not None:
        columns |= Column.KEY
        extra.append(_column(keys))
    if headers is not None:
        columns |= Column.HEADERS
        extra.append(_column([encode_headers(h) for h in headers]))
    if message_ids is not None:
        columns |= Column.MESSAGE_ID
        extra.append(_column([i.encode() for i in message_ids]))
    name = topic.encode()
    body = b"".join((_padded(name), _column(values), *extra))
    header = HEADER.pack(
        HEADER_SIZE + len(body), PART_BATCH, protocol, qos, columns, len(values), len(name),
        max_attempts, timestamp_us, due_us, expires_us, sum(map(len, values)), 0,
    )  # fmt: skip
    return header + body


def encode_headers(headers: Headers) -> bytes:
    """Headers of one message as one cell: u16 key size, key, u32 value size, value, repeated."""
    out = bytearray()
    for key, value in headers:
        name = key.encode()
        out += struct.pack("<H", len(name)) + name + struct.pack("<I", len(value)) + value
    return bytes(out)


def decode_headers(cell: bytes) -> list[tuple[str, bytes]]:
    """The inverse of encode_headers."""
    headers = []
    at = 0
    while at < len(cell):
        (size,) = struct.unpack_from("<H", cell, at)
        key = cell[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from("<I", cell, at)
        headers.append((key, cell[at + 4 : at + 4 + size]))
        at += 4 + size
    return headers


def _column(cells: Sequence[bytes]) -> bytes:
    ends = array("I", accumulate(map(len, cells), initial=0))
    return _padded(ends.tobytes()) + _padded(b"".join(cells))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def iter_messages(batches: Iterable[Batch]) -> Iterable[Message]:
    """Every message of the batches, one by one."""
    for batch in batches:
        for index in range(batch.count):
            yield batch.message(index)
