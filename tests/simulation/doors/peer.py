"""What all peers have in common: a name, luck of their own, and ways to be slow, rude or gone."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from tests.simulation.doors.wire import Gone, Wire

if TYPE_CHECKING:
    from tests.simulation.doors.world import World

PATIENCE_S = 15.0
CALM_PATIENCE_S = 30.0

T = TypeVar("T")


class Peer(ABC):
    """Somebody outside. `live` goes on until the world wants no more of it, one conversation after the other."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.chance = Random(f"{world.seed}/{name}")
        self._talks = 0

    @property
    def life(self) -> int:
        """Which life of the broker this is."""
        return self.world.machine.lives

    @property
    def wanted(self) -> bool:
        """Whether it is to go on."""
        return not self.world.done

    async def live(self) -> None:
        while self.wanted:
            try:
                await self.converse()
            except Gone:
                self.note("is cut off")
            await self.pause(0.3)

    @abstractmethod
    async def converse(self) -> None:
        """One conversation. Raises Gone."""

    def pause(self, seconds: float) -> asyncio.Future[None]:
        """Wait for up to that long."""
        return self.world.loop.pause(self.chance.random() * seconds)

    def dial(self, door: str) -> "Talk":
        """Connect. Raises Gone."""
        self._talks += 1
        return Talk(self, self.world.machine.dial(door, f"{self.name}.{self._talks}"))

    def open_stream(self) -> "Talk":
        """Open a QUIC stream. Raises Gone."""
        self._talks += 1
        return Talk(self, self.world.machine.open_stream(f"{self.name}.{self._talks}"))

    def rarely(self, likelihood: float) -> bool:
        """Whether to misbehave now; never once the turmoil is over."""
        return not self.world.lull and self.chance.random() < likelihood

    async def doze(self, talk: "Talk", likelihood: float, seconds: float) -> None:
        """Perhaps leave everything lying at the server for a while, as long as it is not calm."""
        if not self.world.calm and self.chance.random() < likelihood:
            await talk.stop_reading(seconds)

    async def answer(self, awaitable: Awaitable[T], wire: Wire | None = None) -> T:
        """Something that must come before long, unless the world is in turmoil. Raises Gone."""
        calm = self.world.lull
        try:
            async with asyncio.timeout(CALM_PATIENCE_S if calm else PATIENCE_S):
                return await awaitable
        except TimeoutError:
            assert not calm, f"{self.name} waits for an answer in vain"
            if wire is not None:
                wire.reset()
            raise Gone from None

    def note(self, what: str) -> None:
        self.world.trace.note(self.world.loop.time(), self.name, what)


class Publisher(Peer):
    """A peer that stops when the turmoil is over."""

    @property
    def wanted(self) -> bool:
        return not self.world.lull


class Talk:
    """A wire with what was read and not understood yet."""

    def __init__(self, peer: Peer, wire: Wire) -> None:
        self.wire = wire
        self.data = bytearray()
        self._peer = peer

    async def say(self, data: bytes) -> None:
        """Send, mostly at once; or half of it, and the rest later or never. Raises Gone."""
        peer = self._peer
        if len(data) > 1 and peer.rarely(0.05):
            cut = peer.chance.randrange(1, len(data))
            self.wire.send(data[:cut])
            await peer.pause(3.0 if peer.chance.random() < 0.3 else 0.05)
            if peer.rarely(0.3):
                self.leave()
            data = data[cut:]
        self.wire.send(data)

    async def hear(self, parse: Callable[[bytearray], tuple[T, int] | None], *, idle: bool = False) -> T:
        """The next thing the broker says, as `parse` understands it with the bytes it took. Raises Gone.

        A reply is due before long; if `idle`, there may be nothing to say for ever.
        """
        while self.wire.broken or (found := parse(self.data)) is None:
            self.data += await (self.wire.read() if idle else self._peer.answer(self.wire.read(), self.wire))
        thing, size = found
        del self.data[:size]
        return thing

    def leave(self) -> None:
        """Vanish. Raises Gone."""
        self.wire.reset()
        raise Gone

    async def stop_reading(self, seconds: float) -> None:
        """Leave everything lying at the server for a while."""
        self.wire.hold_reading(True)
        await self._peer.pause(seconds)
        self.wire.hold_reading(False)
