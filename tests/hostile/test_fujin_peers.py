"""Fujin peers that mean harm, or do not know better: what they cost is bounded, and others are served all the while."""

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aioquic.asyncio.client import connect as aioquic_connect
from aioquic.quic.configuration import QuicConfiguration

from headrace.protocols.fujin.client import FujinClient, Security
from headrace.protocols.fujin.streams import ConnectionLost, Stream, StreamTransport
from headrace.protocols.fujin.transport_quic import Broker, QuicTransport
from headrace.protocols.fujin.transports import connect
from headrace.quic.connection import Connection, configuration
from headrace.server.dev_certificate import DEV_CERT_NAME
from headrace.testing import broker as embedded
from tests.harness.authority import Authority
from tests.harness.served import Served, served

MIB = 1 << 20
WRITER = b"\x01\0\0\0\0"
PONG = b"\x0b"
OPEN = {"fujin": "127.0.0.1:0", "fujin_tcp": "127.0.0.1:0"}


HASTY = {"LIMITS__AUTH_TIMEOUT_S": "1", "LIMITS__WRITE_TIMEOUT_S": "1"}
PATIENT = {"LIMITS__AUTH_TIMEOUT_S": "60", "FUJIN__PING_TIMEOUT_S": "60", "FUJIN__PING_INTERVAL_S": "1"}


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    settings = getattr(request, "param", HASTY)
    with served(tmp_path, LISTEN__FUJIN="127.0.0.1:0", LISTEN__FUJIN_TCP="127.0.0.1:0", **settings) as running:
        yield running


@pytest.fixture
def security(tmp_path: Path) -> Security:
    return Security(ca=tmp_path / DEV_CERT_NAME)


@pytest.fixture
async def bystander(broker: Served, security: Security) -> AsyncIterator[FujinClient]:
    """A well-behaved client that must be served before and after."""
    async with await FujinClient.connect(quic(broker), security=security) as client:
        writer = await client.writer()
        await writer.write("calm", b"before")
        yield client
        await writer.write("calm", b"after")
        reader = await client.reader("calm", auto_commit=True)
        assert [each.value for each in await reader.fetch(10)] == [b"before", b"after"]


def quic(broker: Served) -> str:
    return f"quic://127.0.0.1:{broker.ports['fujin']}"


def write(topic: bytes, value: bytes, tag: int = 1) -> bytes:
    return b"\x03" + struct.pack(">II", tag, len(topic)) + topic + struct.pack(">HI", 0, len(value)) + value


async def fence(client: FujinClient) -> None:
    """Return when the broker has served this client."""
    writer = await client.writer()
    await writer.write("fence", b"")
    await writer.close()


async def exactly(stream: Stream, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = await stream.read()
        assert data, found
        found += data
    return found


async def ended(stream: Stream) -> bool:
    """Whether the broker ends the stream or breaks it; waits for it."""
    with contextlib.suppress(ConnectionLost):
        while await stream.read():
            pass
    return True


def descriptors(broker: Served) -> int:
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


async def test_garbage_datagrams_cost_nothing(broker: Served, bystander: FujinClient) -> None:
    before = broker.resident_bytes()
    chance = random.Random(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", broker.ports["fujin"]))
        for number in range(20_000):
            data = chance.randbytes(chance.choice((0, 1, 5, 20, 200, 1200, 1350)))
            if number % 3 == 0:
                data = b"\xc0\0\0\0\1\x08" + data
            sock.send(data)
            if number % 500 == 0:
                await fence(bystander)
    assert broker.resident_bytes() - before < 32 * MIB


async def test_first_packets_of_clients_that_never_go_on(broker: Served, bystander: FujinClient) -> None:
    """Real first packets, from clients that never answer: past a few the broker asks only for proof of the address."""
    before = broker.resident_bytes()
    made = configuration(protocol="fujin", is_client=True, certificate=None, datagram_max=1350, idle_timeout_s=30)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", broker.ports["fujin"]))
        sock.setblocking(False)
        retried = 0
        for number in range(1000):
            connection = Connection(configuration=made)
            connection.connect(("127.0.0.1", broker.ports["fujin"]), 0.0)
            for datagram, _ in connection.datagrams_to_send(0.0):
                sock.send(datagram)
            if number % 50 == 49:
                await fence(bystander)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        retried += sock.recv(2048)[0] & 0xF0 == 0xF0
        assert retried > 500
        assert broker.resident_bytes() - before < 64 * MIB
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, broker.wait_for_log, "no handshake in time")


async def test_another_version_is_told_which_one_is_spoken(broker: Served, bystander: FujinClient) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", broker.ports["fujin"]))
        sock.settimeout(10)
        sock.send(b"\xc0\x1a\x1a\x1a\x1a\x08destined\x03abc" + bytes(1300))
        answer = await asyncio.get_running_loop().run_in_executor(None, sock.recv, 2048)
    assert answer[1:5] == bytes(4)
    assert answer[5:9] == b"\x03abc"
    assert answer.endswith(struct.pack(">I", 1))


@pytest.mark.parametrize("protocol", ["h3", "fujin2", "FUJIN", ""])
async def test_another_protocol_is_refused(
    broker: Served, bystander: FujinClient, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.protocols.fujin.transport_quic.ALPN", protocol)
    with pytest.raises(ConnectionLost, match="0x178"):
        await connect(quic(broker), Security(verify=False))


async def test_tls_over_tcp_without_the_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = str(authority.issue_for_a_server())
    tls = {"cert": server, "key": server, "client_ca": str(authority.path)}
    foreign = Authority(tmp_path, "foreign").issue("alice")
    late = authority.issue("late", expired=True)
    async with embedded(listen=OPEN | {"http": ""}, tls=tls, auth={"certificates": ["alice", "late"]}) as node:
        good = Security(ca=authority.path, cert=authority.issue("alice"))
        client = await FujinClient.connect(node.endpoints["fujin"], security=good)
        writer = await client.writer()
        for name, bad in (
            ("no certificate", Security(ca=authority.path)),
            ("foreign", Security(ca=authority.path, cert=foreign)),
            ("expired", Security(ca=authority.path, cert=late)),
        ):
            for door in ("fujin", "fujin_tcp"):
                with contextlib.suppress(ConnectionLost):
                    transport = await connect(node.endpoints[door], bad)
                    stream = await transport.open_stream()
                    stream.write(WRITER + write(b"secret", name.encode()))
                    assert await ended(stream), name
                    await transport.close()
            await writer.write("calm", name.encode())
        assert "secret" not in [topic.name for topic in node.engine.broker.topics()]
        await client.close()


async def test_a_unidirectional_stream_is_refused_and_the_others_go_on(
    broker: Served, bystander: FujinClient, security: Security
) -> None:
    transport = await connect(quic(broker), security)
    assert isinstance(transport, QuicTransport)
    assert transport._link is not None
    stream = await transport.open_stream()
    stream.write(WRITER + write(b"t", b"v"))
    assert await exactly(stream, 6) == b"\x02\0\0\0\1\0"
    for number in range(2, 2 + 4 * 90, 4):
        transport._link.connection.send_stream_data(number, bytes(1000))
    transport._link.turn()
    stream.write(write(b"t", b"v", 2))
    assert await exactly(stream, 6) == b"\x02\0\0\0\2\0"
    await transport.close()


async def test_more_streams_than_allowed_do_not_open(
    broker: Served, bystander: FujinClient, security: Security
) -> None:
    transport = await connect(quic(broker), security)
    streams = [await transport.open_stream() for _ in range(100)]
    for stream in streams:
        stream.write(WRITER + write(b"t", b"v"))
    for stream in streams:
        assert await exactly(stream, 6) == b"\x02\0\0\0\1\0"
    opening = asyncio.create_task(transport.open_stream())
    await fence(bystander)
    assert not opening.done()
    assert isinstance(transport, QuicTransport)
    assert transport._link is not None
    with pytest.raises(ValueError, match="limit"):
        transport._link.connection.send_stream_data(400, b"forced")
    streams[0].write(b"\x0a")
    streams[0].write_eof()
    assert await ended(streams[0])
    one_more = await opening
    one_more.write(WRITER + write(b"t", b"v"))
    assert await exactly(one_more, 6) == b"\x02\0\0\0\1\0"
    await transport.close()


async def test_more_connections_than_allowed_are_refused() -> None:
    async with embedded(listen=OPEN, limits={"connections_max": 3}) as node:
        security = Security(ca=Path(node.config.data_dir) / DEV_CERT_NAME)
        transports = [await connect(node.endpoints["fujin"], security) for _ in range(3)]
        with pytest.raises(ConnectionLost, match="too many connections"):
            await connect(node.endpoints["fujin"], security)
        await transports.pop().close()
        stream = await transports[0].open_stream()
        stream.write(WRITER + write(b"t", b"v"))
        assert await exactly(stream, 6) == b"\x02\0\0\0\1\0"
        transports.append(await connect(node.endpoints["fujin"], security))
        for transport in transports:
            await transport.close()


async def test_a_reader_that_does_not_read_costs_little_and_is_cut_off(
    broker: Served, bystander: FujinClient, security: Security
) -> None:
    writer = await bystander.writer()
    for _ in range(100):
        await writer.write("wide", bytes(MIB))
    before = broker.resident_bytes()
    lazy = await connect(quic(broker), security)
    assert isinstance(lazy, QuicTransport)
    lazy._breathe = lambda: None  # type: ignore[method-assign]
    other = await lazy.open_stream()
    other.write(WRITER + write(b"t", b"v"))
    assert await exactly(other, 6) == b"\x02\0\0\0\1\0"
    stream = await lazy.open_stream()
    stream.write(b"\x02\x01\x01" + struct.pack(">I", 4) + b"wide")
    log = asyncio.get_running_loop().run_in_executor(None, broker.wait_for_log, "does not read")
    while not log.done():
        await fence(bystander)
    assert (await log)["event"] == "quic.stream_closed"
    assert broker.resident_bytes() - before < 48 * MIB
    assert await ended(stream)
    await lazy.close()


async def test_a_writer_that_does_not_read_is_held_back(
    broker: Served, bystander: FujinClient, security: Security
) -> None:
    """Replies nobody reads pile up to the stream's room; from then on nothing more of the writer is taken in."""
    before = broker.resident_bytes()
    lazy = await connect(quic(broker), security)
    assert isinstance(lazy, QuicTransport)
    lazy._breathe = lambda: None  # type: ignore[method-assign]
    stream = await lazy.open_stream()
    stream.write(WRITER)
    flood = write(b"flood", b"") * 10_000
    sent = 0
    with contextlib.suppress(ConnectionLost):
        for _ in range(2000):
            stream.write(flood)
            sent += len(flood)
            await stream.drain()
    await fence(bystander)
    assert sent > 4 * MIB
    assert broker.resident_bytes() - before < 96 * MIB
    await lazy.close()


async def test_unfinished_requests_cost_what_was_sent_and_no_more(
    broker: Served, bystander: FujinClient, security: Security
) -> None:
    before = broker.resident_bytes()
    transport = await connect(quic(broker), security)
    head = write(b"t", b"short", 2) + write(b"t", bytes(15 * MIB))
    streams = []
    for _ in range(90):
        stream = await transport.open_stream()
        stream.write(WRITER + b"\x04\0\0\0\1" + head[:60])
        streams.append(stream)
    for stream in streams:
        assert await exactly(stream, 12) == b"\x03\0\0\0\1\0\x02\0\0\0\2\0"
    await fence(bystander)
    assert broker.resident_bytes() - before < 32 * MIB
    broken = 0
    for stream in streams[:12]:
        stream.write(head[60 : 14 * MIB])
        with contextlib.suppress(ConnectionLost):
            await stream.drain()
    await fence(bystander)
    for stream in streams[:12]:
        broken += getattr(stream, "_broken", None) is not None
    assert broken >= 6
    assert broker.resident_bytes() - before < 160 * MIB
    await transport.close()


async def test_one_client_s_streams_reset_in_mid_request(
    broker: Served, bystander: FujinClient, security: Security
) -> None:
    transport = await connect(quic(broker), security)
    for number in range(500):
        stream = await transport.open_stream()
        stream.write((WRITER + write(b"t", bytes(100)))[: number % 120 + 1])
        if number % 2:
            await fence(bystander) if number % 100 == 1 else await asyncio.sleep(0)
        stream.close()
    last = await transport.open_stream()
    last.write(WRITER + write(b"t", b"v"))
    assert await exactly(last, 6) == b"\x02\0\0\0\1\0"
    await transport.close()


async def test_a_client_somebody_else_wrote(broker: Served, bystander: FujinClient, security: Security) -> None:
    """aioquic's client writes, reads and is pinged."""
    made = QuicConfiguration(alpn_protocols=["fujin"], is_client=True, server_name="localhost")
    made.verify_mode = ssl.CERT_NONE
    async with aioquic_connect("127.0.0.1", broker.ports["fujin"], configuration=made) as protocol:
        reader, writer = await protocol.create_stream()
        writer.write(WRITER + write(b"foreign", b"hello"))
        assert await reader.readexactly(6) == b"\x02\0\0\0\1\0"
        writer.write(write(b"foreign", bytes(300_000), 2))
        assert await reader.readexactly(6) == b"\x02\0\0\0\2\0"
        puller, asking = await protocol.create_stream()
        asking.write(b"\x02\x02\x01" + struct.pack(">I", 7) + b"foreign")
        assert await puller.readexactly(2) == b"\x01\0"
        asking.write(b"\x07" + struct.pack(">II", 9, 2))
        head = b"\x07" + struct.pack(">IBI", 9, 0, 2)
        assert await puller.readexactly(len(head) + 9) == head + struct.pack(">I", 5) + b"hello"
        assert await puller.readexactly(300_004) == struct.pack(">I", 300_000) + bytes(300_000)
        writer.write(b"\x0a")
        assert await reader.read() == b"\x0a"


@pytest.mark.slow
@pytest.mark.parametrize("broker", [PATIENT], indirect=True)
async def test_ten_thousand_streams_leave_nothing_behind(
    broker: Served, bystander: FujinClient, security: Security
) -> None:
    transport = await connect(quic(broker), security)
    answering = asyncio.create_task(_answer(transport))

    async def life(number: int) -> None:
        stream = await transport.open_stream()
        stream.write(WRITER + b"\x0a" if number % 2 else b"\x02\x02\0\0\0\0\x01t\x0a")
        assert await exactly(stream, 1 if number % 2 else 3) == (b"\x0a" if number % 2 else b"\x01\0\x0a")
        stream.write_eof()
        assert await stream.read() == b""

    for first in range(0, 1000, 50):
        await asyncio.gather(*(life(number) for number in range(first, first + 50)))
    memory, files = broker.resident_bytes(), descriptors(broker)
    for first in range(0, 10_000, 50):
        await asyncio.gather(*(life(number) for number in range(first, first + 50)))
    assert broker.resident_bytes() - memory < 8 * MIB
    assert descriptors(broker) == files
    await transport.close()
    await answering


@pytest.mark.slow
@pytest.mark.parametrize("broker", [PATIENT], indirect=True)
async def test_a_thousand_connections_are_pinged_and_forgotten(
    broker: Served, bystander: FujinClient, security: Security
) -> None:
    known = Broker.known_by(security, host="127.0.0.1", address="127.0.0.1", port=broker.ports["fujin"])

    async def crowd(count: int) -> None:
        transports: list[QuicTransport] = []
        pinged: list[asyncio.Future[None]] = []
        answering = []
        for _ in range(count // 50):
            batch = [QuicTransport(known) for _ in range(50)]
            await asyncio.gather(*(transport._shake() for transport in batch))
            transports += batch
            for transport in batch:
                pinged.append(asyncio.get_running_loop().create_future())
                answering.append(asyncio.create_task(_answer(transport, pinged[-1])))
        await asyncio.gather(*pinged)
        for transport in transports:
            await transport.close()
        await asyncio.gather(*answering)
        await fence(bystander)

    await crowd(1000)
    memory, files = broker.resident_bytes(), descriptors(broker)
    for _ in range(5):
        await crowd(200)
    assert broker.resident_bytes() - memory < 16 * MIB
    assert descriptors(broker) == files


async def _answer(transport: StreamTransport, pinged: asyncio.Future[None] | None = None) -> None:
    while (ping := await transport.accept_stream()) is not None:
        assert await ping.read() == PONG
        ping.write(PONG)
        ping.write_eof()
        if pinged is not None and not pinged.done():
            pinged.set_result(None)
