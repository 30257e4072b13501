"""HTTP/2 peers that mean harm, one class after the other, as strangers and with a key: whoever sends it is ended with
the right code, what is held stays bounded by our own count, and a bystander is served all the while."""

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.http2 import Call, GrpcError, GrpcServer, Http2Limits, Metadata, Status, frames
from headrace.http2.server import HANDSHAKES_MAX
from tests.harness.authority import Authority
from tests.harness.eventually import eventually
from tests.harness.http2 import Peer, Wire, codes, frame, message

MIB = 1 << 20
KEY = ("authorization", "Bearer right")
OTHER = ("authorization", "Bearer other")
GUESS = ("authorization", "Bearer wrong")
ECHO, LARGE, HEALTH, DEAF = "/t.T/Echo", "/t.T/Large", "/t.T/Health", "/t.T/Deaf"
LIMITS = Http2Limits(
    message_max=MIB, auth_timeout_s=2, write_timeout_s=0.5, stall_timeout_s=0.5, streams_max=100, calls_max=400,
    connection_buffer_max=2 * MIB, buffer_max=8 * MIB, write_buffer_max=MIB, strangers_bytes_max=4 * MIB,
)  # fmt: skip
HELD_MAX = 32 * MIB
WAIT_S = 20.0


async def echo(call: Call) -> None:
    """Everything back."""
    while (data := await call.read()) is not None:
        await call.write(data)


async def large(call: Call) -> None:
    """A quarter of a mebibyte for a word."""
    await call.read()
    await call.writable()
    await call.write(bytes(MIB // 4))


async def deaf(call: Call) -> None:
    """Read nothing, end never."""
    await asyncio.get_running_loop().create_future()


def admit(method: str, metadata: Metadata, peer: str, certificate: str | None) -> str | None:
    """One key is right; health is for everybody."""
    if method == HEALTH:
        return None
    if metadata.get("authorization") == "Bearer other":
        return "bystander"
    if metadata.get("authorization") != "Bearer right":
        raise GrpcError(Status.UNAUTHENTICATED, "the key is not known")
    return "somebody"


@dataclass
class Besieged:
    """A server, and somebody who is served by it."""

    server: GrpcServer
    port: int
    bystander: Peer
    stream: int = 1
    held: int = 0
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def is_served(self) -> None:
        """The bystander is answered; nobody holds more than is allowed."""
        self.held = max(self.held, self.server.held)
        assert self.server.held <= HELD_MAX
        assert self.server.strangers_cost <= LIMITS.strangers_bytes_max
        await self.bystander.send(self.bystander.wire.call(self.stream, ECHO, b"here", OTHER))
        async with asyncio.timeout(WAIT_S):
            assert (await self.bystander.status(self.stream))["grpc-status"] == "0"
        self.stream += 2

    async def through(self, attack: Awaitable[Any]) -> Any:
        """Be served all the while; what came of the attack."""
        running = asyncio.ensure_future(attack)
        async with asyncio.timeout(3 * WAIT_S):
            while not running.done():
                await self.is_served()
        await self.is_served()
        return await running

    async def dial(self, *, hello: bool = True) -> Peer:
        """Another connection."""
        return await Peer.dial(self.port, hello=hello)


async def besieged_server() -> Besieged:
    """A server with a bystander."""
    told: list[tuple[str, dict[str, Any]]] = []
    methods = {ECHO: echo, LARGE: large, HEALTH: echo, DEAF: deaf}
    server = GrpcServer(methods, admit, LIMITS, tell=lambda event, **about: told.append((event, about)))
    port = (await server.start("127.0.0.1", 0))[1]
    bystander = await Peer.dial(port)
    await bystander.send(frame(frames.WINDOW_UPDATE, payload=frames.U32.pack(1 << 30)))
    return Besieged(server, port, bystander, told=told)


async def given_back(siege: Besieged) -> None:
    """Nothing is left of anybody but the bystander; of him nothing either once he has gone."""
    await siege.bystander.close()
    await siege.server.close(5)
    assert (siege.server.calls, siege.server.ledger.promised, siege.server.strangers_cost) == (0, 0, 0)


@pytest.fixture
async def siege() -> AsyncIterator[Besieged]:
    found = await besieged_server()
    yield found
    await given_back(found)


def many_headers(count: int, size: int) -> list[tuple[str, str]]:
    return [(f"x-{i}", "y" * size) for i in range(count)]


def continuation_flood(wire: Wire, key: tuple[str, str]) -> bytes:
    return frame(frames.HEADERS, 0, 1, wire.block(ECHO, key)[:5]) + frame(frames.CONTINUATION, 0, 1, b"") * 10_000


def rapid_reset(wire: Wire, key: tuple[str, str]) -> bytes:
    reset = frames.U32.pack(frames.CANCEL)
    numbers = range(1, 20_001, 2)
    return b"".join(wire.headers(n, ECHO, key) + frame(frames.RST_STREAM, 0, n, reset) for n in numbers)


def header_bomb(wire: Wire, key: tuple[str, str]) -> bytes:
    name = "x" * 20
    seed = wire.block(ECHO, key, (name, "y" * 3800))
    return frame(frames.HEADERS, 4, 1, seed) + frame(
        frames.HEADERS, 4, 3, wire.encoder.encode([(name, "y" * 3800)]) * 60
    )


def empty_frames(wire: Wire, key: tuple[str, str]) -> bytes:
    return wire.headers(1, DEAF, KEY) + frame(frames.DATA, 0, 1) * 50_000


ENDED_BY_CODE: dict[str, tuple[Callable[[Wire, tuple[str, str]], bytes], int]] = {
    "continuation flood": (continuation_flood, frames.ENHANCE_YOUR_CALM),
    "rapid reset": (rapid_reset, frames.ENHANCE_YOUR_CALM),
    "header bomb": (header_bomb, frames.ENHANCE_YOUR_CALM),
    "empty frames": (empty_frames, frames.ENHANCE_YOUR_CALM),
    "pings": (lambda wire, key: frame(frames.PING, payload=bytes(8)) * 50_000, frames.ENHANCE_YOUR_CALM),
    "settings": (lambda wire, key: frames.settings({4: 1}) * 10_000, frames.ENHANCE_YOUR_CALM),
    "priorities": (lambda wire, key: frame(frames.PRIORITY, 0, 1, bytes(5)) * 50_000, frames.ENHANCE_YOUR_CALM),
    "credit": (
        lambda wire, key: wire.headers(1, DEAF, KEY) + frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\1") * 50_000,
        frames.ENHANCE_YOUR_CALM,
    ),
    "overflowing credit": (
        lambda wire, key: frame(frames.WINDOW_UPDATE, payload=frames.U32.pack((1 << 31) - 1)) * 3,
        frames.FLOW_CONTROL_ERROR,
    ),
    "a giant frame": (lambda wire, key: b"\xff\xff\xff" + bytes(6), frames.FRAME_SIZE_ERROR),
    "more than the window": (
        lambda wire, key: wire.headers(1, DEAF, key) + wire.data(1, bytes(MIB)), frames.FLOW_CONTROL_ERROR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", [KEY, GUESS], ids=["known", "stranger"])
@pytest.mark.parametrize("name", ENDED_BY_CODE)
async def test_who_floods_is_told_why_and_ended(siege: Besieged, name: str, key: tuple[str, str]) -> None:
    make, code = ENDED_BY_CODE[name]

    async def attack() -> None:
        peer = await siege.dial()
        sending = asyncio.create_task(peer.send(make(peer.wire, key)))
        found = await peer.rest()
        await sending
        await peer.close()
        goodbyes = codes(found)
        if name == "more than the window":
            # nothing of a stranger's body is kept, so there is no window to be full
            told = codes(found, frames.RST_STREAM)[0]
            assert told == code or (key is GUESS and told == frames.NO_ERROR)
        else:
            # a peer that goes on sending after the goodbye may lose it with the connection
            assert goodbyes in ([code], []), goodbyes
            causes = [about.get("code") for event, about in siege.told if event == "http2.broken"]
            assert causes[:1] == [code]

    await siege.through(attack())


@pytest.mark.parametrize("greeting", [b"", b"PRI", frames.PREFACE, frames.PREFACE + b"\0\0\x06\4\0\0", b"hello"])
async def test_a_stranger_who_says_little_is_closed_in_time(siege: Besieged, greeting: bytes) -> None:
    async def attack() -> None:
        peers = [await siege.dial(hello=False) for _ in range(20)]
        for peer in peers:
            await peer.send(greeting)
        for peer in peers:
            await peer.rest()
            await peer.close()

    await siege.through(attack())
    assert len(siege.server.connections) == 1


async def test_strangers_who_keep_asking_for_health_are_served_and_bounded(siege: Besieged) -> None:
    async def visit(size: int) -> str:
        peer = await siege.dial()
        await peer.send(peer.wire.call(1, HEALTH, bytes(size)))
        status = (await peer.status(1))["grpc-status"]
        await peer.close()
        return status

    async def attack() -> list[str]:
        return list(await asyncio.gather(*(visit(size) for size in (0, 10, 4096, 4097, 10_000) * 20)))

    found = await siege.through(attack())
    assert found == ["0", "0", "0", "8", "8"] * 20


async def test_too_many_strangers_push_out_the_oldest_and_no_one_else(siege: Besieged) -> None:
    async def attack() -> None:
        peers = [await siege.dial() for _ in range(300)]
        assert len(siege.server.strangers) <= LIMITS.strangers_bytes_max // 32_768
        newest = peers[-1]
        await newest.send(newest.wire.call(1, ECHO, b"x", KEY))
        assert (await newest.status(1))["grpc-status"] == "0"
        for peer in peers:
            await peer.close()

    await siege.through(attack())


@pytest.mark.parametrize("count", [150, 3000])
async def test_thousands_of_streams_are_refused_beyond_the_limit(siege: Besieged, count: int) -> None:
    async def attack(key: tuple[str, str], method: str) -> list[int]:
        peer = await siege.dial()
        await peer.send(b"".join(peer.wire.headers(n, method, key) for n in range(1, 2 * count + 1, 2)))
        ended = [each async for each in _ends(peer, count - (LIMITS.streams_max if key is KEY else 0))]
        await peer.close()
        return ended

    refused = await siege.through(attack(KEY, DEAF))
    assert set(refused) <= {frames.REFUSED_STREAM, -frames.ENHANCE_YOUR_CALM}
    await siege.through(attack(GUESS, DEAF))


async def _ends(peer: Peer, count: int) -> AsyncIterator[int]:
    """How calls end, up to so many, or the connection does."""
    while count and (found := await peer.frame()) is not None:
        if found.kind == frames.RST_STREAM or (found.kind == frames.HEADERS and found.ends):
            count -= 1
        if found.kind == frames.RST_STREAM:
            yield found.number
        if found.kind == frames.GOAWAY:
            yield -found.number


@pytest.mark.parametrize("size", [MIB + 1, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize(("key", "status"), [(KEY, "8"), (GUESS, "16")])
async def test_giant_length_prefixes_cost_nothing(
    siege: Besieged, size: int, key: tuple[str, str], status: str
) -> None:
    async def attack() -> None:
        peer = await siege.dial()
        for n in range(1, 101, 2):
            await peer.send(peer.wire.headers(n, ECHO, key) + peer.wire.data(n, b"\0" + size.to_bytes(4) + bytes(500)))
            assert (await peer.status(n))["grpc-status"] == status
        await peer.close()

    await siege.through(attack())
    assert siege.held < MIB


@pytest.mark.parametrize(("key", "status"), [(KEY, "8"), (GUESS, "16")])
async def test_gzip_bombs_are_not_unpacked(siege: Besieged, key: tuple[str, str], status: str) -> None:
    bomb = gzip.compress(bytes(100 * MIB))

    async def attack() -> None:
        peer = await siege.dial()
        packed = peer.wire.headers(1, ECHO, key, ("grpc-encoding", "gzip")) + peer.wire.data(
            1, message(bomb, 1)[:16_000]
        )
        await peer.send(packed)
        if key is KEY:
            await peer.until(frames.WINDOW_UPDATE)
            await peer.until(frames.WINDOW_UPDATE)
            await peer.send(peer.wire.data(1, message(bomb, 1)[16_000:], end=True))
        assert (await peer.status(1))["grpc-status"] == status
        await peer.close()

    await siege.through(attack())
    assert siege.held < 2 * MIB


async def test_half_messages_end_in_time_and_give_back_their_room(siege: Besieged) -> None:
    async def attack() -> None:
        peer = await siege.dial()
        numbers = range(1, 101, 2)
        for n in numbers:
            half = message(bytes(MIB // 2))[: 10_000 + n]
            await peer.send(peer.wire.headers(n, ECHO, KEY) + peer.wire.data(n, half))
            if n == 1:
                await peer.until(frames.WINDOW_UPDATE)
        ended: dict[int, str] = {}
        while len(ended) < len(numbers):
            block = await peer.until(frames.HEADERS)
            ended[block.stream] = peer.wire.fields(block)["grpc-status"]
        assert set(ended.values()) == {str(int(Status.DEADLINE_EXCEEDED))}
        await peer.close()

    await siege.through(attack())
    assert siege.held <= LIMITS.connection_buffer_max + 100 * 16_384 + MIB


async def test_calls_without_a_message_end_in_time(siege: Besieged) -> None:
    async def attack() -> None:
        peer = await siege.dial()
        await peer.send(b"".join(peer.wire.headers(n, ECHO, KEY) for n in range(1, 101, 2)))
        for _ in range(50):
            assert peer.wire.fields(await peer.until(frames.HEADERS))["grpc-status"] == "4"
        await peer.close()

    await siege.through(attack())


async def test_answers_that_no_window_lets_out_are_given_up(siege: Besieged) -> None:
    async def attack() -> None:
        peer = await siege.dial(hello=False)
        await peer.send(peer.wire.hello({frames.INITIAL_WINDOW_SIZE: 0}) + frames.SETTINGS_ACK)
        await peer.send(b"".join(peer.wire.call(n, LARGE, b"x", KEY) for n in range(1, 101, 2)))
        ended: set[int] = set()
        while len(ended) < 50:
            found = await peer.until(frames.HEADERS, frames.RST_STREAM)
            if found.kind == frames.RST_STREAM or found.ends:
                ended.add(found.stream)
        await peer.close()

    await siege.through(attack())
    assert siege.held < 8 * MIB


async def test_a_window_opened_byte_by_byte_harms_nobody(siege: Besieged) -> None:
    async def attack() -> None:
        peer = await siege.dial(hello=False)
        await peer.send(peer.wire.hello({frames.INITIAL_WINDOW_SIZE: 1}) + frames.SETTINGS_ACK)
        await peer.send(peer.wire.call(1, LARGE, b"x", KEY))
        while (found := await peer.until(frames.DATA, frames.RST_STREAM, frames.HEADERS)).kind != frames.RST_STREAM:
            if found.kind == frames.HEADERS and found.ends:
                break
            if found.kind == frames.DATA:
                await peer.send(frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"))
        await peer.close()

    await siege.through(attack())


@pytest.mark.parametrize(("method", "key"), [(LARGE, KEY), (ECHO, GUESS), ("/no/method", GUESS)])
async def test_who_never_reads_is_cut_off(siege: Besieged, method: str, key: tuple[str, str]) -> None:
    async def attack() -> None:
        peer = await siege.dial(hello=False)
        hello = peer.wire.hello({frames.INITIAL_WINDOW_SIZE: (1 << 31) - 1})
        await peer.send(hello + frames.SETTINGS_ACK + frame(frames.WINDOW_UPDATE, payload=frames.U32.pack(1 << 30)))
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio has no other word for it
        number = 1
        while not peer.writer.transport.is_closing() and len(siege.server.connections) > 1 and number < 400_000:
            await peer.send(b"".join(peer.wire.call(n, method, b"x", key) for n in range(number, number + 20, 2)))
            number += 20
            await asyncio.sleep(0)
        await peer.close()

    await siege.through(attack())


async def test_tiny_messages_that_nobody_reads_stay_small(siege: Besieged) -> None:
    async def attack() -> None:
        peer = await siege.dial()
        for n in range(1, 101, 2):
            await peer.send(peer.wire.headers(n, DEAF, KEY) + peer.wire.data(n, message(b"") * 3000))
            if n == 1:
                await peer.until(frames.WINDOW_UPDATE)
        await peer.send(peer.wire.call(101, ECHO, b"x", KEY))
        assert (await peer.status(101))["grpc-status"] == "0"
        await peer.close()

    await siege.through(attack())
    assert siege.held < 4 * MIB


async def test_too_many_calls_are_refused_and_the_rest_goes_on(siege: Besieged) -> None:
    peers = [await siege.dial() for _ in range(6)]
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def listen(peer: Peer) -> None:
        while True:
            await refused.put(peer.wire.fields(await peer.until(frames.HEADERS))["grpc-status"])

    for peer in peers:
        await peer.send(b"".join(peer.wire.headers(n, DEAF, KEY, end=True) for n in range(1, 199, 2)))
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        listening = [tasks.create_task(listen(peer)) for peer in peers]
        found = [await refused.get() for _ in range(6 * 99 - LIMITS.calls_max // 2)]
        for each in listening:
            each.cancel()
    assert set(found) == {str(int(Status.RESOURCE_EXHAUSTED))}
    assert siege.server.calls == LIMITS.calls_max // 2, "one caller has no more than half"
    await siege.is_served()
    for peer in peers:
        await peer.close()
    await eventually(lambda: len(siege.server.connections) == 1)


small = st.integers(0, 9)
methods = st.sampled_from([ECHO, LARGE, HEALTH, DEAF, "/no", ""])
kinds = st.tuples(st.integers(0, 11), st.integers(0, 255), small, st.binary(max_size=40))
calls = st.tuples(methods, st.binary(max_size=3000), st.sampled_from([KEY, GUESS]))
bodies = st.tuples(small, st.binary(max_size=2000), st.booleans())
steps = st.lists(
    st.one_of(
        st.tuples(st.just("raw"), st.binary(max_size=60)),
        st.tuples(st.just("frame"), kinds),
        st.tuples(st.just("call"), calls),
        st.tuples(st.just("body"), bodies),
    ),
    max_size=25,
)


def bytes_of(wire: Wire, number: int, kind: str, what: Any) -> bytes:
    """One step of a generated peer."""
    if kind == "raw":
        raw: bytes = what
        return raw
    if kind == "frame":
        return frame(*what)
    if kind == "call":
        method, data, key = what
        return wire.call(number, method, data, key)
    stream, body, end = what
    return wire.data(stream, body, end=end)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=4))
def test_whatever_peers_send_others_are_served(peers: list[list[tuple[str, Any]]]) -> None:
    async def attack(siege: Besieged, plan: list[tuple[str, Any]]) -> None:
        peer = await siege.dial()
        sent = b"".join(bytes_of(peer.wire, 2 * i + 1, kind, what) for i, (kind, what) in enumerate(plan))
        await peer.send(sent)
        peer.writer.write_eof()
        await peer.rest()
        await peer.close()

    async def run() -> None:
        siege = await besieged_server()
        for plan in peers:
            await siege.through(attack(siege, plan))
        assert not [about for event, about in siege.told if event == "http2.failed"]
        await given_back(siege)

    asyncio.run(run())


async def test_half_a_handshake_is_counted_and_ended(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    chain = authority.issue_for_a_server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(chain)
    limits = Http2Limits(connections_max=20, auth_timeout_s=1)
    server = GrpcServer({ECHO: echo}, admit, limits, context)
    port = (await server.start("127.0.0.1", 0))[1]
    halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
    halves[0][1].write(b"\x16\x03\x01\x02")
    async with asyncio.timeout(WAIT_S):
        for reader, writer in halves:
            with contextlib.suppress(OSError):
                assert await reader.read() == b""
            writer.close()
    ours = ssl.create_default_context(cafile=str(authority.path))
    ours.set_alpn_protocols(["h2"])
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=ours))
    await peer.send(peer.wire.hello() + peer.wire.call(1, ECHO, b"x", KEY))
    assert (await peer.status(1))["grpc-status"] == "0"
    await peer.close()
    ours.set_alpn_protocols(["http/1.1"])
    for refused in (ours, _old(authority)):
        assert await _first_byte(port, refused) == b""
    await server.close(5)
    assert server.held == 0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_half_handshakes_make_room_for_who_means_it(tmp_path: Path, run: Callable[[Any], Any]) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue_for_a_server())

    async def besiege() -> None:
        server = GrpcServer({ECHO: echo}, admit, Http2Limits(auth_timeout_s=WAIT_S), context)
        port = (await server.start("127.0.0.1", 0))[1]
        halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(HANDSHAKES_MAX)]
        for _, writer in halves:
            writer.write(b"\x16\x03\x01")
        ours = ssl.create_default_context(cafile=str(authority.path))
        ours.set_alpn_protocols(["h2"])
        async with asyncio.timeout(WAIT_S):
            for _ in range(20):
                peer = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=ours))
                await peer.send(peer.wire.hello() + peer.wire.call(1, ECHO, b"x", KEY))
                assert (await peer.status(1))["grpc-status"] == "0"
                await peer.close()
            with contextlib.suppress(OSError):
                assert await halves[0][0].read() == b""
        for _, writer in halves:
            writer.close()
        await server.close(5)
        assert not server.held

    run(besiege())


async def _first_byte(port: int, context: ssl.SSLContext) -> bytes:
    """What the server says first over this TLS; nothing if it would not have it."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        found = await reader.read(1)
        writer.close()
    except OSError:
        return b""
    return found


def _old(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context
