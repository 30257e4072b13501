"""Length-prefixed messages in the body of a call: judged by their prefix when it is their turn, cut out when taken.

What is kept is the body's own bytes: no object for each message before somebody asks for it.
"""

import zlib
from struct import Struct

from headrace.http2.status import GrpcError, Status

PREFIX = Struct(">BI")
GZIP = 31
"""zlib's word for a stream with gzip's header."""


class Incoming:
    """The request messages of a call. `wanted` is the size of the next one, prefix and all; 0 while it is not known."""

    __slots__ = ("_body", "_compressed", "_failed", "_flag", "_whole", "message_max", "wanted")

    def __init__(self, message_max: int, encoding: str = "identity") -> None:
        self.message_max = message_max
        self.wanted = 0
        self._compressed = encoding == "gzip"
        self._flag = 0
        self._body = bytearray()
        self._whole: bytes | None = None
        self._failed: GrpcError | None = None

    @property
    def complete(self) -> bool:
        """Whether there is a message to take, or the reason why there will be none."""
        body = bool(self.wanted and len(self._body) >= self.wanted)
        return body or self._whole is not None or self._failed is not None

    @property
    def held(self) -> int:
        """Bytes of the body that are here."""
        return len(self._body) if self._whole is None else self.wanted

    @property
    def unfinished(self) -> bool:
        """Whether the next message has begun and its end is not here."""
        return bool(self._body) and not self.complete

    def feed(self, data: memoryview) -> None:
        """Take in a piece of the body.

        Raises GrpcError for a message too large or of a kind nobody announced.
        """
        if not self._body and self._whole is None and len(data) >= PREFIX.size:
            self._judge(*PREFIX.unpack_from(data))
            if len(data) == self.wanted:
                self._whole = bytes(data[PREFIX.size :])
                return
        self._body += data
        self._look()

    def take(self) -> tuple[bytes, int]:
        """The next message, which must be `complete`, and how many bytes of the body it was.

        Raises GrpcError for one that unpacks to more than is allowed, or not at all, or that `feed` would not take.
        """
        if self._failed is not None:
            raise self._failed
        size, flag = self.wanted, self._flag
        if self._whole is not None:
            message, self._whole = self._whole, None
        else:
            with memoryview(self._body) as body:
                message = bytes(body[PREFIX.size : size])
            del self._body[:size]
        self.wanted = 0
        if flag:
            message = self._unpacked(message)
        try:
            self._look()
        except GrpcError as error:
            self._failed = error
        return message, size

    def _look(self) -> None:
        if not self.wanted and len(self._body) >= PREFIX.size:
            self._judge(*PREFIX.unpack_from(self._body))

    def _judge(self, flag: int, size: int) -> None:
        if flag > 1 or (flag and not self._compressed):
            raise GrpcError(Status.INTERNAL, "a compressed message, and no grpc-encoding said so")
        if size > self.message_max:
            raise too_large(f"{size}", self.message_max)
        self._flag, self.wanted = flag, size + PREFIX.size

    def _unpacked(self, message: bytes) -> bytes:
        unpacker = zlib.decompressobj(GZIP)
        try:
            data = unpacker.decompress(message, self.message_max + 1)
        except zlib.error as error:
            raise GrpcError(Status.INTERNAL, f"a message that is not gzip: {error}") from None
        if len(data) > self.message_max:
            raise too_large("unpacked", self.message_max)
        if not unpacker.eof or unpacker.unused_data:
            raise GrpcError(Status.INTERNAL, "a message that is not one gzip stream")
        return data


def too_large(size: str, limit: int) -> GrpcError:
    """The error for a message of this size."""
    return GrpcError(Status.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {limit})")
