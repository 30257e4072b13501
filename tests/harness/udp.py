"""A stretch of network between a client and a broker that can lose datagrams, or everything."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

Address = tuple[str, int]


class Wire(asyncio.DatagramProtocol):
    """Carries datagrams of any number of clients to one address and back, for as long as `passes` says so."""

    def __init__(self, to: Address) -> None:
        self.passes: Callable[[bytes], bool] = lambda _datagram: True
        self.carried = 0
        self._to = to
        self._transport: asyncio.DatagramTransport | None = None
        self._returns: dict[Address, asyncio.DatagramTransport] = {}
        self._waiting: dict[Address, list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The clients' end is open."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: Address) -> None:
        """A client sends."""
        if not self.passes(data):
            return
        self.carried += 1
        if (way := self._returns.get(address)) is not None:
            way.sendto(data)
        elif address in self._waiting:
            self._waiting[address].append(data)
        else:
            self._waiting[address] = [data]
            task = asyncio.create_task(self._open(address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def cut(self) -> None:
        """Carry nothing any more."""
        self.passes = lambda _datagram: False

    def back(self, data: bytes, address: Address) -> None:
        """The broker sends."""
        if self.passes(data) and self._transport is not None:
            self.carried += 1
            self._transport.sendto(data, address)

    def close(self) -> None:
        """Be gone."""
        for way in self._returns.values():
            way.close()
        if self._transport is not None:
            self._transport.close()

    async def _open(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        way, _ = await loop.create_datagram_endpoint(lambda: _Way(self, address), remote_addr=self._to)
        self._returns[address] = way
        for data in self._waiting.pop(address):
            way.sendto(data)


class _Way(asyncio.DatagramProtocol):
    """The way back to one client."""

    def __init__(self, wire: Wire, address: Address) -> None:
        self._wire = wire
        self._address = address

    def datagram_received(self, data: bytes, _address: Address) -> None:
        """The broker sends."""
        self._wire.back(data, self._address)


@asynccontextmanager
async def wire(endpoint: str) -> AsyncIterator[tuple[Wire, str]]:
    """A wire to a broker's QUIC endpoint, and the endpoint of its near end."""
    scheme, _, place = endpoint.partition("://")
    host, _, port = place.rpartition(":")
    loop = asyncio.get_running_loop()
    transport, carrier = await loop.create_datagram_endpoint(lambda: Wire((host, int(port))), local_addr=(host, 0))
    try:
        yield carrier, f"{scheme}://{host}:{transport.get_extra_info('sockname')[1]}"
    finally:
        carrier.close()
