"""The messages of the Flight protocol as the bytes they travel as: protocol buffers, read and written by hand.

By hand, because what matters here is rows of many MiB: what is read are views of the bytes that came, and rows are
written as they lie in memory. Knows fields and nothing of what they are good for; whatever a stranger sends is either a
message or `BadMessage`, at a price that grows with its size alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.model.batch import Buffer
from headrace.model.errors import HeadraceError

SERVICE = "arrow.flight.protocol.FlightService"
PATH_TYPE, COMMAND_TYPE = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_SIZE_MAX = 10
_NUMBER_MASK = (1 << 64) - 1
_BODY_FIELD = 1000
_UNKNOWN_TOTAL = -1


class BadMessage(HeadraceError):
    """Bytes that are no message of the protocol."""


class Descriptor(NamedTuple):
    """What is asked for: the path of a topic, or a command. `encoded` is how the caller wrote it."""

    type: int = 0
    command: bytes = b""
    path: tuple[str, ...] = ()
    encoded: bytes = b""

    @classmethod
    def decode(cls, data: Buffer) -> "Descriptor":
        """The descriptor in a message. Raises BadMessage."""
        kind, command, path = 0, b"", []
        for number, value in fields(data):
            if number == 1:
                kind = _number(value)
            elif number == 2:
                command = bytes(_bytes(value))
            elif number == 3:
                path.append(_text(value))
        return cls(kind, command, tuple(path), bytes(data))


class FlightData(NamedTuple):
    """One message of a stream of rows: the header of an IPC message and its body, views of what was received."""

    descriptor: Descriptor | None
    header: memoryview
    body: memoryview

    @classmethod
    def decode(cls, data: Buffer) -> "FlightData":
        """The message in these bytes, which must not change while it is used. Raises BadMessage."""
        descriptor, header, body = None, memoryview(b""), memoryview(b"")
        for number, value in fields(data):
            if number == 1:
                descriptor = Descriptor.decode(_bytes(value))
            elif number == 2:
                header = _bytes(value)
            elif number == _BODY_FIELD:
                body = _bytes(value)
        return cls(descriptor, header, body)


def flight_data(header: Buffer, metadata: bytes, body: Sequence[Buffer]) -> list[Buffer]:
    """A message of a stream of rows in pieces, those of the body as they lie in memory."""
    head = field(2, header) + (field(3, metadata) if metadata else b"")
    return [head + _tag(_BODY_FIELD, _BYTES) + _varint(sum(map(len, body))), *body] if body else [head]


class Action(NamedTuple):
    """A question: its type and its body."""

    type: str
    body: bytes

    @classmethod
    def decode(cls, data: Buffer) -> "Action":
        """The question in these bytes. Raises BadMessage."""
        kind, body = "", b""
        for number, value in fields(data):
            if number == 1:
                kind = _text(value)
            elif number == 2:
                body = bytes(_bytes(value))
        return cls(kind, body)


def ticket_of(data: Buffer) -> bytes:
    """What is in a Ticket. Raises BadMessage."""
    ticket = b""
    for number, value in fields(data):
        if number == 1:
            ticket = bytes(_bytes(value))
    return ticket


def action_type(name: str, description: str) -> bytes:
    """An ActionType."""
    return field(1, name.encode()) + field(2, description.encode())


def flight_info(schema: Buffer, descriptor: bytes, tickets: Sequence[bytes]) -> bytes:
    """A FlightInfo with one endpoint a ticket, all of them here, of an unknown number of rows and bytes."""
    endpoints = b"".join(field(3, field(1, field(1, ticket))) for ticket in tickets)
    total = _varint(_UNKNOWN_TOTAL & _NUMBER_MASK)
    totals = _tag(4, _VARINT) + total + _tag(5, _VARINT) + total
    return field(1, schema) + field(2, descriptor) + endpoints + totals


def path_descriptor(name: str) -> bytes:
    """A descriptor that is the path of one topic."""
    return _tag(1, _VARINT) + _varint(PATH_TYPE) + field(3, name.encode())


def field(number: int, value: Buffer) -> bytes:
    """One field of bytes. Result, PutResult and SchemaResult are `field(1, …)` and no more."""
    return b"".join((_tag(number, _BYTES), _varint(len(value)), value))


def fields(data: Buffer) -> Iterator[tuple[int, int | memoryview]]:
    """Numbers and values of the fields of a message; those of fixed width are passed over. Raises BadMessage."""
    view = memoryview(data).cast("B")
    at, size = 0, len(view)
    while at < size:
        tag, at = _read_varint(view, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise BadMessage(f"field {number} at byte {at}: there is none of that number")
        if kind == _VARINT:
            value, at = _read_varint(view, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _read_varint(view, at)
        elif kind in _FIXED_SIZES:
            length = _FIXED_SIZES[kind]
        else:
            raise BadMessage(f"field {number} at byte {at}: wire type {kind} is not used here")
        if length > size - at:
            raise BadMessage(f"field {number} at byte {at}: {length} bytes, and {size - at} are there")
        if kind == _BYTES:
            yield number, view[at : at + length]
        at += length


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    found = 0
    for place, byte in enumerate(view[at : at + _VARINT_SIZE_MAX]):
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return found & _NUMBER_MASK, at + place + 1
    raise BadMessage(f"a number at byte {at} does not end")


def _varint(number: int) -> bytes:
    pieces = bytearray()
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise BadMessage("bytes where a number should be")
    return value


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise BadMessage("a number where bytes should be")
    return value


def _text(value: int | memoryview) -> str:
    try:
        return str(_bytes(value), "utf-8")
    except UnicodeDecodeError:
        raise BadMessage("text that is not UTF-8") from None
