"""A gRPC server on the event loop that runs it: listening, TLS, who is connected, and what all of them may cost.

What a peer is promised and what it holds is counted here; what it is told is `connection`'s matter.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, cast

from headrace.http2 import frames
from headrace.http2.call import Handler
from headrace.http2.connection import Connection
from headrace.http2.ledger import Ledger
from headrace.http2.limits import Http2Limits
from headrace.http2.status import GrpcError, Metadata, Status

ARENA_SIZE = 256 * 1024
BACKLOG = 1024
ACCEPT_AGAIN_S = 0.1
STRANGER_COST, TLS_COST = 32_768, 65_536
"""What a connection costs before it has sent a byte, roughly, and what TLS adds."""
HANDSHAKES_MAX = 256
"""TLS handshakes at a time: 16 MiB. Who has been at it for the longest makes room for the next."""

Admit = Callable[[str, Metadata, str, str | None], Any]
"""Who makes a call: method, metadata, the peer's address and its certificate's common name in, an identity out.

It is asked when the headers are there and nothing else. The identity must be hashable. None lets a stranger have the
call, and leaves him one. Raising GrpcError or BrokerError ends the call with that status.
"""


class Tell(Protocol):
    """Takes note of what happened: a stable name and what there is to know about it."""

    def __call__(self, event: str, **about: Any) -> None:
        """Note it."""


def _silent(event: str, **about: Any) -> None:
    """Note nothing."""


class GrpcServer:
    """Serves `methods`, each by its path, to whom `admit` lets in. `tls` is the server's own from then on.

    All of it belongs to one event loop: the one that `start` runs on.
    """

    def __init__(
        self,
        methods: Mapping[str, Handler],
        admit: Admit,
        limits: Http2Limits,
        tls: ssl.SSLContext | None = None,
        *,
        tell: Tell = _silent,
        connected: Callable[[int], None] = lambda change: None,
    ) -> None:
        self.methods = dict(methods)
        self.admit = admit
        self.limits = limits
        self.tell = tell
        self.ledger = Ledger(limits.buffer_max, limits.buffer_max // 2)
        self.arena = bytearray(ARENA_SIZE)
        self.arena_view = memoryview(self.arena)
        self.connections: dict[Connection, None] = {}
        self.strangers: dict[Connection, int] = {}
        self.strangers_cost = 0
        self._calls = Ledger(limits.calls_max, limits.calls_max // 2)
        self._connected = connected
        self._per_address: Counter[str] = Counter()
        self._total = 0
        self._arriving: dict[asyncio.Task[None], None] = {}
        self.stranger_cost = STRANGER_COST if tls is None else STRANGER_COST + TLS_COST
        self._deserted = asyncio.Event()
        self._deserted.set()
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address really bound.

        Raises OSError when it cannot be bound.
        """
        loop = asyncio.get_running_loop()
        listeners = await _bound(host, port)
        self._accepting = [loop.create_task(self._accept(each), name="http2-accept") for each in listeners]
        address = listeners[0].getsockname()
        return address[0], address[1]

    def stop_listening(self) -> None:
        """Refuse newcomers; those who are there go on."""
        for accepting in self._accepting:
            accepting.cancel()

    async def close(self, timeout_s: float) -> None:
        """Take no new calls, wait for those there are, and cut off what is left when the time is up."""
        self.stop_listening()
        for task in list(self._arriving):
            task.cancel()
        for connection in list(self.connections):
            connection.drain()
        await asyncio.gather(*self._accepting, *self._arriving, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), timeout_s)
        for connection in list(self.connections):
            connection.abort("the server stops")

    def revoke(self, still_valid: Callable[[Any], bool], cause: str = "revoked") -> None:
        """End what belongs to identities no longer valid: their calls at once, connections that are only theirs."""
        for connection in list(self.connections):
            connection.calls.revoke(still_valid, cause)

    @property
    def held(self) -> int:
        """Bytes of requests here or promised to be taken in, and of answers not sent, by our own count."""
        return self.ledger.promised + sum(connection.session.held for connection in self.connections)

    # who is there

    def admit_address(self, address: str) -> bool:
        """Count somebody in by his address, unless that would pass a limit."""
        loopback = address.startswith("127.") or address == "::1"
        if self._total >= self.limits.connections_max:
            return False
        if not loopback and self._per_address[address] >= self.limits.connections_per_address_max:
            return False
        self._per_address[address] += 1
        self._total += 1
        return True

    def dismiss_address(self, address: str) -> None:
        """Count somebody out."""
        self._total -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    async def _accept(self, listener: socket.socket) -> None:
        """Let newcomers come one by one and have each counted before his handshake begins.

        The loop's own server would count them when it is over, and `start_tls` loses what comes before it.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    raw, _ = await loop.sock_accept(listener)
                    address = str(raw.getpeername()[0])
                except OSError as error:
                    self.tell("http2.refused", peer="", cause=str(error))
                    await asyncio.sleep(ACCEPT_AGAIN_S)
                    continue
                if not self.admit_address(address):
                    self.tell("http2.refused", peer=address, cause="too many connections")
                    raw.close()
                    continue
                if len(self._arriving) >= HANDSHAKES_MAX:
                    next(iter(self._arriving)).cancel()
                task = loop.create_task(self._begin(raw, address))
                self._arriving[task] = None
                task.add_done_callback(self._arriving.pop)
                await asyncio.sleep(0)  # those who are there have their turn between two newcomers
        finally:
            listener.close()

    async def _begin(self, raw: socket.socket, address: str) -> None:
        """Begin with somebody who has been counted: TLS, where it is spoken, then HTTP/2."""
        connection = Connection(self, address)
        newcomer = connection if self._tls is None else _Certified(connection)
        timeout_s = None if self._tls is None else self.limits.auth_timeout_s
        try:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: newcomer, raw, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            self.tell("http2.refused", peer=address, cause=str(error) or type(error).__name__)
            raw.close()
        if connection not in self.connections and not connection.closing:
            self.dismiss_address(address)

    def arrived(self, connection: Connection) -> None:
        """A connection begins, a stranger's."""
        self.connections[connection] = None
        self.strangers[connection] = 0
        self._deserted.clear()
        self._connected(1)
        self.weigh(connection, self.stranger_cost)

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self.known(connection)
        self.dismiss_address(connection.peer)
        self._connected(-1)
        if not self.connections:
            self._deserted.set()

    def known(self, connection: Connection) -> None:
        """A stranger is none any longer."""
        self.strangers_cost -= self.strangers.pop(connection, 0)

    def weigh(self, connection: Connection, cost: int) -> None:
        """What a stranger costs by now. Too much, and it has to go; too much of all, and whoever is one for longest."""
        self.strangers_cost += cost - self.strangers[connection]
        self.strangers[connection] = cost
        if cost > self.limits.stranger_bytes_max:
            connection.leave("too much for a stranger", frames.ENHANCE_YOUR_CALM)
        while self.strangers_cost > self.limits.strangers_bytes_max:
            oldest = next(iter(self.strangers))
            self.known(oldest)
            oldest.abort("too many strangers")

    @property
    def calls(self) -> int:
        """How many calls are under way."""
        return self._calls.promised

    def begin_call(self, identity: Hashable) -> None:
        """Count a call in; strangers count as one.

        Raises GrpcError when there are too many, all together or this caller's.
        """
        if not self._calls.take(identity, 1):
            raise GrpcError(Status.RESOURCE_EXHAUSTED, f"too many calls at a time: {self._calls.holders[identity]}")

    def end_call(self, identity: Hashable) -> None:
        """Count a call out."""
        self._calls.give(identity, 1)


class _Certified(asyncio.Protocol):
    """A newcomer whose handshake is over."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, if he asks for HTTP/2."""
        tunnel = transport.get_extra_info("ssl_object")
        if tunnel is None or tunnel.selected_alpn_protocol() != "h2":
            cast(asyncio.Transport, transport).abort()
            return
        self._connection.certificate_name = common_name(transport.get_extra_info("peercert"))
        cast(asyncio.Transport, transport).set_protocol(self._connection)
        self._connection.connection_made(transport)


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of a host, at one port, as the loop's own server would make them.

    Raises OSError.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            at = port or listeners[0].getsockname()[1]
            listener.bind((address[0], at, *address[2:]))
            listener.listen(BACKLOG)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The subject's common name in what `SSLObject.getpeercert()` returns; None without one, or with several."""
    relative_names = (certificate or {}).get("subject", ())
    found = [str(value) for pairs in relative_names for name, value in pairs if name == "commonName"]
    return found[0] or None if len(found) == 1 else None
