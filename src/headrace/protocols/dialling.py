"""What asyncio clients over TCP share: the broker's address, and a connection to it that is made again when it is lost.

Knows no protocol; what is said on a connection is the business of those who derive from `Wire`.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from headrace.model.errors import HeadraceError


class ConnectionLost(HeadraceError):
    """The connection broke; what was not answered may or may not have happened."""


class ClientClosed(HeadraceError):
    """The client was closed by its owner."""


class Wire(asyncio.Protocol):
    """One connection, from its making to its loss; it is never mended. Whoever derives from it notices the loss."""

    def __init__(self) -> None:
        self.lost: ConnectionLost | None = None
        self._transport: asyncio.Transport | None = None
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """Send what is left, then close."""
        if self._transport is not None and self.lost is None:
            self._transport.close()
            while self.lost is None:
                self._changed.clear()
                await self._changed.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Transport's call."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport


W = TypeVar("W", bound=Wire)


class Address(NamedTuple):
    """Where a broker listens, and how it is to be trusted if that takes TLS."""

    host: str
    port: int
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, endpoint: str, port: int, tls: ssl.SSLContext | None) -> Self:
        """The address of an endpoint, with this port where it names none. Raises ValueError."""
        parts = urlsplit(endpoint if "://" in endpoint else f"tcp://{endpoint}")
        if parts.scheme not in ("tcp", "tls") or not parts.hostname:
            raise ValueError(f"endpoint {endpoint!r} is not tcp://host:port or tls://host:port")
        trusted = tls or (ssl.create_default_context() if parts.scheme == "tls" else None)
        return cls(parts.hostname, parts.port or port, trusted)

    async def dial(
        self, new_wire: Callable[[], W], timeout_s: float, greet: Callable[[W], Awaitable[None]] | None = None
    ) -> W:
        """A new connection, greeted. Raises ConnectionLost, and what the greeting raises, closed again."""
        loop = asyncio.get_running_loop()
        wire: W | None = None
        try:
            async with asyncio.timeout(timeout_s):
                _, wire = await loop.create_connection(new_wire, self.host, self.port, ssl=self.tls)
                if greet is not None:
                    await greet(wire)
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"{self.host}:{self.port}: {error or 'no answer'}") from error
        except HeadraceError:
            assert wire is not None
            await wire.close()
            raise
        return wire


class Dialling(Generic[W]):
    """One connection at a time, with pauses that grow for as long as nobody can be reached."""

    def __init__(self, dial: Callable[[], Awaitable[W]], pause_min_s: float, pause_max_s: float) -> None:
        self._dial = dial
        self._pause_min_s = pause_min_s
        self._pause_max_s = pause_max_s
        self._wire: W | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def connect(self) -> None:
        """Make the first connection. Raises what `dial` does."""
        self._wire = await self._dial()

    async def wire(self) -> W:
        """The connection, made again if it was lost. Raises ClientClosed, and what `dial` does but ConnectionLost."""
        async with self._turn:
            pause = self._pause_min_s
            while self._wire is None or self._wire.lost is not None:
                if self._closed:
                    raise ClientClosed("the client is closed")
                try:
                    self._wire = await self._dial()
                except ConnectionLost:
                    await asyncio.sleep(pause * random.uniform(0.5, 1))
                    pause = min(2 * pause, self._pause_max_s)
            return self._wire

    async def close(self) -> None:
        """Close the connection, and make none any more."""
        self._closed = True
        if self._wire is not None:
            await self._wire.close()
