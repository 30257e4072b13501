"""A stream's conversation: frames put together, input held back while it stalls, output watched."""

import asyncio
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from headrace.auth import ANONYMOUS
from headrace.log import OsDisk
from headrace.log.disk import File
from headrace.model.batch import Buffer
from headrace.protocols.fujin.streams import ConnectionLost, Security
from headrace.protocols.fujin.transport_quic import QuicTransport
from headrace.protocols.fujin.transports import connect
from headrace.quic.link import Link
from headrace.quic.stream import Stream
from headrace.server.dev_certificate import DEV_CERT_NAME
from headrace.server.node import Node
from headrace.server.quic import QuicListener
from headrace.server.quic_stream import HOLD_AT, StreamDoor
from headrace.testing import broker

MIB = 1 << 20
WRITER = b"\x01\0\0\0\0"
OPEN = {"fujin": "127.0.0.1:0"}


class GatedDisk(OsDisk):
    """A disk that writes only while its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: Path) -> File:
        return cast(File, GatedFile(super().create(path), self.gate))

    def open(self, path: Path, *, writable: bool = False) -> File:
        return cast(File, GatedFile(super().open(path, writable=writable), self.gate))


class GatedFile:
    """One file of a gated disk."""

    def __init__(self, file: File, gate: threading.Event) -> None:
        self._file = file
        self._gate = gate

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def order(self, _buffers: Sequence[Buffer], _position: int) -> None:
        return None

    def pwritev(self, buffers: Sequence[Buffer], position: int, *, sync: bool = False) -> int:
        self._gate.wait()
        return self._file.pwritev(buffers, position, sync=sync)


def write(value: bytes, tag: int = 1) -> bytes:
    return b"\x03" + struct.pack(">II", tag, 1) + b"t" + struct.pack(">HI", 0, len(value)) + value


async def connected(node: Node) -> QuicTransport:
    transport = await connect(node.endpoints["fujin"], Security(ca=Path(node.config.data_dir) / DEV_CERT_NAME))
    assert isinstance(transport, QuicTransport)
    return transport


def doors(node: Node) -> list[StreamDoor]:
    (listener,) = (each for each in node._listeners if isinstance(each, QuicListener))
    return [door for peer in listener.peers for door in peer.doors]


async def test_a_log_that_has_fallen_behind_holds_its_writers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    held = asyncio.Event()
    genuine = Link.hold

    def hold(self: Link, stream: object, wanted: bool) -> None:
        genuine(self, stream, wanted)  # type: ignore[arg-type]
        if wanted:
            held.set()

    monkeypatch.setattr(Link, "hold", hold)
    disk = GatedDisk()
    count = 4000
    async with broker(listen=OPEN, disk=disk, limits={"pending_bytes_max": MIB}) as node:
        transport = await connected(node)
        stream = await transport.open_stream()
        stream.write(WRITER + write(b"lock"))
        assert await stream.read() == b"\x02\0\0\0\1\0"
        disk.gate.clear()
        stream.write(write(bytes(10_000)) * count)
        await asyncio.wait_for(held.wait(), 30)
        (door,) = doors(node)
        assert HOLD_AT <= door.unfinished < 2 * MIB
        assert node.engine.log.pending_bytes < 4 * MIB
        assert transport._link is not None
        assert transport._link.backlog() > 20 * MIB
        disk.gate.set()
        replies = b""
        while len(replies) < 6 * count:
            replies += await stream.read()
        assert replies == b"\x02\0\0\0\1\0" * count
        assert not door._held
        await transport.close()


async def test_a_big_frame_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    presented = 0
    genuine = StreamDoor._present

    def present(self: StreamDoor) -> None:
        nonlocal presented
        presented += 1
        genuine(self)

    monkeypatch.setattr(StreamDoor, "_present", present)
    async with broker(listen=OPEN) as node:
        transport = await connected(node)
        stream = await transport.open_stream()
        stream.write(WRITER + write(b"lock"))
        assert await stream.read() == b"\x02\0\0\0\1\0"
        presented = 0
        stream.write(write(bytes(12 * MIB), 2))
        assert await stream.read() == b"\x02\0\0\0\2\0"
        assert presented <= 4
        await transport.close()


async def test_the_end_of_a_stream_is_a_disconnect(subtests_of_end: bytes) -> None:
    async with broker(listen=OPEN) as node:
        transport = await connected(node)
        stream = await transport.open_stream()
        stream.write(subtests_of_end)
        stream.write_eof()
        answer = b""
        while data := await stream.read():
            answer += data
        assert answer.endswith(b"\x0a")
        assert answer.count(b"\x0a") == 1
        assert doors(node) == []
        await transport.close()


@pytest.fixture(params=[b"", write(b"v"), write(b"v") + b"\x0a", write(b"cut")[:-2], b"\x04\0\0\0\1"])
def subtests_of_end(request: pytest.FixtureRequest) -> bytes:
    return WRITER + bytes(request.param)


async def test_a_stream_that_is_no_fujin_is_ended() -> None:
    async with broker(listen=OPEN) as node:
        transport = await connected(node)
        stream = await transport.open_stream()
        stream.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await stream.read() == b""
        await transport.close()


class FakeStream:
    """A stream with as much unsent as the test says."""

    crowded = False

    def __init__(self) -> None:
        self.unsent = 0
        self.given_up = False

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def backlog(self) -> int:
        return self.unsent

    def give_up(self) -> None:
        self.given_up = True


class FakeHousehold:
    """Nobody's connection."""

    def __init__(self) -> None:
        self.causes: list[str] = []

    def grown(self, door: StreamDoor) -> None:
        raise AssertionError(door)

    def left(self, _door: StreamDoor, cause: str) -> None:
        self.causes.append(cause)


async def test_only_a_peer_that_reads_nothing_at_all_is_cut_off() -> None:
    async with broker(listen=OPEN) as node:
        transport = await connected(node)
        (listener,) = (each for each in node._listeners if isinstance(each, QuicListener))
        stream, household = FakeStream(), FakeHousehold()
        door = StreamDoor(cast(Stream, stream), listener._terms.streams, ANONYMOUS, household)
        door.write(bytes(1000))
        for left in (900, 500, 1):
            stream.unsent = left
            door._look()
        door.write(bytes(10))
        stream.unsent = 0
        door._look()
        assert door._watch is None
        assert household.causes == []
        door.write(bytes(10))
        door._look()
        assert stream.given_up
        assert household.causes == ["does not read"]
        await transport.close()


async def test_a_reset_stream_gives_back_what_it_held_and_the_connection_stays() -> None:
    async with broker(listen=OPEN) as node:
        transport = await connected(node)
        writer = await transport.open_stream()
        writer.write(WRITER + write(b"v"))
        assert await writer.read() == b"\x02\0\0\0\1\0"
        reader = await transport.open_stream()
        reader.write(b"\x02\x01\0\0\0\0\x01t")
        while not (await reader.read()).endswith(b"v"):
            pass
        reader.close()
        with pytest.raises(ConnectionLost):
            await reader.read()
        other = await transport.open_stream()
        other.write(b"\x02\x02\x01\0\0\0\x01t" + b"\x07\0\0\0\1\0\0\0\1")
        answer = await other.read()
        while not answer.endswith(b"v"):
            answer += await other.read()
        writer.write(write(b"w", 2))
        assert await writer.read() == b"\x02\0\0\0\2\0"
        await transport.close()
