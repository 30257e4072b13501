"""aioquic as a client with connection ids of every size, moved, rekeyed and rained upon."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode, QuicProtocolVersion

from headrace.server.dev_certificate import DEV_CERT_NAME
from tests.harness.served import Served, served
from tests.harness.udp import Weather, wire

ID_SIZES = [0, 4, 8, 20]
WRITER = b"\x01\0\0\0\0"
PING = b"\x0b"
DISCONNECT = b"\x0a"
TOPIC = b"\0\0\0\x07aioquic"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("broker"), LISTEN__FUJIN="127.0.0.1:0") as running:
        yield running


class Client:
    """One connection; pings are answered."""

    def __init__(self, protocol: QuicConnectionProtocol) -> None:
        self.protocol = protocol

    async def writer(self) -> Streams:
        """A stream that writes."""
        reader, writer = await self.protocol.create_stream()
        writer.write(WRITER)
        return reader, writer

    async def reader(self) -> Streams:
        """A stream that is pushed to, auto commit off."""
        reader, writer = await self.protocol.create_stream()
        writer.write(b"\x02\x01\0" + TOPIC)
        assert await reader.readexactly(2) == b"\x01\0"
        return reader, writer

    async def fence(self) -> None:
        """Return when the broker has answered on a new stream."""
        reader, writer = await self.writer()
        await leave(reader, writer)


class Protocol(QuicConnectionProtocol):
    """aioquic's, which must not promise further ids where it has none: RFC 9000, 19.15."""

    def __init__(self, quic: QuicConnection, stream_handler: Callable[..., None] | None = None) -> None:
        if quic.configuration.connection_id_length == 0:
            quic._replenish_connection_ids = lambda: None  # type: ignore[method-assign]
        super().__init__(quic, answer)


def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a ping."""

    async def pong() -> None:
        if await reader.read() == PING:
            writer.write(PING)
            writer.write_eof()

    task = asyncio.ensure_future(pong())
    writer.answering = task  # type: ignore[attr-defined]


@asynccontextmanager
async def client(
    address: str,
    ca: Path,
    id_size: int,
    version: int | None = None,
    protocol: type[QuicConnectionProtocol] = Protocol,
) -> AsyncIterator[Client]:
    made = QuicConfiguration(
        alpn_protocols=["fujin"], is_client=True, server_name="localhost", connection_id_length=id_size
    )
    made.load_verify_locations(str(ca))
    if version is not None:
        made.original_version = version
        made.supported_versions = [version, QuicProtocolVersion.VERSION_1]
    host, _, port = address.rpartition(":")
    async with connect(host, int(port), configuration=made, create_protocol=protocol) as connected:
        yield Client(connected)


async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(DISCONNECT)
    assert await reader.read() == DISCONNECT


def write(number: int, value: bytes) -> bytes:
    return b"\x03" + struct.pack(">I", number) + TOPIC + struct.pack(">HI", 0, len(value)) + value


async def write_all(client: Client, first: int, count: int) -> None:
    """Write and await every confirmation."""
    reader, writer = await client.writer()
    for number in range(first, first + count):
        writer.write(write(number, b"%d" % number))
    for number in range(first, first + count):
        assert await reader.readexactly(6) == struct.pack(">BIB", 2, number, 0)
    await leave(reader, writer)


async def commit(client: Client, first: int) -> None:
    """Three in a transaction, once rolled back, once committed."""
    reader, writer = await client.writer()
    for end in (6, 5):
        writer.write(struct.pack(">BI", 4, 1))
        for number in range(first, first + 3):
            writer.write(write(number, b"%d" % number))
        writer.write(struct.pack(">BI", end, 2))
        expected = struct.pack(">BIB", 3, 1, 0)
        expected += b"".join(struct.pack(">BIB", 2, number, 0) for number in range(first, first + 3))
        expected += struct.pack(">BIB", end - 1, 2, 0)
        assert await reader.readexactly(len(expected)) == expected
    await leave(reader, writer)


async def read_all(client: Client, count: int) -> list[int]:
    """Be pushed so many and acknowledge each; the numbers."""
    reader, writer = await client.reader()
    found: list[int] = []
    settled = 0
    while settled < count:
        code = (await reader.readexactly(1))[0]
        if code == 6:
            message_id, value = await string(reader), await string(reader)
            found.append(int(value))
            writer.write(struct.pack(">BII", 8, len(found), 1) + struct.pack(">I", len(message_id)) + message_id)
        else:
            assert code == 8
            head = await reader.readexactly(9)
            assert head[4:] == struct.pack(">BI", 0, 1)
            await string(reader)
            assert await reader.readexactly(1) == b"\x01"
            settled += 1
    await leave(reader, writer)
    return found


async def string(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    return await reader.readexactly(size)


def certificate(broker: Served) -> Path:
    return broker.stderr.parent / DEV_CERT_NAME


@pytest.mark.parametrize("id_size", ID_SIZES)
async def test_everything_through_loss_and_disorder(broker: Served, id_size: int) -> None:
    """10,000 messages, none missing; the keys change and the address moves on the way."""
    async with wire(broker.endpoints["fujin"]) as (carrier, endpoint):
        carrier.weather = Weather(lost=0.05, late=0.05, doubled=0.02, seed=id_size)
        async with client(endpoint.removeprefix("quic://"), certificate(broker), id_size) as talker:
            await write_all(talker, 0, 3000)
            talker.protocol._quic.request_key_update()
            await write_all(talker, 3000, 3000)
            carrier.move()
            await write_all(talker, 6000, 2000)
            if id_size:
                talker.protocol.change_connection_id()
            talker.protocol._quic.request_key_update()
            await write_all(talker, 8000, 2000)
            await commit(talker, 10_000)
            assert await read_all(talker, 10_003) == list(range(10_003))
        assert all(carrier.weather.done.values()), carrier.weather.done


@pytest.mark.parametrize("id_size", ID_SIZES)
async def test_the_version_is_negotiated(broker: Served, id_size: int) -> None:
    address = broker.endpoints["fujin"].removeprefix("quic://")
    async with client(address, certificate(broker), id_size, QuicProtocolVersion.VERSION_2) as talker:
        await talker.fence()
        assert talker.protocol._quic._version == QuicProtocolVersion.VERSION_1


async def test_a_client_without_an_id_that_promises_others_harms_itself_alone(broker: Served) -> None:
    """aioquic as it comes does that, with ids that are empty too."""
    address = broker.endpoints["fujin"].removeprefix("quic://")
    ca = certificate(broker)
    async with client(address, ca, 0) as good:
        async with client(address, ca, 0, protocol=QuicConnectionProtocol) as bad:
            await bad.protocol.wait_closed()
            told = bad.protocol._quic._close_event
        assert told is not None
        assert told.error_code == QuicErrorCode.FRAME_ENCODING_ERROR
        await good.fence()


async def test_many_without_an_id_at_once(broker: Served) -> None:
    """From one address each is told apart by the id we gave it."""
    address = broker.endpoints["fujin"].removeprefix("quic://")

    async def one() -> None:
        async with client(address, certificate(broker), 0) as talker:
            await talker.fence()

    await asyncio.gather(*(one() for _ in range(50)))
