"""What a datagram says before it is decrypted: whom it is for, and whether it asks for a connection (RFC 9000, 17)."""

from dataclasses import dataclass

CONNECTION_ID_SIZE = 8
INITIAL_SIZE_MIN = 1200
VERSION_1 = 1
LONG_HEADER = 0x80

_INITIAL = 0
_ID_SIZE_MAX = 20
_TOKEN_SIZE_MAX = 1024


@dataclass(frozen=True, slots=True)
class Hello:
    """The head of a packet that may begin a connection; `token` is None for a packet that may not.

    `end` is where the packet ends, 0 where that cannot be told.
    """

    version: int
    destination: bytes
    source: bytes
    token: bytes | None
    end: int = 0


def destination(data: bytes) -> bytes:
    """The connection id a datagram is for; empty when it has none."""
    if not data:
        return b""
    if not data[0] & LONG_HEADER:
        return data[1 : 1 + CONNECTION_ID_SIZE]
    size = data[5] if len(data) > 5 else 0
    return data[6 : 6 + size]


def hello(data: bytes) -> Hello | None:
    """The long header a datagram begins with; None when it has none that makes sense."""
    if len(data) < 7 or not data[0] & LONG_HEADER:
        return None
    version = int.from_bytes(data[1:5], "big")
    destination_end = 6 + data[5]
    if data[5] > _ID_SIZE_MAX or len(data) <= destination_end:
        return None
    source_start = destination_end + 1
    source_end = source_start + data[destination_end]
    if data[destination_end] > _ID_SIZE_MAX or len(data) < source_end:
        return None
    ids = data[6:destination_end], data[source_start:source_end]
    if version != VERSION_1 or (data[0] >> 4) & 3 != _INITIAL:
        return Hello(version, *ids, None)
    token_start, token_size = _integer(data, source_end)
    size_at = token_start + token_size
    if token_size > _TOKEN_SIZE_MAX or size_at >= len(data):
        return Hello(version, *ids, None)
    start, size = _integer(data, size_at)
    end = start + size if start + size <= len(data) else 0
    return Hello(version, *ids, data[token_start:size_at], end)


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Where a variable-length integer ends, and what it is; of a cut one, what is there."""
    first = data[at] if at < len(data) else 0
    end = at + (1 << (first >> 6))
    return end, int.from_bytes(data[at:end], "big") & ((1 << (8 * (end - at) - 2)) - 1)
