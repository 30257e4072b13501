"""The client's transports: credit while nobody reads, pings in between, one stream never in the way of another."""

import asyncio
import struct
from pathlib import Path

import pytest

from headrace.protocols.fujin import transport_quic
from headrace.protocols.fujin.client import ClientSettings, FujinClient
from headrace.protocols.fujin.streams import ConnectionLost, Security
from headrace.protocols.fujin.transport_quic import HOLD_AT, QuicStream, QuicTransport
from headrace.protocols.fujin.transports import connect
from headrace.server.dev_certificate import DEV_CERT_NAME
from headrace.server.node import Node
from headrace.server.quic import QuicListener
from headrace.testing import broker

MIB = 1 << 20
OPEN = {"fujin": "127.0.0.1:0", "fujin_tcp": "127.0.0.1:0"}
WRITER = b"\x01\0\0\0\0"
PUSH = b"\x02\x01\x01\0\0\0\x04wide"


def trusted(node: Node) -> Security:
    return Security(ca=Path(node.config.data_dir) / DEV_CERT_NAME)


async def fill(node: Node, megabytes: int) -> None:
    async with await FujinClient.connect(node.endpoints["fujin"], security=trusted(node)) as client:
        writer = await client.writer()
        await writer.write_many("wide", [bytes(MIB)] * megabytes)


async def test_pings_are_answered_while_a_reader_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_quic, "BREATH_S", 0.05)
    fujin = {"ping_interval_s": 0.02, "ping_timeout_s": 2.0}
    async with broker(listen=OPEN, fujin=fujin) as node:
        await fill(node, 40)
        transport = await connect(node.endpoints["fujin"], trusted(node))
        stream = await transport.open_stream()
        assert isinstance(stream, QuicStream)
        stream.write(PUSH)
        for _ in range(40):
            ping = await transport.accept_stream()
            assert ping is not None
            ping.write(b"\x0b")
            ping.write_eof()
        assert stream._unread > HOLD_AT
        wanted = 2 + 40 * (5 + MIB)
        while wanted:
            wanted -= len(await stream.read())
        await transport.close()


async def test_what_is_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without breaths the broker stops at the windows, and drops the client in the end."""
    fujin = {"ping_interval_s": 0.05, "ping_timeout_s": 0.5}
    async with broker(listen=OPEN, fujin=fujin) as node:
        await fill(node, 40)
        transport = await connect(node.endpoints["fujin"], trusted(node))
        assert isinstance(transport, QuicTransport)
        monkeypatch.setattr(transport_quic, "UNREAD_MAX", 0)
        stream = await transport.open_stream()
        assert isinstance(stream, QuicStream)
        stream.write(PUSH)
        while (ping := await transport.accept_stream()) is not None:
            ping.write(b"\x0b")
            ping.write_eof()
        assert "ping" in str(transport.lost)
        assert stream._unread < 12 * MIB
        assert len(await stream.read()) > HOLD_AT
        with pytest.raises(ConnectionLost):
            await stream.read()


async def test_a_loop_that_writes_for_each_message_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no breath to come, a writer that had to wait for the unread reader would wait for ever."""
    monkeypatch.setattr(transport_quic, "BREATH_S", 3600)
    async with broker(listen=OPEN) as node:
        await fill(node, 8)
        settings = ClientSettings(prefetch=1)
        security = trusted(node)
        async with await FujinClient.connect(node.endpoints["fujin"], security=security, settings=settings) as client:
            writer = await client.writer()
            subscription = await client.subscribe("wide", auto_commit=True)
            for _ in range(8):
                (delivery,) = await subscription.take(1)
                await writer.write_many("copies", [delivery.value[:10]] * 20)


async def test_streams_that_are_alone_have_a_connection_as_long_as_they_live() -> None:
    async with broker(listen=OPEN) as node:
        (listener,) = (each for each in node._listeners if isinstance(each, QuicListener))
        transport = await connect(node.endpoints["fujin"], trusted(node))
        alone = [await transport.open_stream(alone=True) for _ in range(3)]
        assert len(listener.peers) == 4
        for stream in alone:
            stream.write(WRITER + b"\x0a")
            stream.write_eof()
            assert await stream.read() == b"\x0a"
            assert await stream.read() == b""
            stream.close()
        shared = await transport.open_stream()
        shared.write(WRITER + b"\x0a")
        assert await shared.read() == b"\x0a"
        assert len(listener.peers) == 1
        last = await transport.open_stream(alone=True)
        last.write(WRITER)
        await transport.close()
        with pytest.raises(ConnectionLost):
            await last.read()
        with pytest.raises(ConnectionLost):
            await transport.open_stream(alone=True)


@pytest.mark.parametrize("door", OPEN)
async def test_a_closed_stream_says_so(door: str) -> None:
    async with broker(listen=OPEN) as node:
        transport = await connect(node.endpoints[door], trusted(node))
        stream = await transport.open_stream()
        stream.write(WRITER)
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        stream.close()
        stream.close()
        stream.write(b"late")
        stream.write_eof()
        with pytest.raises(ConnectionLost):
            await reading
        with pytest.raises(ConnectionLost):
            await stream.drain()
        await transport.close()
        await transport.close()
        assert await transport.accept_stream() is None
        with pytest.raises(ConnectionLost):
            await transport.open_stream()


@pytest.mark.parametrize("door", OPEN)
async def test_drain_waits_for_credit(door: str) -> None:
    async with broker(listen=OPEN) as node:
        transport = await connect(node.endpoints[door], trusted(node))
        stream = await transport.open_stream()
        head = b"\x03\0\0\0\1\0\0\0\1t\0\0" + struct.pack(">I", 0)
        stream.write(WRITER + head)
        value = bytes(MIB)
        for _ in range(12):
            stream.write(head[:-4] + struct.pack(">I", len(value)) + value)
            await stream.drain()
        replies = 0
        while replies < 13 * 6:
            replies += len(await stream.read())
        await transport.close()
