"""Fujin's bytes: every command and response, encoded and decoded. Knows nothing of the order in which they may come.

    u8, u16, u32   big-endian
    str            u32 size, bytes
    err            00, or 01 str
    bool           00 or 01

Commands and responses are two lists of codes: the reply to WRITE (3) is 2.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code, HeadraceError
from headrace.model.names import DEAD_PREFIX, NAME_SIZE_MAX, TOPIC_SIZE_MAX

ID_SIZE_MAX = 1024
IDS_MAX = 16384
HEADER_STRINGS_MAX = 256
HEADER_KEY_SIZE_MAX = 0xFFFF
ERROR_SIZE_MAX = 1024
MESSAGE_ID_SIZE = 8

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_DEAD = DEAD_PREFIX.encode()
_TAGGED = struct.Struct(">BI")
_TAGGED_COUNT = struct.Struct(">BII")


class Command(IntEnum):
    """What a client asks; PING and STOP are the broker's."""

    CONNECT_WRITER = 1
    CONNECT_READER = 2
    WRITE = 3
    BEGIN = 4
    COMMIT = 5
    ROLLBACK = 6
    FETCH = 7
    ACK = 8
    NACK = 9
    DISCONNECT = 10
    PING = 11
    STOP = 12


class Response(IntEnum):
    """What a broker answers, or says by itself."""

    CONNECT_READER = 1
    WRITE = 2
    BEGIN = 3
    COMMIT = 4
    ROLLBACK = 5
    MSG = 6
    FETCH = 7
    ACK = 8
    NACK = 9
    DISCONNECT = 10
    PONG = 11
    STOP = 12


class ReaderType(IntEnum):
    """How a reader gets its messages."""

    PUSH = 1
    PULL = 2


WRITER_COMMANDS = frozenset(
    {Command.WRITE, Command.BEGIN, Command.COMMIT, Command.ROLLBACK, Command.DISCONNECT},
)
READER_COMMANDS = frozenset({Command.FETCH, Command.ACK, Command.NACK, Command.DISCONNECT})

DISCONNECT = bytes((Command.DISCONNECT,))
PING = bytes((Command.PING,))
STOP = bytes((Command.STOP,))

StringHeaders = Sequence[tuple[str, bytes]]


class Incomplete(HeadraceError):
    """More bytes are needed; `wanted` is the position up to which they are needed at least."""

    def __init__(self, wanted: int) -> None:
        super().__init__(f"{wanted} bytes wanted")
        self.wanted = wanted


class TooLong(HeadraceError):
    """A size field asks for more than we grant: nothing behind it can be read."""


class Cursor:
    """A place in received bytes that moves over one field after the other.

    Each method raises Incomplete when the field has not arrived yet.
    """

    __slots__ = ("at", "data", "end")

    def __init__(self, data: Buffer, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    def skip(self, size: int) -> int:
        """Move over so many bytes; where they begin."""
        at = self.at
        if at + size > self.end:
            raise Incomplete(at + size)
        self.at = at + size
        return at

    def u8(self) -> int:
        """One byte."""
        return self.data[self.skip(1)]

    def u16(self) -> int:
        """Two bytes."""
        value: int = _U16.unpack_from(self.data, self.skip(2))[0]
        return value

    def u32(self) -> int:
        """Four bytes."""
        value: int = _U32.unpack_from(self.data, self.skip(4))[0]
        return value

    def string(self, what: str, size_max: int) -> bytes:
        """A sized string. Raises TooLong, from its size alone, when it is longer than `size_max`."""
        size = self.u32()
        if size > size_max:
            raise TooLong(f"{what} of {size} bytes; at most {size_max} are allowed")
        at = self.skip(size)
        return bytes(self.data[at : at + size])

    def topic(self) -> bytes:
        """A topic's name. Raises TooLong from its size and, where it matters, whether it begins as dead letters do."""
        size, size_max = self.u32(), TOPIC_SIZE_MAX
        if TOPIC_SIZE_MAX < size <= NAME_SIZE_MAX:
            at = self.skip(len(_DEAD))
            if self.data[at : self.at] == _DEAD:
                size_max = NAME_SIZE_MAX
            self.at = at
        self.at -= 4
        return self.string("topic", size_max)

    def error(self) -> str | None:
        """The text of an error, None where there is none. Raises BrokerError when it is neither."""
        flag = self.u8()
        if flag > 1:
            raise BrokerError(Code.INVALID, f"error flag {flag}")
        return self.string("error", ERROR_SIZE_MAX).decode(errors="replace") if flag else None


class ConnectReader(NamedTuple):
    """What a CONNECT READER asks for, not judged yet."""

    type: int
    auto_commit: int
    topic: bytes


class Write(NamedTuple):
    """What a WRITE carries, not judged yet; `strings` are keys and values in turn."""

    correlation_id: int
    topic: bytes
    strings: list[bytes]
    message: bytes


class Fetch(NamedTuple):
    """What a FETCH asks for."""

    correlation_id: int
    limit: int


def decode_connect_writer(cursor: Cursor) -> int | bytes:
    """The writer id: a number or a string, told apart by whether a writer's command follows it.

    An empty string is the number 0.
    """
    size = cursor.u32()
    if size == 0:
        return 0
    following = cursor.data[cursor.skip(1)]
    cursor.at -= 1
    if following in WRITER_COMMANDS:
        return size
    cursor.at -= 4
    return cursor.string("writer id", ID_SIZE_MAX)


def decode_connect_reader(cursor: Cursor) -> ConnectReader:
    """What a CONNECT READER asks for."""
    return ConnectReader(cursor.u8(), cursor.u8(), cursor.topic())


def size_behind_topic(cursor: Cursor) -> int:
    """The four bytes behind a WRITE's topic, which tell whether it carries headers: see `tells_headers`."""
    cursor.u32()
    cursor.topic()
    return cursor.u32()


def tells_headers(size: int) -> bool:
    """Whether these four bytes begin headers.

    As a message size, what a count of headers stands for would be 64 KiB or more; nothing is taken for no headers.
    """
    return size == 0 or size > 0xFFFF


def decode_write(cursor: Cursor, *, with_headers: bool, headers_max: int, message_max: int) -> Write:
    """What a WRITE carries."""
    correlation_id = cursor.u32()
    topic = cursor.topic()
    strings = _decode_strings(cursor, headers_max) if with_headers else []
    return Write(correlation_id, topic, strings, cursor.string("message", message_max))


def _decode_strings(cursor: Cursor, size_max: int) -> list[bytes]:
    count = cursor.u16()
    if count > HEADER_STRINGS_MAX:
        raise TooLong(f"{count} header strings; at most {HEADER_STRINGS_MAX} are allowed")
    first = cursor.at
    return [cursor.string("headers", size_max - (cursor.at - first)) for _ in range(count)]


def decode_correlation_id(cursor: Cursor) -> int:
    """All there is to BEGIN, COMMIT and ROLLBACK."""
    return cursor.u32()


def decode_fetch(cursor: Cursor) -> Fetch:
    """What a FETCH asks for."""
    return Fetch(cursor.u32(), cursor.u32())


def encode_connect_writer(writer_id: int | str = 0) -> bytes:
    """CONNECT WRITER, with a numeric id as the document has it or a string as its client has it."""
    if isinstance(writer_id, int):
        return _TAGGED.pack(Command.CONNECT_WRITER, writer_id)
    return bytes((Command.CONNECT_WRITER,)) + sized(writer_id.encode())


def encode_connect_reader(kind: ReaderType, auto_commit: bool, topic: str) -> bytes:
    """CONNECT READER."""
    return bytes((Command.CONNECT_READER, kind, auto_commit)) + sized(topic.encode())


def encode_write(correlation_id: int, topic: str, message: bytes, headers: StringHeaders | None = ()) -> bytes:
    """WRITE; None for the form without headers."""
    head = _TAGGED.pack(Command.WRITE, correlation_id) + sized(topic.encode())
    if headers is None:
        return head + sized(message)
    strings = b"".join(sized(key.encode()) + sized(value) for key, value in headers)
    return head + _U16.pack(2 * len(headers)) + strings + sized(message)


def encode_command(command: Command, correlation_id: int) -> bytes:
    """BEGIN, COMMIT and ROLLBACK."""
    return _TAGGED.pack(command, correlation_id)


def encode_fetch(correlation_id: int, count: int) -> bytes:
    """FETCH."""
    return _TAGGED_COUNT.pack(Command.FETCH, correlation_id, count)


def encode_settle(command: Command, correlation_id: int, ids: Sequence[bytes]) -> bytes:
    """ACK and NACK."""
    head = _TAGGED_COUNT.pack(command, correlation_id, len(ids))
    if ids and set(map(len, ids)) == {MESSAGE_ID_SIZE}:
        size = _U32.pack(MESSAGE_ID_SIZE)
        return head + size + size.join(ids)
    return head + b"".join(map(sized, ids))


def encode_error(error: str | None) -> bytes:
    """An error or none; never an empty text, and an over-long one is cut between characters."""
    if error is None:
        return b"\0"
    text = error.encode()[:ERROR_SIZE_MAX].decode(errors="ignore").encode()
    return b"\1" + sized(text or b"error")


def encode_connected(error: str | None = None) -> bytes:
    """The reply to CONNECT READER."""
    return bytes((Response.CONNECT_READER,)) + encode_error(error)


def encode_reply(response: Response, correlation_id: int, error: str | None = None) -> bytes:
    """The reply to WRITE, BEGIN, COMMIT and ROLLBACK; with an error also the one to FETCH, ACK and NACK."""
    return _TAGGED.pack(response, correlation_id) + encode_error(error)


def encode_fetched(correlation_id: int, count: int) -> bytes:
    """The head of the reply to a FETCH, with `count` messages to follow."""
    return _TAGGED.pack(Response.FETCH, correlation_id) + b"\0" + _U32.pack(count)


def encode_message(message_id: bytes | None, value: bytes) -> bytes:
    """A message as FETCH replies and, behind their code, MSGs have it; without an id where auto commit is on."""
    return sized(value) if message_id is None else sized(message_id) + sized(value)


def encode_results(
    response: Response, correlation_id: int, results: Iterable[tuple[bytes, str | None]], *, reference: bool
) -> bytes:
    """The reply to ACK and NACK: each id with its error, None where it was settled."""
    entries = [sized(key) + (encode_error(error) if reference else bytes((error is None,))) for key, error in results]
    return _TAGGED.pack(response, correlation_id) + b"\0" + _U32.pack(len(entries)) + b"".join(entries)


def sized(data: bytes) -> bytes:
    """A string."""
    return _U32.pack(len(data)) + data
