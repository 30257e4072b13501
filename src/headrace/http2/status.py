"""How gRPC speaks in header lists: statuses, metadata, deadlines, methods. Knows neither streams nor sockets."""

import base64
import binascii
from collections.abc import Mapping
from enum import IntEnum

from headrace.http2.headers import Fields, Request, literals
from headrace.model.errors import BrokerError, Code, HeadraceError

Metadata = Mapping[str, str | bytes]

UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
ENCODINGS = b"identity,gzip"
DETAILS_MAX = 4096

_OURS = frozenset({"te", "content-type", "content-length", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})
_PLAIN = frozenset(range(0x20, 0x7F)) - {0x25}


class Status(IntEnum):
    """How a call ended, by gRPC's numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


STATUS = {
    Code.INVALID: Status.INVALID_ARGUMENT,
    Code.UNAUTHENTICATED: Status.UNAUTHENTICATED,
    Code.FORBIDDEN: Status.PERMISSION_DENIED,
    Code.UNKNOWN: Status.NOT_FOUND,
    Code.VERSION: Status.FAILED_PRECONDITION,
    Code.LIMIT: Status.RESOURCE_EXHAUSTED,
    Code.STORAGE: Status.UNAVAILABLE,
    Code.DRAINING: Status.UNAVAILABLE,
}
"""Our reasons to refuse a request, as gRPC says them."""


class GrpcError(HeadraceError):
    """A call that ends with another status than OK."""

    def __init__(self, status: Status, details: str = "", trailing_metadata: Metadata | None = None) -> None:
        super().__init__(details)
        self.status = status
        self.details = details
        self.trailing_metadata = trailing_metadata or {}

    @classmethod
    def of(cls, error: BrokerError) -> "GrpcError":
        """A refused request as gRPC says it."""
        return cls(STATUS[error.code], error.detail)


class Asked:
    """What the headers of a call say."""

    __slots__ = ("encoding", "metadata", "method", "timeout_s")

    def __init__(self, request: Request) -> None:
        """Raises GrpcError for metadata that is none."""
        self.method = request.path.decode("latin-1")
        self.timeout_s: float | None = None
        self.encoding = "identity"
        self.metadata: dict[str, str | bytes] = {}
        for raw_name, raw_value in request.fields:
            name = raw_name.decode("ascii")
            if name.endswith("-bin"):
                self.metadata[name] = _unpacked(name, raw_value)
            elif name not in _OURS:
                value = raw_value.decode("latin-1")
                known = self.metadata.get(name)
                self.metadata[name] = value if known is None else f"{known!s},{value}"
            elif name == "grpc-timeout":
                self.timeout_s = timeout_of(raw_value.decode("latin-1"))
            elif name == "grpc-encoding":
                self.encoding = raw_value.decode("latin-1")


def is_grpc(request: Request) -> bool:
    """Whether a request is a gRPC call at all."""
    kind = next((value for name, value in request.fields if name == b"content-type"), b"")
    return request.method == b"POST" and (
        kind == b"application/grpc" or kind.startswith((b"application/grpc+", b"application/grpc;"))
    )


def timeout_of(text: str) -> float:
    """Seconds in a grpc-timeout.

    Raises GrpcError.
    """
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS_S or not number.isascii() or not number.isdigit() or len(number) > 8:
        raise GrpcError(Status.INTERNAL, f"bad grpc-timeout {text[:20]!r}")
    return int(number) * UNITS_S[unit]


def fields_of(metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """Metadata as header fields; a name that ends in -bin has bytes, any other text.

    Raises ValueError for what no header can carry.
    """
    fields = []
    for name, value in metadata.items():
        if name.endswith("-bin"):
            raw = value.encode() if isinstance(value, str) else value
            fields.append((name.encode("ascii"), base64.b64encode(raw).rstrip(b"=")))
        else:
            text = value.encode("ascii") if isinstance(value, str) else value
            if any(byte < 0x20 or byte > 0x7E for byte in text):
                raise ValueError(f"the value of {name} is not printable ASCII; a name ending in -bin may have any")
            fields.append((name.encode("ascii"), text))
    return fields


def trailer_fields(status: Status, details: str, metadata: Metadata) -> Fields:
    """What ends a call."""
    fields = [(b"grpc-status", str(int(status)).encode())]
    if details:
        fields.append((b"grpc-message", percent_encoded(details)))
    return (*fields, *fields_of(metadata))


def percent_encoded(text: str) -> bytes:
    """A status message as headers carry it."""
    data = text.encode(errors="replace")[:DETAILS_MAX]
    if _PLAIN.issuperset(data):
        return data
    return b"".join(bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in data)


def _unpacked(name: str, value: bytes) -> bytes:
    """The bytes in a -bin header; of several the last."""
    last = value.rpartition(b",")[2].strip()
    try:
        return base64.b64decode(last + b"=" * (-len(last) % 4), validate=True)
    except binascii.Error:
        raise GrpcError(Status.INTERNAL, f"{name} is not base64") from None


CONTENT_TYPE = (b"content-type", b"application/grpc")
BEGIN = b"\x88" + literals([CONTENT_TYPE])
"""The header block of an answer without metadata of its own: `:status: 200` and the type."""
END_OK = literals([(b"grpc-status", b"0")])
"""The trailers of a call that went well."""
