"""An asyncio BlipMQ peer for brokers that run in the test's own loop."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from headrace.server.node import Node
from headrace.testing import KEY
from tests.harness.peer import ACK, HEAD, PING, POLL, PONG, PUBLISH, SUBSCRIBE, frame, handshake

Frame = tuple[int, int, bytes]


class Stream:
    """One connection, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Queue bytes for the broker."""
        self.writer.write(data)

    async def read(self) -> Frame:
        """The next frame as (kind, tag, payload). Raises IncompleteReadError once the broker hung up."""
        size, kind, tag = HEAD.unpack(await self.reader.readexactly(HEAD.size))
        return kind, tag, await self.reader.readexactly(size - 9)

    async def until_pong(self) -> list[Frame]:
        """Every frame before the next PONG."""
        found = []
        while (got := await self.read())[0] != PONG:
            found.append(got)
        return found

    async def fence(self, tag: int = 0) -> list[Frame]:
        """PING; every frame before its PONG."""
        self.send(frame(PING, tag))
        return await self.until_pong()

    async def subscribe(self, topic: bytes, qos: int = 1) -> int:
        """The new subscription's id."""
        self.send(frame(SUBSCRIBE, 3, struct.pack(">H", len(topic)) + topic + bytes([qos])))
        kind, _, payload = await self.read()
        assert kind == ACK, payload
        return int.from_bytes(payload)

    async def take(self, subscription: int, count: int) -> list[tuple[int, bytes]]:
        """POLL `count` times: (tag, value) of what was delivered, which must be all that came."""
        self.send(frame(POLL, 0, subscription.to_bytes(8)) * count)
        return delivered(await self.fence())

    def ack(self, subscription: int, *tags: int) -> None:
        """Queue ACKs."""
        self.send(b"".join(frame(ACK, tag, subscription.to_bytes(8)) for tag in tags))


def delivered(frames: Iterable[Frame]) -> list[tuple[int, bytes]]:
    """Deliveries as (tag, value); any other frame is a failure."""
    found = []
    for kind, tag, payload in frames:
        assert kind == PUBLISH, payload
        found.append((tag, payload[3 + int.from_bytes(payload[1:3]) :]))
    return found


@asynccontextmanager
async def connected(node: Node) -> AsyncIterator[Stream]:
    """A connection that has said HELLO and AUTH."""
    host, port = node.endpoints["blipmq"].removeprefix("tcp://").split(":")
    stream = Stream(*await asyncio.open_connection(host, int(port)))
    stream.send(handshake(KEY.encode()))
    assert [(await stream.read())[0], (await stream.read())[0]] == [ACK, ACK]
    yield stream
    stream.writer.close()
