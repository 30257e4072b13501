"""uvicorn inside our loop: real sockets, our signals, a clean stop."""

import asyncio
import contextlib
import datetime
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from headrace.auth import Identity, Keyring
from headrace.config import Address, HttpSection, LimitsSection, TlsSection
from headrace.server import serving
from headrace.server.dev_certificate import dev_certificate
from headrace.server.guard import Guard
from headrace.server.serving import HttpServer, serve_http
from headrace.server.tls import TlsError, client_context
from tests.harness.eventually import eventually

LOOPBACK = Address("127.0.0.1", 0)


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("hello")(scope, receive, send)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_a_free_port_is_taken_and_told(host: str) -> None:
    server = await serve_http(hello, Address(host, 0))
    try:
        assert server.address.port > 0
        async with httpx.AsyncClient(verify=False) as http:
            assert (await http.get(f"http://{server.address}/")).text == "hello"
    finally:
        await server.stop()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(*server.address)


async def test_it_speaks_tls(tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path, now=datetime.datetime.now(datetime.UTC))
    server = await serve_http(hello, LOOPBACK, TlsSection(cert=str(cert), key=str(key)))
    try:
        async with httpx.AsyncClient(verify=client_context(cert)) as http:
            assert (await http.get(f"https://{server.address}/")).text == "hello"
    finally:
        await server.stop()


async def test_signal_handlers_are_left_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = await serve_http(hello, LOOPBACK)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop()


async def test_what_cannot_be_served_says_so(tmp_path: Path) -> None:
    server = await serve_http(hello, LOOPBACK)
    with pytest.raises(OSError, match="in use"):
        await serve_http(hello, server.address)
    await server.stop()
    with pytest.raises(TlsError):
        await serve_http(hello, LOOPBACK, TlsSection(cert=str(tmp_path / "no"), key=str(tmp_path / "no")))


async def test_a_stop_lets_the_request_in_hand_finish() -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await go.wait()
        await hello(scope, receive, send)

    server = await serve_http(slow, LOOPBACK)
    async with httpx.AsyncClient(verify=False) as http:
        request = asyncio.create_task(http.get(f"http://{server.address}/"))
        await entered.wait()
        stopping = asyncio.create_task(server.stop())
        go.set()
        assert (await request).text == "hello"
        await stopping


async def test_a_caller_who_would_not_get_in_any_more_is_cut_off_and_what_was_asked_is_done() -> None:
    entered: list[str] = []
    go, finished = asyncio.Event(), asyncio.Event()

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        owner = scope["path"].strip("/")
        scope["headrace.peer"].asking = [Identity(owner)]
        entered.append(owner)
        await go.wait()
        if owner == "eve":
            finished.set()
        await hello(scope, receive, send)

    server = await serve_http(asked, LOOPBACK)
    async with httpx.AsyncClient(verify=False) as http:
        eve, ann = (asyncio.create_task(http.get(f"http://{server.address}/{name}")) for name in ("eve", "ann"))
        await eventually(lambda: len(entered) == 2)
        server.revoke(lambda identity: identity.owner != "eve")
        with pytest.raises(httpx.HTTPError):
            await asyncio.wait_for(eve, 10)
        go.set()
        await asyncio.wait_for(finished.wait(), 10)
        assert (await ann).text == "hello"
    await server.stop()


async def test_a_stop_lets_a_request_finish_whose_caller_has_gone() -> None:
    entered, go, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def thorough(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await go.wait()
        finished.set()

    server = await serve_http(thorough, LOOPBACK)
    _, writer = await asyncio.open_connection(*server.address)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await entered.wait()
    writer.close()
    await writer.wait_closed()
    stopping = asyncio.create_task(server.stop())
    await asyncio.wait({stopping}, timeout=0.05)
    assert not stopping.done()
    go.set()
    await stopping
    assert finished.is_set()


async def test_a_stop_waits_only_so_long_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, cut_off = asyncio.Event(), asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut_off.set()

    monkeypatch.setattr(serving, "STOP_TIMEOUT_S", 0.01)
    server = await serve_http(endless, LOOPBACK)
    async with httpx.AsyncClient(verify=False) as http:
        request = asyncio.create_task(http.get(f"http://{server.address}/"))
        await entered.wait()
        await server.stop()
        await cut_off.wait()
        with contextlib.suppress(httpx.TransportError):
            assert (await request).status_code == 500


async def test_replies_do_not_wait_for_the_peer_to_confirm_their_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[asyncio.Transport] = []

    class Watched(serving._Patience):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            made.append(transport)
            super().connection_made(transport)

    monkeypatch.setattr(serving, "_Patience", Watched)
    server = await serve_http(hello, LOOPBACK)
    async with httpx.AsyncClient(verify=False) as http:
        await http.get(f"http://{server.address}/")
        (transport,) = made
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await server.stop()


@pytest.mark.parametrize("beginning", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_peer_that_never_finishes_its_request_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(serving, "HEAD_TIMEOUT_S", 0.01)
    server = await serve_http(hello, LOOPBACK)
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(beginning)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await server.stop()


async def test_a_second_request_has_to_be_finished_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_TIMEOUT_S", 0.01)
    server = await serve_http(hello, LOOPBACK)
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
    writer.write(b"GET / HT")
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await server.stop()


@contextlib.asynccontextmanager
async def guarded(monkeypatch: pytest.MonkeyPatch, app: Any = hello, **bounds: float) -> AsyncIterator[HttpServer]:
    """A server with a guard in front and smaller bounds than usual."""
    for name, value in bounds.items():
        monkeypatch.setattr(serving, name, value)
    keyring = Keyring.from_settings(["a-key"])
    server = await serve_http(Guard(app, lambda: keyring, HttpSection()), LOOPBACK)
    try:
        yield server
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 30_000,
        b"POST /api/topics HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n" + b"z" * 100_000,
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_strangers_are_few_and_keep_neither_probes_nor_callers_out(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    async with guarded(monkeypatch, STRANGERS_MAX=4, MOMENT_S=0.0) as server:
        url = f"http://{server.address}"
        key = {"authorization": "Bearer a-key"}
        async with httpx.AsyncClient(verify=False) as caller:
            assert (await caller.get(f"{url}/api", headers=key)).text == "hello"
            crowd = [await asyncio.open_connection(*server.address) for _ in range(40)]
            for _, writer in crowd:
                writer.write(said)
            async with httpx.AsyncClient(verify=False) as probe:
                assert (await probe.get(f"{url}/healthz")).status_code == 200
            assert (await caller.get(f"{url}/api", headers=key)).text == "hello"
            assert server._server._lobby.strangers <= 4
            await eventually(lambda: len(serving_now(server)) <= 4 + 1)
            for _, writer in crowd:
                writer.close()


def serving_now(server: HttpServer) -> list[Any]:
    """The connections the server holds."""
    return server._server.connections()


async def test_callers_over_the_limit_are_told_and_probes_are_not_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = Keyring.from_settings(["a-key"])
    guard = Guard(hello, lambda: keyring, HttpSection())
    server = await serve_http(guard, LOOPBACK, None, LimitsSection(connections_max=1))
    url, key = f"http://{server.address}", {"authorization": "Bearer a-key"}
    async with httpx.AsyncClient(verify=False) as first, httpx.AsyncClient(verify=False) as second:
        assert (await first.get(f"{url}/api", headers=key)).status_code == 200
        refused = await second.get(f"{url}/api", headers=key)
        assert (refused.status_code, "too many connections" in refused.text) == (503, True)
        assert (await second.get(f"{url}/healthz")).status_code == 200
        assert (await first.get(f"{url}/api", headers=key)).status_code == 200
    await server.stop()


async def test_a_caller_that_does_not_read_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(b"x" * (32 << 20))(scope, receive, send)

    async with guarded(monkeypatch, large, WRITE_TIMEOUT_S=0.05) as server:
        reader, writer = await asyncio.open_connection(*server.address, limit=1024)
        writer.write(b"GET /api HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a-key\r\n\r\n")
        assert (await reader.read(1)) == b"H"
        (connection,) = serving_now(server)
        await connection.lost.wait()
        writer.close()


async def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()

    monkeypatch.setattr("headrace.server.guard.BODY_TOTAL_S", 0.05)
    async with guarded(monkeypatch, reads) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"POST /api HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a-key\r\ncontent-length: 9999\r\n\r\nx")
        assert b"408" in await reader.readline()
        writer.close()
