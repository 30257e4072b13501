"""Runs an ASGI application on uvicorn inside our own event loop: our signals, our sockets, our stop.

Knows nothing of what the application does.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.auth import Identity
from headrace.config import Address, TlsSection
from headrace.http2 import common_name
from headrace.server.doors import REVOKED
from headrace.server.tls import server_context

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEAD_SIZE_MAX = 32768
HEAD_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 30
CONNECTIONS_MAX = 512
STOP_TIMEOUT_S = 5
DATE_EVERY_S = 1.0
log = logging.getLogger("headrace.http")


class HttpServer:
    """An application being served at `address`, the one really bound."""

    def __init__(self, server: "_Server", task: "asyncio.Task[None]", address: Address) -> None:
        self.address = address
        self._server = server
        self._task = task

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """Cut off connections with a request in hand, or a certificate, by which its peer would not get in any more."""
        for connection in self._server.connections():
            connection.revoke(still_valid)

    async def stop(self) -> None:
        """Refuse newcomers, let requests in hand finish, and return when all is closed."""
        self._server.leave()
        await self._task


async def serve_http(app: "ASGIApp", address: Address, tls: TlsSection | None = None) -> HttpServer:
    """Serve the application; returns once it is listening.

    It finds its `Peer` in the scope as "headrace.peer".
    Raises OSError when the address cannot be bound, TlsError when the certificate cannot be used.
    """
    context = server_context(tls) if tls is not None else None
    listener = await _bind(address)
    config = uvicorn.Config(
        app,
        http=_Patience,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=HEAD_SIZE_MAX,
        ssl_context_factory=(lambda _config, _default: context) if context is not None else None,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    listening = asyncio.create_task(server.listening.wait())
    await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        listening.cancel()
        await task
    host, port = listener.getsockname()[:2]
    return HttpServer(server, task, Address(host, port))


class Peer:
    """Whoever is at the other end of a connection: the common name of its certificate, and who asks at the moment."""

    __slots__ = ("asking", "certificate")

    def __init__(self, certificate: str | None) -> None:
        self.certificate = certificate
        self.asking: list[Identity] = []


class _Server(uvicorn.Server):
    """A server that leaves signals to the process that embeds it, says when it listens, and is told when to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._leaving = asyncio.Event()

    def connections(self) -> "list[_Patience]":
        """Everybody who is connected."""
        return [each for each in self.server_state.connections if isinstance(each, _Patience)]

    def leave(self) -> None:
        """Stop, in good order."""
        self.should_exit = True
        self._leaving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Keep the date of replies right until told to stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), DATE_EVERY_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse newcomers, wait for requests in hand, not for long, and cut off the rest.

        As uvicorn does it, only that it sleeps a tenth of a second first, whether anybody is there or not.
        """
        for listening in self.servers:
            listening.close()
        for listener in sockets or ():
            listener.close()
        connections = self.connections()
        for connection in connections:
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                for connection in connections:
                    await connection.lost.wait()
                if self.server_state.tasks:
                    await asyncio.wait(self.server_state.tasks)
        for task in self.server_state.tasks:
            task.cancel()


class _Patience(H11Protocol):
    """HTTP/1.1 for peers that send a whole request head in time; the rest is cut off."""

    _head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer that owes a request head from now on."""
        self.lost = asyncio.Event()
        self.peer = Peer(common_name(transport.get_extra_info("peercert")))
        self.app = _introduced(self.app, self.peer)
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Part of a request, or all of it."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self.lost.set()
        super().connection_lost(exc)
        self._forget()

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """Cut the peer off if somebody asks by it who would not get in any more."""
        if not all(map(still_valid, self.peer.asking)):
            log.warning("http.aborted", extra={"cause": REVOKED})
            self.transport.abort()

    def on_response_complete(self) -> None:
        """The reply is out; the keep-alive timer watches over the peer now."""
        super().on_response_complete()
        self._forget()

    def _watch(self) -> None:
        """Begin to wait when the peer owes the rest of a head; stop when a request is in hand."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._head_deadline is None and self.timeout_keep_alive_task is None:
            self._head_deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _forget(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None


def _introduced(app: Any, peer: Peer) -> Any:
    """The application, told who is connected."""

    async def introduced(scope: Any, receive: Any, send: Any) -> None:
        """Say so in the scope."""
        scope["headrace.peer"] = peer
        await app(scope, receive, send)

    return introduced


async def _bind(address: Address) -> socket.socket:
    """A listening socket that knows its protocol: on connections that do not, asyncio lets small writes wait."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    made = socket.create_server(where[:2], family=family, backlog=1024)
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())
    listener.setblocking(False)
    return listener
