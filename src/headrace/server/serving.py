"""Runs an ASGI application on uvicorn inside our own event loop: our signals, our sockets, our stop.

Knows nothing of what the application does, but that it may say whom it has recognised: until then a connection is a
stranger's, and strangers are few. Each costs at most a request's head and what one read brings.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.auth import Identity
from headrace.config import Address, LimitsSection, TlsSection
from headrace.http2 import common_name
from headrace.server.doors import REVOKED
from headrace.server.lobby import Lobby, Room, Visit
from headrace.server.tls import server_context

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEAD_SIZE_MAX = 32768
HEAD_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 60.0
KEEP_ALIVE_S = 30
STRANGERS_MAX = 256
STRANGERS_TLS_MAX = 128
MOMENT_S = 0.1
LOOK_AGAIN_S = 0.01
STOP_TIMEOUT_S = 5
DATE_EVERY_S = 1.0
ACCEPT_AGAIN_S = 0.1
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


async def serve_http(
    app: "ASGIApp", address: Address, tls: TlsSection | None = None, limits: LimitsSection | None = None
) -> HttpServer:
    """Serve the application; returns once it is listening.

    It finds its `Peer` in the scope as "headrace.peer".
    Raises OSError when the address cannot be bound, TlsError when the certificate cannot be used.
    """
    context = server_context(tls) if tls is not None else None
    listener = await _bind(address)
    bounds = limits or LimitsSection()
    room = Room(
        strangers_max=STRANGERS_MAX if context is None else STRANGERS_TLS_MAX,
        moment_s=MOMENT_S,
        callers_max=bounds.connections_max,
        callers_per_address_max=bounds.connections_per_address_max,
    )
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
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=HEAD_SIZE_MAX,
    )
    server = _Server(config, listener, context, Lobby(room))
    task = asyncio.create_task(server.serve(), name="http")
    listening = asyncio.create_task(server.listening.wait())
    await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        listening.cancel()
        await task
    host, port = listener.getsockname()[:2]
    return HttpServer(server, task, Address(host, port))


class Peer:
    """Whoever is at the other end of a connection: the common name of its certificate, and who asks at the moment.

    `recognise` is called once somebody showed a key; whether there is room for one more who did.
    """

    __slots__ = ("asking", "certificate", "recognise")

    def __init__(self, certificate: str | None, recognise: Callable[[], bool]) -> None:
        self.certificate = certificate
        self.recognise = recognise
        self.asking: list[Identity] = []


class _Server(uvicorn.Server):
    """A server that leaves signals to the process that embeds it, says when it listens, and is told when to stop."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, tls: ssl.SSLContext | None, lobby: Lobby
    ) -> None:
        super().__init__(config)
        self.servers = []
        self.listening = asyncio.Event()
        self._leaving = asyncio.Event()
        self._listener = listener
        self._tls = tls
        self._lobby = lobby
        self._greetings: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

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
        """Begin to listen, and say so. Every connection is taken in by ourselves, before TLS or HTTP is spoken."""
        self._accepting = asyncio.create_task(self._accept(), name="http.accept")
        self.started = True
        self.listening.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while (wait_s := self._lobby.opens_at() - loop.time()) > 0:  # noqa: ASYNC110 - who leaves tells nobody
                await asyncio.sleep(min(wait_s, LOOK_AGAIN_S))
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                if self.should_exit:
                    return
                log.warning("http.accept_failed", extra={"cause": str(error)})
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            visit = self._lobby.enter(peer[0], loop.time(), partial(_shut, connection))
            greeting = asyncio.create_task(self._greet(connection, visit))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)

    async def _greet(self, connection: socket.socket, visit: Visit) -> None:
        """Make the connection speak HTTP, over TLS if so configured; a stranger may be sent away at any time."""

        def _protocol() -> _Patience:
            patience = _Patience(self.config, self.server_state, {})
            patience.welcome(self._lobby, visit)
            return patience

        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                _protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HEAD_TIMEOUT_S if self._tls is not None else None,
            )
        except OSError:
            self._lobby.gone(visit)
        except asyncio.CancelledError:
            _shut(connection)
            raise

    async def main_loop(self) -> None:
        """Keep the date of replies right until told to stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), DATE_EVERY_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse newcomers, wait for requests in hand, not for long, and cut off the rest.

        As uvicorn does it, only that it sleeps a tenth of a second first, whether anybody is there or not.
        """
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait({self._accepting})
        self._listener.close()
        for greeting in self._greetings:
            greeting.cancel()
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
    """HTTP/1.1 for peers that send a whole request head in time and read what they are sent; others are cut off."""

    _head_deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None

    def welcome(self, lobby: Lobby, visit: Visit) -> None:
        """Whose connection this is going to be."""
        self._lobby = lobby
        self._visit = visit

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer that owes a request head from now on."""
        self.lost = asyncio.Event()
        certificate = common_name(transport.get_extra_info("peercert"))
        self.peer = Peer(certificate, partial(self._lobby.recognise, self._visit))
        self.app = _introduced(self.app, self.peer)
        super().connection_made(transport)
        self._watch()

    def pause_writing(self) -> None:
        """The peer does not read: for a while it may be slow."""
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer has read nearly everything."""
        super().resume_writing()
        self._read_up()

    def data_received(self, data: bytes) -> None:
        """Part of a request, or all of it."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self.lost.set()
        self._lobby.gone(self._visit)
        super().connection_lost(exc)
        self._forget()
        self._read_up()

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

    def _read_up(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

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


def _shut(connection: socket.socket) -> None:
    """End a connection whose transport, if it has one yet, will find out by itself."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


async def _bind(address: Address) -> socket.socket:
    """A listening socket that knows its protocol: on connections that do not, asyncio lets small writes wait."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    made = socket.create_server(where[:2], family=family, backlog=1024)
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())
    listener.setblocking(False)
    return listener
