"""Fujin through real QUIC and real TLS: writers, transactions, readers, pings, drain, loss."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.config import ConfigError
from headrace.model.errors import HeadraceError
from headrace.protocols.fujin.client import ConnectionLost, FujinClient, Refused, Security
from headrace.protocols.fujin.streams import Stream, StreamTransport
from headrace.protocols.fujin.transport_quic import QuicTransport
from headrace.protocols.fujin.transports import BadEndpoint, connect
from headrace.quic.certificates import CertificateFileError
from headrace.server.dev_certificate import DEV_CERT_NAME
from headrace.server.node import Node
from headrace.testing import KEY, broker
from tests.harness.authority import Authority
from tests.harness.udp import wire

DOORS = ("fujin", "fujin_tcp")
OPEN = dict.fromkeys(DOORS, "127.0.0.1:0")
WRITER = b"\x01\0\0\0\0"
DISCONNECT = b"\x0a"
PING = b"\x0b"
STOP = b"\x0c"


def trusted(node: Node) -> Security:
    return Security(ca=Path(node.config.data_dir) / DEV_CERT_NAME)


def write(topic: bytes, value: bytes, tag: int) -> bytes:
    return b"\x03" + struct.pack(">II", tag, len(topic)) + topic + struct.pack(">HI", 0, len(value)) + value


def push_reader(topic: bytes, *, auto_commit: bool = True) -> bytes:
    return bytes([2, 1, auto_commit]) + struct.pack(">I", len(topic)) + topic


async def exactly(stream: Stream, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = await stream.read()
        assert data, found
        found += data
    return found


@asynccontextmanager
async def client_of(node: Node, door: str) -> AsyncIterator[FujinClient]:
    async with await FujinClient.connect(node.endpoints[door], security=trusted(node)) as client:
        yield client


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_life_of_writing_and_reading(door: str) -> None:
    async with broker(listen=OPEN) as node, client_of(node, door) as client:
        writer = await client.writer()
        await writer.write("orders", b"one")
        async with writer.transaction():
            await writer.write("orders", b"two")
            await writer.write("invoices", b"2")
        reader = await client.reader("orders")
        first, second = await reader.fetch(10)
        assert (first.value, second.value) == (b"one", b"two")
        assert await reader.ack([first.id]) == [True]
        assert await reader.ack([first.id]) == [False]
        assert await second.nack()
        (again,) = await reader.fetch(10)
        assert again.value == b"two"
        assert await again.ack()
        subscription = await client.subscribe("invoices", auto_commit=True)
        assert (await subscription.take(1))[0].value == b"2"


async def test_big_messages_and_many_small_ones(door: str) -> None:
    sizes = [0, 1, 1349, 65_535, 65_536, 1 << 20, 5 << 20]
    async with broker(listen=OPEN) as node, client_of(node, door) as client:
        writer = await client.writer()
        for number, size in enumerate(sizes):
            await writer.write("big", bytes([number]) * size)
        assert await writer.write_many("small", (b"%d" % i for i in range(50_000))) == 50_000
        big = await client.reader("big", auto_commit=True)
        found: list[bytes] = []
        while len(found) < len(sizes):
            found += [each.value for each in await big.fetch(2)]
        assert found == [bytes([number]) * size for number, size in enumerate(sizes)]
        small = await client.subscribe("small", auto_commit=True)
        values: list[bytes] = []
        while len(values) < 50_000:
            values += [each.value for each in await small.take(1000)]
        assert values == [b"%d" % i for i in range(50_000)]


async def test_a_transaction_cut_short_never_was(door: str) -> None:
    async with broker(listen=OPEN) as node:
        transport = await connect(node.endpoints[door], trusted(node))
        stream = await transport.open_stream()
        stream.write(WRITER + b"\x04\0\0\0\1" + write(b"orders", b"never", 2))
        assert await exactly(stream, 12) == b"\x03\0\0\0\1\0\x02\0\0\0\2\0"
        await transport.close()
        async with client_of(node, door) as client:
            writer = await client.writer()
            await writer.write("orders", b"after")
            reader = await client.reader("orders")
            assert [each.value for each in await reader.fetch(10)] == [b"after"]


async def test_what_a_lost_reader_held_goes_to_the_next(door: str) -> None:
    async with broker(listen=OPEN) as node, client_of(node, door) as client:
        writer = await client.writer()
        await writer.write_many("work", [b"a", b"b", b"c"])
        lost = await FujinClient.connect(node.endpoints[door], security=trusted(node))
        held = await lost.subscribe("work")
        await held.take(1)
        held._line.abandon()
        reader = await client.reader("work")
        found: list[bytes] = []
        while len(found) < 3:
            found += [each.value for each in await reader.fetch(10)]
        assert sorted(found) == [b"a", b"b", b"c"]
        await lost.close()


async def test_the_server_pings_and_drops_who_does_not_answer() -> None:
    fujin = {"ping_interval_s": 0.01, "ping_timeout_s": 0.3}
    async with broker(listen=OPEN, fujin=fujin) as node:
        transport = await connect(node.endpoints["fujin"], trusted(node))
        stream = await transport.open_stream()
        stream.write(WRITER + write(b"t", b"v", 1))
        assert await exactly(stream, 6) == b"\x02\0\0\0\1\0"
        for number in range(20):
            ping = await transport.accept_stream()
            assert ping is not None
            assert await ping.read() == PING
            assert await ping.read() == b""
            if number % 2:
                ping.write(PING)
            ping.write_eof()
        stream.write(write(b"t", b"v", 2))
        assert await exactly(stream, 6) == b"\x02\0\0\0\2\0"
        assert await transport.accept_stream() is not None
        while await transport.accept_stream() is not None:
            pass
        assert isinstance(transport, QuicTransport)
        assert "code 0x3" in str(transport.lost)
        with pytest.raises(ConnectionLost, match="ping"):
            await stream.read()
        with pytest.raises(ConnectionLost):
            await transport.open_stream()
        assert node.engine.connections == 0


async def test_a_peer_that_answers_without_an_end_keeps_no_stream() -> None:
    async with broker(listen=OPEN, fujin={"ping_interval_s": 0.005, "ping_timeout_s": 1}) as node:
        transport = await connect(node.endpoints["fujin"], trusted(node))
        for _ in range(150):
            ping = await transport.accept_stream()
            assert ping is not None
            assert await ping.read() == PING
            ping.write(PING)
        await transport.close()


async def test_a_client_that_is_told_to_stop_leaves(door: str) -> None:
    async with broker(listen=OPEN, fujin={"stop_timeout_s": 30}) as node:
        transport = await connect(node.endpoints[door], trusted(node))
        writer, reader = await transport.open_stream(), await transport.open_stream()
        writer.write(WRITER + write(b"t", b"v", 1))
        assert await exactly(writer, 6) == b"\x02\0\0\0\1\0"
        reader.write(push_reader(b"t", auto_commit=False))
        assert (await exactly(reader, 3))[:3] == b"\x01\0\x06"
        answering = asyncio.create_task(_answer_pings(transport))
        for listener in node._listeners:
            listener.stop_listening()
        rest = await reader.read()
        while not rest.endswith(STOP):
            rest += await reader.read()
        assert await writer.read() == STOP
        closing = asyncio.gather(*(listener.close(1) for listener in node._listeners))
        for stream in (writer, reader):
            stream.write(DISCONNECT)
            assert await stream.read() == DISCONNECT
            assert await stream.read() == b""
        await asyncio.wait_for(closing, 10)
        await transport.close()
        await answering


async def _answer_pings(transport: StreamTransport) -> None:
    while (ping := await transport.accept_stream()) is not None:
        ping.write(PING)
        ping.write_eof()


async def test_a_client_that_does_not_leave_is_closed(door: str) -> None:
    async with broker(listen=OPEN, fujin={"stop_timeout_s": 0.05}, limits={"drain_timeout_s": 0.05}) as node:
        transport = await connect(node.endpoints[door], trusted(node))
        stream = await transport.open_stream()
        stream.write(WRITER + write(b"t", b"v", 1))
        assert await exactly(stream, 6) == b"\x02\0\0\0\1\0"
        await node._listeners[-2 if door == "fujin" else -1].close(0.05)
        with contextlib.suppress(ConnectionLost):
            while await stream.read():
                pass
        await transport.close()


async def test_newcomers_are_refused_while_the_server_stops() -> None:
    async with broker(listen=OPEN) as node:
        for listener in node._listeners:
            listener.stop_listening()
        with pytest.raises(ConnectionLost, match="the server stops"):
            await connect(node.endpoints["fujin"], trusted(node))
        with pytest.raises(ConnectionLost):
            await connect(node.endpoints["fujin_tcp"], trusted(node))


async def test_a_lossy_network_loses_nothing() -> None:
    async with broker(listen=OPEN) as node, wire(node.endpoints["fujin"]) as (carrier, endpoint):
        dropped = 0

        def passes(_datagram: bytes) -> bool:
            nonlocal dropped
            lost = carrier.carried % 17 == 16
            dropped += lost
            carrier.carried += lost
            return not lost

        carrier.passes = passes
        async with await FujinClient.connect(endpoint, security=trusted(node)) as client:
            writer = await client.writer()
            assert await writer.write_many("t", (bytes([i % 256]) * 1000 for i in range(3000))) == 3000
            subscription = await client.subscribe("t", auto_commit=True)
            found: list[bytes] = []
            while len(found) < 3000:
                found += [each.value for each in await subscription.take(100)]
            assert found == [bytes([i % 256]) * 1000 for i in range(3000)]
        assert dropped > 20


async def test_a_vanished_client_is_missed_and_what_it_held_given_back() -> None:
    fujin = {"ping_interval_s": 0.05, "ping_timeout_s": 0.2}
    async with (
        broker(listen=OPEN, fujin=fujin) as node,
        wire(node.endpoints["fujin"]) as (carrier, endpoint),
        client_of(node, "fujin") as client,
    ):
        writer = await client.writer()
        await writer.write_many("work", [b"a", b"b"])
        gone = await connect(endpoint, trusted(node))
        stream = await gone.open_stream()
        stream.write(push_reader(b"work", auto_commit=False))
        await exactly(stream, 2 + 2 * 7)
        carrier.cut()
        reader = await client.reader("work", auto_commit=True)
        found: list[bytes] = []
        while len(found) < 2:
            found += [each.value for each in await reader.fetch(10)]
        assert sorted(found) == [b"a", b"b"]


async def test_a_broker_that_is_gone_is_missed_by_its_clients() -> None:
    fujin = {"ping_interval_s": 0.05, "ping_timeout_s": 0.2}
    async with broker(listen=OPEN, fujin=fujin) as node, wire(node.endpoints["fujin"]) as (carrier, endpoint):
        client = await FujinClient.connect(endpoint, security=trusted(node))
        writer = await client.writer()
        await writer.write("t", b"v")
        carrier.cut()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(writer.write("t", b"w"), 30)
        await client.close()


async def test_the_identity_is_the_certificate_s(tmp_path: Path, door: str) -> None:
    authority = Authority(tmp_path)
    server = str(authority.issue_for_a_server())
    tls = {"cert": server, "key": server, "client_ca": str(authority.path)}
    keys = [KEY, {"name": "alice", "key": "secret", "publish": ["orders"], "subscribe": []}]
    async with broker(listen=OPEN | {"http": ""}, tls=tls, auth={"api_keys": keys, "certificates": ["bob"]}) as node:
        for name, allowed in (("alice", False), ("bob", True)):
            security = Security(ca=authority.path, cert=authority.issue(name))
            async with await FujinClient.connect(node.endpoints[door], security=security) as client:
                writer = await client.writer()
                await writer.write("orders", b"one")
                if allowed:
                    await writer.write("invoices", b"two")
                else:
                    with pytest.raises(Refused, match="not allowed"):
                        await writer.write("invoices", b"two")
                    with pytest.raises(Refused, match="not allowed"):
                        await client.reader("orders")


async def test_a_client_believes_only_the_right_server(tmp_path: Path, door: str) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with broker(listen=OPEN) as node:
        endpoint = node.endpoints[door]
        with pytest.raises(ConnectionLost, match=r"(?i)certificate"):
            await connect(endpoint, Security(ca=stranger.path))
        with pytest.raises(ConnectionLost, match=r"(?i)certificate"):
            await connect(endpoint, Security(ca=trusted(node).ca, server_name="example.org"))
        for security in (Security(ca=trusted(node).ca, server_name="localhost"), Security(verify=False)):
            transport = await connect(endpoint, security)
            await transport.close()
        with pytest.raises(CertificateFileError, match=r"missing\.pem"):
            await connect(endpoint, Security(ca=tmp_path / "missing.pem"))
        with pytest.raises(CertificateFileError, match=r"missing\.pem"):
            await connect(endpoint, Security(ca=trusted(node).ca, cert=tmp_path / "missing.pem"))
        with pytest.raises(CertificateFileError):
            await connect(endpoint, Security(ca=trusted(node).ca, cert=stranger.path))


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "quic://", "quic://host:port", "127.0.0.1:4848", ""])
async def test_bad_endpoints(endpoint: str) -> None:
    with pytest.raises(BadEndpoint):
        await connect(endpoint)


async def test_nobody_listens_there(door: str) -> None:
    async with broker(listen=OPEN) as node:
        endpoint = node.endpoints[door]
        security = Security(verify=False)
    with pytest.raises(ConnectionLost):
        await connect(endpoint, security, timeout_s=5)


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize(
    ("tls", "allowed", "says"),
    [(False, False, "client_ca"), (False, True, r"tls\.cert"), (True, False, "allow_unauthenticated")],
)
async def test_other_addresses_need_certificates_or_a_word(
    tmp_path: Path, name: str, tls: bool, allowed: bool, says: str
) -> None:
    server = str(Authority(tmp_path).issue_for_a_server())
    settings = {"cert": server, "key": server} if tls else {}
    with pytest.raises(ConfigError, match=says):
        async with broker(listen={name: "0.0.0.0:0"}, tls=settings, fujin={"allow_unauthenticated": allowed}):
            pass


async def test_bad_certificate_files_stop_the_start(tmp_path: Path) -> None:
    server = str(Authority(tmp_path).issue_for_a_server())
    missing = str(tmp_path / "missing.pem")
    for tls in ({"cert": missing, "key": missing}, {"cert": server, "key": server, "client_ca": missing}):
        with pytest.raises(HeadraceError, match=r"missing\.pem"):
            async with broker(listen=OPEN | {"blipmq": "", "http": ""}, tls=tls):
                pass
