"""A stretch of network between a client and a broker that can lose datagrams, or everything, double and reorder them,
and give clients another address."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

Address = tuple[str, int]
LATE_AT_MOST_S = 0.01


@dataclass(kw_only=True)
class Weather:
    """What becomes of datagrams, each figure a share of all; late ones let up to five others pass.

    Counts what it did, so that a test can tell that it did something.
    """

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    seed: int = 1
    done: dict[str, int] = field(default_factory=lambda: {"lost": 0, "doubled": 0, "late": 0})

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._late: list[tuple[int, Callable[[], None]]] = []

    def carry(self, deliver: Callable[[], None]) -> None:
        """Deliver now, twice, later or never."""
        self._late = [(ahead - 1, each) for ahead, each in self._late]
        if self._befalls("lost", self.lost):
            return
        if self._befalls("late", self.late):
            self._late.append((self._dice.randint(1, 5), deliver))
            asyncio.get_running_loop().call_later(LATE_AT_MOST_S, self._release, -1 << 30)
        else:
            deliver()
            if self._befalls("doubled", self.doubled):
                deliver()
        self._release(0)

    def _befalls(self, what: str, chance: float) -> bool:
        befalls = self._dice.random() < chance
        self.done[what] += befalls
        return befalls

    def _release(self, ahead: int) -> None:
        """Deliver those that let enough others pass; all of them when nothing comes any more."""
        due = [deliver for left, deliver in self._late if left <= 0 or ahead < 0]
        self._late = [(left, deliver) for left, deliver in self._late if left > 0 and ahead >= 0]
        for deliver in due:
            deliver()


class Wire(asyncio.DatagramProtocol):
    """Carries datagrams of any number of clients to one address and back, for as long as `passes` says so."""

    def __init__(self, to: Address) -> None:
        self.passes: Callable[[bytes], bool] = lambda _datagram: True
        self.weather = Weather()
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
        if self.passes(data):
            self.weather.carry(lambda: self._forward(data, address))

    def _forward(self, data: bytes, address: Address) -> None:
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

    def move(self) -> None:
        """Let every client go on from another port, as behind a NAT that forgot it; what comes for the old is lost."""
        for way in self._returns.values():
            way.close()
        self._returns.clear()

    def cut(self) -> None:
        """Carry nothing any more."""
        self.passes = lambda _datagram: False

    def back(self, data: bytes, address: Address) -> None:
        """The broker sends."""
        if self.passes(data):
            self.weather.carry(lambda: self._back(data, address))

    def _back(self, data: bytes, address: Address) -> None:
        if self._transport is not None and not self._transport.is_closing():
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
