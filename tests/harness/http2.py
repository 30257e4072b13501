"""An HTTP/2 peer by hand: makes any bytes a client may or may not send, and reads what comes back frame by frame."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct

from hpack import Decoder, Encoder

from headrace.http2 import frames

Field = tuple[str, str]
PREFIX = Struct(">BI")


def message(data: bytes, flag: int = 0) -> bytes:
    """A gRPC message in a body."""
    return PREFIX.pack(flag, len(data)) + data


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Any frame."""
    return frames.head(len(payload), kind, flags, stream) + payload


@dataclass
class Frame:
    """One that came back."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """The code or the credit in it."""
        return int.from_bytes(self.payload[-4:] if self.kind != frames.GOAWAY else self.payload[4:8])

    @property
    def ends(self) -> bool:
        """Whether it ends its stream."""
        return self.kind in (frames.DATA, frames.HEADERS) and bool(self.flags & frames.END_STREAM)


def frames_in(data: bytes) -> Iterator[Frame]:
    """The whole frames these bytes begin with."""
    at = 0
    while len(data) - at >= frames.HEAD_SIZE:
        high, low, kind, flags, stream = frames.HEAD.unpack_from(data, at)
        end = at + frames.HEAD_SIZE + (high << 8 | low)
        if end > len(data):
            return
        yield Frame(kind, flags, stream, data[at + frames.HEAD_SIZE : end])
        at = end


class Wire:
    """What one client writes, with its header table."""

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.decoder = Decoder()

    def hello(self, settings: dict[int, int] | None = None) -> bytes:
        """The preface."""
        return frames.PREFACE + frames.settings(settings or {})

    def block(self, method: str, *fields: Field) -> bytes:
        """The header block of a call."""
        ours = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "here")]
        return self.encoder.encode([*ours, ("content-type", "application/grpc"), ("te", "trailers"), *fields])

    def headers(self, stream: int, method: str, *fields: Field, end: bool = False) -> bytes:
        """The beginning of a call."""
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        return frame(frames.HEADERS, flags, stream, self.block(method, *fields))

    def data(self, stream: int, body: bytes, *, end: bool = False) -> bytes:
        """A piece of a body, in as many frames as it takes."""
        size = frames.FRAME_SIZE_MAX
        pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        last = len(pieces) - 1
        return b"".join(frame(frames.DATA, int(end and i == last), stream, piece) for i, piece in enumerate(pieces))

    def call(self, stream: int, method: str, data: bytes, *fields: Field) -> bytes:
        """A whole unary call."""
        return self.headers(stream, method, *fields) + self.data(stream, message(data), end=True)

    def fields(self, block: Frame) -> dict[str, str]:
        """What a HEADERS that came back says."""
        return {str(name): str(value) for name, value in self.decoder.decode(block.payload)}


class Peer:
    """A connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.wire = Wire()
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, port: int, *, hello: bool = True) -> "Peer":
        """Connect, and say hello."""
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        if hello:
            peer.writer.write(peer.wire.hello() + frames.SETTINGS_ACK)
        return peer

    async def send(self, data: bytes) -> None:
        """Write, unless the server has gone."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            pass

    async def frame(self) -> Frame | None:
        """The next frame; None at the end."""
        try:
            head = await self.reader.readexactly(frames.HEAD_SIZE)
            high, low, kind, flags, stream = frames.HEAD.unpack(head)
            return Frame(kind, flags, stream, await self.reader.readexactly(high << 8 | low))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def until(self, *kinds: int) -> Frame:
        """The next frame of one of these kinds."""
        while (found := await self.frame()) is not None:
            if found.kind in kinds:
                return found
        raise ConnectionError("the server closed the connection")

    async def rest(self) -> list[Frame]:
        """All frames until the server closes."""
        found: list[Frame] = []
        while (one := await self.frame()) is not None:
            found.append(one)
        return found

    async def status(self, stream: int) -> dict[str, str]:
        """How a call ended: its last header block. Blocks of others are decoded on the way."""
        while True:
            block = await self.until(frames.HEADERS)
            fields = self.wire.fields(block)
            if block.stream == stream and block.ends:
                return fields

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()


def codes(found: Iterable[Frame], kind: int = frames.GOAWAY) -> list[int]:
    """What the frames of a kind say."""
    return [each.number for each in found if each.kind == kind]
