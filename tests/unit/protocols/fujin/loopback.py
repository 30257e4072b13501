"""A transport in memory: the client's streams joined to sessions of the stand-in, whole or byte by byte."""

import asyncio

from headrace.protocols.fujin import FujinSettings
from headrace.protocols.fujin.streams import ConnectionLost
from tests.conformance.fujin_standin import MemoryHouse, MemoryStream


class LoopbackTransport:
    """A connection to a stand-in. `piece` is how many bytes a read brings at most."""

    def __init__(self, settings: FujinSettings | None = None, *, piece: int = 1 << 20) -> None:
        self.house = MemoryHouse(settings or FujinSettings())
        self.piece = piece
        self.streams: list[LoopbackStream] = []
        self.offered: asyncio.Queue[LoopbackStream | None] = asyncio.Queue()
        self.closed = False

    async def open_stream(self, *, alone: bool = False) -> "LoopbackStream":
        """A stream to a session."""
        if self.closed:
            raise ConnectionLost("closed")
        stream = LoopbackStream(self, self.house.stream(str(len(self.streams))))
        self.streams.append(stream)
        return stream

    async def accept_stream(self) -> "LoopbackStream | None":
        """A stream a test offered."""
        return await self.offered.get()

    async def close(self) -> None:
        """Break what is left."""
        self.closed = True
        for stream in self.streams:
            stream.snap("closed")

    def news(self) -> None:
        """Something happened at the broker."""
        for stream in self.streams:
            stream.arrived.set()

    def advance(self, milliseconds: int) -> None:
        """Let time pass at the broker."""
        self.house.advance(milliseconds)
        self.news()

    def drain(self) -> None:
        """Have the broker begin to stop."""
        self.house.drain()
        self.news()


class LoopbackStream:
    """One stream; what is written arrives at once."""

    def __init__(self, transport: LoopbackTransport, peer: MemoryStream) -> None:
        self.peer = peer
        self.arrived = asyncio.Event()
        self.deaf = False
        self.sent = b""
        self.closed = False
        self.ended = False
        self.injected = b""
        self.reads = 0
        self._transport = transport
        self._broken = ""

    def write(self, data: bytes) -> None:
        """To the session."""
        if self._broken:
            return
        self.sent += data
        if not self.deaf:
            self.peer.send(data)
        self._transport.news()

    async def drain(self) -> None:
        """There is always room."""
        if self._broken:
            raise ConnectionLost(self._broken)

    async def read(self) -> bytes:
        """From the session."""
        self.reads += 1
        while True:
            if self._broken:
                raise ConnectionLost(self._broken)
            if self.injected:
                data, self.injected = self.injected, b""
                return data
            if data := self.peer.receive(self._transport.piece):
                return data
            if self.peer.ended:
                return b""
            self.arrived.clear()
            await self.arrived.wait()

    def write_eof(self) -> None:
        """End our side."""
        self.ended = True
        if not self.peer.ended and not self.deaf:
            self.peer.finish()

    def close(self) -> None:
        """Be done."""
        self.closed = True
        self.snap("closed")

    def snap(self, cause: str) -> None:
        """Break."""
        self._broken = self._broken or cause
        self.arrived.set()

    def inject(self, data: bytes) -> None:
        """Have the client read these bytes."""
        self.injected += data
        self.arrived.set()
