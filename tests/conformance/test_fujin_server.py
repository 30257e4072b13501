"""The vectors of Fujin held with a real broker, over QUIC and over TLS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.protocols.fujin.streams import Security, Stream, StreamTransport
from headrace.protocols.fujin.transports import connect
from headrace.server.dev_certificate import DEV_CERT_NAME
from headrace.testing import broker
from tests.conformance.test_fujin import VECTORS
from tests.conformance.vectors import Talk, fill, match, size

DOORS = {"fujin": {"half close"}, "fujin_tcp": set[str]()}
SETTINGS: dict[str, dict[str, object]] = {
    "document": {},
    "reference": {"dialect": "reference"},
    "reference with headers": {"dialect": "reference", "write_headers": "auto"},
    "always": {"write_headers": "always"},
    "never": {"write_headers": "never"},
    "small": {"message_max": 64, "headers_max": 32, "transaction_max": 48, "push_window": 2},
}
PATIENCE_S = 20.0


class Spoken:
    """One stream, byte by byte."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.ended = False
        self._unread = b""

    async def receive(self, count: int) -> bytes:
        """So many bytes, or fewer when the broker ends its side."""
        while len(self._unread) < count and not self.ended:
            data = await self.stream.read()
            self._unread += data
            self.ended = not data
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    async def say_goodbye(self) -> bytes:
        """DISCONNECT; everything the broker said before it ended its side."""
        self.stream.write(b"\x0a")
        return await self.receive(1 << 20)


class House:
    """Streams by name over one transport."""

    def __init__(self, transport: StreamTransport) -> None:
        self.streams: dict[str, Spoken] = {}
        self._transport = transport

    async def stream(self, name: str) -> Spoken:
        """The stream of this name, opened if need be."""
        if name not in self.streams:
            self.streams[name] = Spoken(await self._transport.open_stream())
        return self.streams[name]


@asynccontextmanager
async def house(door: str, settings: dict[str, object], data_dir: Path) -> AsyncIterator[House]:
    """Streams to a broker of their own."""
    listen = {"blipmq": "", "http": "", door: "127.0.0.1:0"}
    fujin = settings | {"routes": {"in": "orders"}}
    async with broker(data_dir, listen=listen, fujin=fujin, retry={"backoff_ms": 0}) as node:
        transport = await connect(node.endpoints[door], Security(ca=data_dir / DEV_CERT_NAME))
        try:
            yield House(transport)
        finally:
            await transport.close()


async def hold(place: House, talk: Talk) -> None:
    """Hold a talk; what was not expected shows in the goodbyes."""
    names: dict[str, bytes] = {}
    for who, action, *argument in talk.steps:
        spoken = await place.stream(who)
        match action:
            case "send":
                spoken.stream.write(fill(argument[0], names))
            case "expect":
                match(argument[0], await spoken.receive(size(argument[0])), names)
            case "finish":
                spoken.stream.write_eof()
            case "ended":
                assert await spoken.receive(1) == b""
            case _:
                raise AssertionError(action)
    for spoken in place.streams.values():
        if not spoken.ended:
            assert await spoken.say_goodbye() in (b"\x0a", b"")


@pytest.mark.parametrize(
    ("door", "talk"),
    [
        pytest.param(door, talk, id=f"{door}: {talk.name}")
        for door, able in DOORS.items()
        for talk in VECTORS.talks
        if not talk.needs or set(talk.needs.split(", ")) <= able
    ],
)
async def test_the_broker_holds_every_talk(door: str, talk: Talk, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), house(door, SETTINGS[talk.state], tmp_path) as place:
        await hold(place, talk)
