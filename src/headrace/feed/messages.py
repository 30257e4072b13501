"""What the broker and its feed process say to each other over their socket, as values and as lines of JSON.

Both ends read this file; it knows no socket and no process. A line is one message and ends with a newline. The feed
asks (`Request`), numbering its questions; the broker answers each with a `Reply` of the same number, in any order.
Beside that the broker says `Open` once, when the log may be read, `Keys` when they change, and `Ping` now and then; the
feed says `Listening` once, and `Pong`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from headrace.config import CertificateEntry, KeyEntry
from headrace.model.errors import HeadraceError

LINE_SIZE_MAX = 64 << 20
NAME_SIZE_MAX = 256
OFFSET_MAX = (1 << 63) - 1

Name = Annotated[str, Meta(min_length=1, max_length=NAME_SIZE_MAX)]
Number = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]


class BadLine(HeadraceError):
    """A line that is no message, or a message too long to be one."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a staged file holds: how many rows, its size, and the crc32 of its bytes. `file` is its name on disk."""

    writer: Name
    batch: Number
    part: Annotated[str, Meta(max_length=NAME_SIZE_MAX)]
    file: Annotated[str, Meta(max_length=NAME_SIZE_MAX)]
    rows: Number
    bytes: Number
    crc: Number


class Open(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="open"):
    """The log is recovered: serve it. `log` and `staging` are directories, `cert`, `key` and `client_ca` files.

    The last four are what each owner may stage, and what of the disk is not for staging; 0 is no bound.
    """

    log: str
    staging: str
    host: str
    port: int
    cert: str = ""
    key: str = ""
    client_ca: str = ""
    api_keys: tuple[str | KeyEntry, ...] = ()
    certificates: tuple[CertificateEntry, ...] = ()
    allow_unauthenticated: bool = False
    uploads_max: int = 0
    staged_files_max: int = 0
    staged_bytes_max: int = 0
    staging_free_min: int = 0

    def __repr__(self) -> str:
        return f"Open({self.host}:{self.port}, {len(self.api_keys)} keys)"


class Keys(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="keys"):
    """Take these API keys and certificates from now on."""

    api_keys: tuple[str | KeyEntry, ...]
    certificates: tuple[CertificateEntry, ...] = ()

    def __repr__(self) -> str:
        return f"Keys({len(self.api_keys)})"


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="reply"):
    """The answer to a request: `ok`, or the code and the detail of a refusal."""

    id: int
    ok: Any = None
    code: str = ""
    detail: str = ""


class Listening(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="listening"):
    """The feed serves at this port, or cannot, and why; then it ends."""

    port: int = 0
    failure: str = ""


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="ping"):
    """Are you there? Answered with a `Pong` at once; a feed that does not is started anew."""


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="pong"):
    """I am."""


class Commit(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="commit"):
    """Make everything staged visible. `publish` and `subscribe` are the owner's scopes: where it may write, and whose
    dead letters it may mark as redriven.

    Answered with {"replayed": bool, "rows": int} once it is durable.
    """

    id: int
    owner: str
    subscribe: tuple[str, ...]
    writer: Name
    batch: Number
    staged: tuple[Receipt, ...]
    publish: tuple[str, ...] = ("*",)


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="abort"):
    """Throw away what was staged and not committed. Answered with {}."""

    id: int
    owner: str
    staged: tuple[Receipt, ...]


class Committed(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="committed"):
    """Which batch did this writer commit last? Answered with {"batch": int or null}."""

    id: int
    owner: str
    writer: Name


class Report(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="report"):
    """This reader of these topics (null: of all) needs nothing below the offset any more. Answered with {}.

    `subscribe` is the owner's scope: who may read nothing reports nothing.
    """

    id: int
    owner: str
    subscribe: tuple[str, ...]
    reader: Name
    topics: tuple[str, ...] | None
    offset: Number


class Subscriptions(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="subscriptions"):
    """Which subscriptions are there? Answered with [{"id", "topic", "name", "owner"}]."""

    id: int


Request = Commit | Abort | Committed | Report | Subscriptions
FromBroker = Open | Keys | Ping | Reply
FromFeed = Listening | Pong | Request

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_from_broker: msgspec.json.Decoder[FromBroker] = msgspec.json.Decoder(FromBroker)
_from_feed: msgspec.json.Decoder[FromFeed] = msgspec.json.Decoder(FromFeed)


def encode(message: FromBroker | FromFeed) -> bytes:
    """The message as a line."""
    return _encoder.encode(message) + b"\n"


def from_broker(line: bytes) -> FromBroker:
    """What the broker said. Raises BadLine."""
    return _decoded(_from_broker, line)


def from_feed(line: bytes) -> FromFeed:
    """What the feed said. Raises BadLine."""
    return _decoded(_from_feed, line)


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLine(str(error)) from error


class Lines:
    """Bytes in, whole lines out."""

    def __init__(self, size_max: int = LINE_SIZE_MAX) -> None:
        self._size_max = size_max
        self._pending: list[bytes] = []
        self._size = 0

    def receive(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now. Raises BadLine when one is longer than allowed."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join([*self._pending, line])
            self._pending, self._size = [], 0
        if rest:
            self._pending.append(rest)
            self._size += len(rest)
        if self._size > self._size_max:
            raise BadLine(f"a line of more than {self._size_max} bytes")
