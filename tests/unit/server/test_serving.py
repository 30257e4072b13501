"""uvicorn inside our loop: real sockets, our signals, a clean stop."""

import asyncio
import contextlib
import datetime
import signal
import socket
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from headrace.config import Address, TlsSection
from headrace.server import serving
from headrace.server.dev_certificate import dev_certificate
from headrace.server.serving import serve_http
from headrace.server.tls import TlsError, client_context

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
