"""What a datagram says before it is decrypted: whom it is for, and whether it asks for a connection (RFC 9000, 17)."""

from dataclasses import dataclass

from headrace.quic.connection import CONNECTION_ID_SIZE

INITIAL_SIZE_MIN = 1200
VERSION_1 = 1

_LONG = 0x80
_INITIAL = 0
_ID_SIZE_MAX = 20


@dataclass(frozen=True, slots=True)
class Hello:
    """The head of a packet that may begin a connection; `token` is None for a packet that may not."""

    version: int
    destination: bytes
    source: bytes
    token: bytes | None


def destination(data: bytes) -> bytes:
    """The connection id a datagram is for; empty when it has none."""
    if not data:
        return b""
    if not data[0] & _LONG:
        return data[1 : 1 + CONNECTION_ID_SIZE]
    size = data[5] if len(data) > 5 else 0
    return data[6 : 6 + size]


def hello(data: bytes) -> Hello | None:
    """The long header a datagram begins with; None when it has none that makes sense."""
    if len(data) < 7 or not data[0] & _LONG:
        return None
    version = int.from_bytes(data[1:5], "big")
    destination_end = 6 + data[5]
    if data[5] > _ID_SIZE_MAX or len(data) <= destination_end:
        return None
    source_start = destination_end + 1
    source_end = source_start + data[destination_end]
    if data[destination_end] > _ID_SIZE_MAX or len(data) < source_end:
        return None
    token = None
    if version == VERSION_1 and (data[0] >> 4) & 3 == _INITIAL:
        token = _prefixed(data[source_end : source_end + 1024])
    return Hello(version, data[6:destination_end], data[source_start:source_end], token)


def _prefixed(data: bytes) -> bytes | None:
    """The bytes announced by a variable-length integer; None when they are not all there."""
    if not data:
        return None
    width = 1 << (data[0] >> 6)
    size = int.from_bytes(data[:width], "big") & ((1 << (8 * width - 2)) - 1)
    found = data[width : width + size]
    return found if len(found) == size else None
