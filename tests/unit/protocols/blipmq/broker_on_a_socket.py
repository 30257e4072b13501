"""The conformance stand-in behind a real socket, with the mishaps a client must live with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.model.errors import PeerProtocolError
from headrace.model.requests import Fence, Publish, Request
from headrace.protocols.blipmq import BLIPMQ
from tests.conformance.standin import StandIn


class SocketBroker:
    """A broker that can be cut off, hold its fences back, or say nothing at all."""

    def __init__(self) -> None:
        self.memory = StandIn()
        self.holding = False
        self.silent = False
        self.babbling = False
        self.published: list[Publish] = []
        self.fence_arrived = asyncio.Event()
        self.connections: set[Connection] = set()
        self.connected = 0
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection."""
        for connection in list(self.connections):
            connection.transport.abort()

    def release(self) -> None:
        """Answer the fences held back, and hold no more."""
        self.holding = False
        for connection in self.connections:
            connection.work()


class Connection(asyncio.Protocol):
    def __init__(self, broker: SocketBroker) -> None:
        self._broker = broker
        self._session = BLIPMQ.new_session()
        self._rest = b""
        self._waiting: list[Request] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._broker.connections.add(self)
        self._broker.connected += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._broker.silent:
            return
        if self._broker.babbling:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return
        self._rest += data
        try:
            requests: list[Request] = [Fence(0)]
            while requests:
                consumed, requests = self._session.receive(memoryview(self._rest), self._broker.memory.now)
                self._rest = self._rest[consumed:]
                self._waiting += requests
                self.work()
        except PeerProtocolError:
            self.transport.close()

    def work(self) -> None:
        broker = self._broker
        while self._waiting:
            request = self._waiting[0]
            if isinstance(request, Fence):
                broker.fence_arrived.set()
                if broker.holding:
                    break
            if isinstance(request, Publish) and not broker.memory.broken:
                broker.published.append(request)
            broker.memory.carry_out(self._session, self._waiting.pop(0))
        self.transport.write(self._session.data_to_send())


@asynccontextmanager
async def broker_on_a_socket() -> AsyncIterator[SocketBroker]:
    broker = SocketBroker()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(broker), "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        broker.cut()
        await server.wait_closed()
