"""The server against gRPC's own client: every shape of call, every way to end."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from headrace.http2 import Call, GrpcError, GrpcServer, Http2Limits, Metadata, Status
from headrace.model.errors import BrokerError, Code

MIB = 1 << 20
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # not in the stubs
KNOWN = (("authorization", "Bearer right"),)
UNBOUNDED: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


async def echo(call: Call) -> None:
    """Everything back."""
    call.initial_metadata = {"x-method": call.method}
    while (data := await call.read()) is not None:
        await call.write(data)


async def in_pieces(call: Call) -> None:
    """The same, each message in pieces."""
    while (data := await call.read()) is not None:
        view = memoryview(data)
        await call.write(b"", view[:1], view[1:1000], view[1000:])


async def mirror(call: Call) -> None:
    """The metadata, and what came of it."""
    call.trailing_metadata = {"x-seen-bin": call.metadata["x-sent-bin"], "x-text": str(call.metadata["x-text"])}
    await call.read()
    await call.write(call.identity.encode())


async def refuse(call: Call) -> None:
    """Say no."""
    raise GrpcError(Status.ABORTED, "nö: 100 %\n", {"x-why": "because"})


async def refuse_as_broker(call: Call) -> None:
    """Say no in the broker's words."""
    raise BrokerError(Code.UNKNOWN, "no such thing")


async def break_down(call: Call) -> None:
    """Have a bug."""
    raise ZeroDivisionError


async def count(call: Call) -> None:
    """Read to the end, then answer once."""
    size = 0
    while (data := await call.read()) is not None:
        size += len(data)
    await call.write(b"%d" % size)


async def many(call: Call) -> None:
    """Ten thousand answers to one question."""
    data = await call.read()
    assert data is not None
    for _ in range(10_000):
        await call.write(data)


async def never(call: Call) -> None:
    """Wait for the end of the world."""
    await asyncio.get_running_loop().create_future()


METHODS = {
    f"/t.T/{handler.__name__}": handler
    for handler in (echo, in_pieces, mirror, refuse, refuse_as_broker, break_down, count, many, never)
}


def admit(method: str, metadata: Metadata, peer: str, certificate: str | None) -> str:
    """One key is right."""
    if metadata.get("authorization") != "Bearer right":
        raise GrpcError(Status.UNAUTHENTICATED, "the key is not known")
    return "somebody"


class Running:
    """A server, and a client of it."""

    def __init__(self, server: GrpcServer, port: int) -> None:
        self.server = server
        self.port = port
        self.channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=UNBOUNDED)

    async def ask(self, name: str, data: bytes = b"", **options: Any) -> bytes:
        """A unary call."""
        answer: bytes = await self.channel.unary_unary(f"/t.T/{name}")(data, **{"metadata": KNOWN} | options)
        return answer

    def nothing_is_left(self) -> bool:
        """Whether every call and every promise is given back."""
        return not self.server.calls and not self.server.ledger.promised


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    server = GrpcServer(METHODS, admit, Http2Limits(message_max=8 * MIB))
    running = Running(server, (await server.start("127.0.0.1", 0))[1])
    yield running
    await running.channel.close()
    await server.close(5)
    assert running.nothing_is_left()
    assert not server.connections


@pytest.mark.parametrize("name", ["echo", "in_pieces"])
@pytest.mark.parametrize("size", [0, 1, 5, 16_378, 16_379, 16_380, 65_530, 65_536, 300_000, MIB, 8 * MIB])
async def test_messages_of_every_size_come_back(running: Running, name: str, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert await running.ask(name, data) == data


async def test_no_size_waits_for_credit_that_never_comes(running: Running) -> None:
    """A message that is a little more than the window, alone or behind others on its stream, needs a little credit."""
    window = running.server.limits.stream_window
    sizes = [window * part // 16 + more for part in range(1, 40) for more in (-5, 0, 1)]
    async with asyncio.timeout(60):
        for size in sizes:
            assert len(await running.ask("echo", bytes(size))) == size
        total = b"%d" % sum(sizes)
        for order in (sizes, sizes[::-1], sizes[::2] + sizes[1::2]):
            pieces = [bytes(size) for size in order]
            answer = await running.channel.stream_unary("/t.T/count")(iter(pieces), metadata=KNOWN)
            assert answer == total


async def test_many_calls_at_once_each_get_their_own(running: Running) -> None:
    sent = [b"%d" % i * (i * 97 % 5000) for i in range(500)]
    assert await asyncio.gather(*(running.ask("echo", data) for data in sent)) == sent


async def test_big_calls_at_once_have_room_one_after_the_other() -> None:
    limits = Http2Limits(message_max=2 * MIB, connection_buffer_max=3 * MIB, buffer_max=4 * MIB)
    server = GrpcServer(METHODS, admit, limits)
    running = Running(server, (await server.start("127.0.0.1", 0))[1])
    sent = [bytes([i]) * (2 * MIB - i) for i in range(40)]
    assert await asyncio.gather(*(running.ask("echo", data) for data in sent)) == sent
    assert running.nothing_is_left()
    await running.channel.close()
    await server.close(5)


async def test_streams_both_ways(running: Running) -> None:
    call = running.channel.stream_stream("/t.T/echo")(metadata=KNOWN)
    for i in range(1000):
        await call.write(b"%d" % i * (i % 50))
        assert await call.read() == b"%d" % i * (i % 50)
    await call.done_writing()
    assert await call.read() is EOF
    assert await call.code() is grpc.StatusCode.OK
    assert ("x-method", "/t.T/echo") in tuple(await call.initial_metadata())


async def test_a_long_upload_and_a_long_answer(running: Running) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for i in range(300):
            yield bytes(100_000 + i)

    answer = await running.channel.stream_unary("/t.T/count")(chunks(), metadata=KNOWN)
    assert int(answer) == sum(100_000 + i for i in range(300))
    found = [data async for data in running.channel.unary_stream("/t.T/many")(bytes(3000), metadata=KNOWN)]
    assert len(found) == 10_000
    assert set(map(len, found)) == {3000}


async def test_metadata_both_ways(running: Running) -> None:
    sent = (*KNOWN, ("x-sent-bin", bytes(range(256))), ("x-text", "a"), ("x-text", "b"))
    call = running.channel.unary_unary("/t.T/mirror")(b"", metadata=sent)
    assert await call == b"somebody"
    assert dict(await call.trailing_metadata()) == {"x-seen-bin": bytes(range(256)), "x-text": "a,b"}


@pytest.mark.parametrize(
    ("name", "code", "details"),
    [
        ("refuse", grpc.StatusCode.ABORTED, "nö: 100 %\n"),
        ("refuse_as_broker", grpc.StatusCode.NOT_FOUND, "no such thing"),
        ("break_down", grpc.StatusCode.INTERNAL, "internal error"),
        ("nobody_has", grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    ],
)
async def test_errors_are_statuses(running: Running, name: str, code: grpc.StatusCode, details: str) -> None:
    for data in (b"", bytes(2 * MIB)):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await running.ask(name, data)
        assert (raised.value.code(), raised.value.details()) == (code, details)
    assert await running.ask("echo", b"still here") == b"still here"


async def test_strangers_are_turned_away_before_their_message(running: Running) -> None:
    for metadata in ((), (("authorization", "Bearer wrong"),)):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await running.ask("echo", bytes(8 * MIB), metadata=metadata)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert raised.value.details() == "the key is not known"


async def test_a_message_too_large_is_refused_by_its_prefix(running: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await running.ask("echo", bytes(8 * MIB + 1))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert raised.value.details() == f"Received message larger than max ({8 * MIB + 1} vs. {8 * MIB})"


async def test_a_deadline_ends_the_handler(running: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await running.ask("never", timeout=0.2)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await running.ask("echo")
    assert running.nothing_is_left()


async def test_a_call_given_up_ends_the_handler(running: Running) -> None:
    call = running.channel.stream_stream("/t.T/never")(metadata=KNOWN)
    await call.write(b"x")
    await running.ask("echo")
    assert running.server.calls == 1
    call.cancel()
    await running.ask("echo")
    assert running.nothing_is_left()


async def test_gzip_is_unpacked_within_the_bound() -> None:
    server = GrpcServer(METHODS, admit, Http2Limits(message_max=MIB))
    port = (await server.start("127.0.0.1", 0))[1]
    address = f"127.0.0.1:{port}"
    packing: Any = grpc.aio.insecure_channel(address, options=UNBOUNDED, compression=grpc.Compression.Gzip)
    async with packing as channel:
        ask = channel.unary_unary("/t.T/echo")
        assert await ask(bytes(MIB), metadata=KNOWN) == bytes(MIB)
        assert len(gzip.compress(bytes(200 * MIB), 1)) < MIB
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(bytes(200 * MIB), metadata=KNOWN)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(bytes(200 * MIB))
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await server.close(5)


async def test_revoked_identities_lose_their_calls_at_once(running: Running) -> None:
    call = running.channel.stream_stream("/t.T/echo")(metadata=KNOWN)
    await call.write(b"x")
    assert await call.read() == b"x"
    running.server.revoke(lambda identity: identity == "somebody")
    await call.write(b"y")
    assert await call.read() == b"y"
    running.server.revoke(lambda identity: identity != "somebody")
    assert running.nothing_is_left()
    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_closing_waits_for_calls_and_takes_no_new_ones(running: Running) -> None:
    call = running.channel.stream_stream("/t.T/echo")(metadata=KNOWN)
    await call.write(b"x")
    assert await call.read() == b"x"
    closing = asyncio.create_task(running.server.close(20))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await running.ask("echo")
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    await call.write(b"y")
    assert await call.read() == b"y"
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    await closing
