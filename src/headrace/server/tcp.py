"""TCP: bytes in and out of conversations, with and without TLS.

All connections share one receive arena: what a read brings is carried out before the next read begins, and what a
session keeps it copies. Only the unfinished frame at the end of a read is a connection's own; a big one is received
into mapped memory, which costs nothing until bytes really arrive.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from mmap import mmap
from typing import cast

from headrace.auth import Identity
from headrace.model.errors import BrokerError, Code
from headrace.protocols.spec import Session
from headrace.server.conversation import Conversation, Terms
from headrace.server.doors import REVOKED
from headrace.server.engine import Engine

ARENA_SIZE = 1 << 20
BIG_FRAME = 1 << 16
STRANGERS_BYTES_MAX = 48 << 20
"""What may lie here unfinished of all who have not said who they are: a client's AUTH comes in one piece."""
LINGER_S = 2.0
LINGER_BYTES_MAX = 4 << 20
"""How long, and for how much, a peer's words are read to be dropped so that it gets our last ones: a socket closed with
bytes unread takes back what it sent."""

SILENCE_S, PROBE_EVERY_S, PROBES = 15, 5, 3
"""A peer that has vanished holds messages: silent for so long it is probed, and so many times in vain it is gone."""

log = logging.getLogger("headrace.tcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpLimits:
    """Bounds on what peers may cost."""

    connections_max: int
    connections_per_address_max: int
    write_buffer_max: int
    write_timeout_s: float
    auth_timeout_s: float


class TcpListener:
    """One address that speaks one protocol.

    `identify` tells who is there where the protocol itself does not ask, `certify` whose certificate was shown where it
    does; both raise BrokerError for whoever may not come in. Peers of a protocol in which the server says that it
    stops get `stop_timeout_s` to take leave; of the others nothing more is read then.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        new_session: Callable[[], Session],
        terms: Terms,
        limits: TcpLimits,
        tls: ssl.SSLContext | None = None,
        identify: Callable[[asyncio.BaseTransport], Identity] | None = None,
        stop_timeout_s: float = 0.0,
        *,
        certify: Callable[[asyncio.BaseTransport], Identity | None] | None = None,
    ) -> None:
        self.name = name
        self.stop_timeout_s = stop_timeout_s
        self.identify = identify
        self.certify = certify
        self.engine = engine
        self.terms = terms
        self.limits = limits
        self.arena = bytearray(ARENA_SIZE)
        self.arena_view = memoryview(self.arena)
        self.connections: dict[Connection, None] = {}
        self.held_for_strangers = 0
        self._per_address: Counter[str] = Counter()
        self._ids = count(1)
        self._new_session = new_session
        self.half_open = tls is None
        self.draining = False
        self._deserted = asyncio.Event()
        self._deserted.set()
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address really bound."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accept, host, port, ssl=self._tls, backlog=1024,
            ssl_handshake_timeout=self.limits.auth_timeout_s if self._tls else None,
        )  # fmt: skip
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def stop_listening(self) -> None:
        """Refuse newcomers, tell everybody; what was asked for before is still answered."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()

    async def close(self, timeout_s: float) -> None:
        """Close every connection once what was written to it is sent, or cut it off when that takes too long."""
        if self.stop_timeout_s:
            await self._desertion(self.stop_timeout_s)
        for connection in list(self.connections):
            connection.close()
        await self._desertion(timeout_s)
        for connection in list(self.connections):
            connection.abort("does not read")

    @property
    def deaf(self) -> bool:
        """Whether nothing more is read from anybody."""
        return self.draining and not self.stop_timeout_s

    async def _desertion(self, timeout_s: float) -> None:
        """Return when everybody has left, or when that takes too long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), timeout_s)

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """Cut off whoever came in by a key or certificate that is not good any more."""
        for connection in list(self.connections):
            connection.revoke(still_valid)

    def admit(self, connection: "Connection", address: str) -> bool:
        """Count a connection in, unless that would pass a limit."""
        here = self._per_address[address]
        loopback = address.startswith("127.") or address == "::1"
        if len(self.connections) >= self.limits.connections_max:
            return False
        if not loopback and here >= self.limits.connections_per_address_max:
            return False
        self._per_address[address] += 1
        self.connections[connection] = None
        self._deserted.clear()
        self.engine.connections += 1
        return True

    def dismiss(self, connection: "Connection", address: str) -> None:
        """Count a connection out."""
        if connection in self.connections:
            del self.connections[connection]
            self.engine.connections -= 1
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]
            if not self.connections:
                self._deserted.set()

    def _accept(self) -> asyncio.BaseProtocol:
        return Connection(self, f"{self.name}-{next(self._ids)}", self._new_session())


class Connection(asyncio.BufferedProtocol):
    """One peer: its transport, its unfinished frame, its conversation."""

    def __init__(self, listener: TcpListener, name: str, session: Session) -> None:
        self.name = name
        self._listener = listener
        self._session = session
        self._conversation = Conversation(listener.engine, session, self, listener.terms)
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._certificate: Identity | None = None
        self._rest = b""
        self._held = 0
        self._frame: mmap | None = None
        self._frame_filled = 0
        self._reading = True
        self._congested = False
        self._ended = False
        self._dropped: int | None = None
        self._auth_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._linger_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer or turn it away."""
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if peer else ""
        limits = self._listener.limits
        self._conversation.address = self._address
        try:
            if self._listener.draining or not self._listener.admit(self, self._address):
                raise BrokerError(Code.LIMIT, "too many connections")
            if self._listener.certify is not None:
                self._certificate = self._listener.certify(transport)
            if self._listener.identify is not None:
                self._conversation.admit(self._listener.identify(transport))
        except BrokerError as error:
            log.warning("tcp.refused", extra={"session": self.name, "peer": self._address, "cause": error.detail})
            self._conversation.closed()
            transport.abort()
            return
        transport.set_write_buffer_limits(high=limits.write_buffer_max)
        _keep_alive(transport.get_extra_info("socket"))
        if self._listener.identify is None:
            self._auth_deadline = self._abort_in(limits.auth_timeout_s, "not authenticated in time")
        log.debug("tcp.opened", extra={"session": self.name, "peer": self._address})

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """Cut the peer off if what it came in by is not good any more."""
        shown = (self._certificate, self._conversation.identity)
        if not all(still_valid(identity) for identity in shown if identity is not None):
            self._conversation.closed()
            self.abort(REVOKED)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for the next read: behind the unfinished frame."""
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        rest = len(self._rest)
        if not rest:
            return self._listener.arena_view
        self._listener.arena[:rest] = self._rest
        return self._listener.arena_view[rest:]

    def buffer_updated(self, nbytes: int) -> None:
        """Carry out what has arrived, or drop what nobody listens to any more."""
        if self._dropped is not None:
            self._drop(nbytes)
            return
        if self._frame is None:
            filled, self._rest = len(self._rest) + nbytes, b""
            self._present(self._listener.arena_view[:filled])
            return
        self._frame_filled += nbytes
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            self._present(memoryview(frame))

    def eof_received(self) -> bool:
        """The peer says no more: what it was promised is still sent."""
        self._ended = True
        if self._dropped is not None:
            return False
        self._conversation.ended()
        return self._conversation.busy and self._listener.half_open

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer."""
        for deadline in (self._auth_deadline, self._write_deadline, self._linger_deadline):
            if deadline is not None:
                deadline.cancel()
        self._hold(0)
        self._conversation.closed()
        self._listener.dismiss(self, self._address)
        log.debug("tcp.closed", extra={"session": self.name, "cause": str(exc or "")})

    def pause_writing(self) -> None:
        """The peer is behind with reading: stall until it caught up, drop it if it never does."""
        self._congested = True
        self._write_deadline = self._abort_in(self._listener.limits.write_timeout_s, "does not read")

    def resume_writing(self) -> None:
        """The peer caught up."""
        self._congested = False
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        self._conversation.resume()
        self.proceed()

    def write(self, data: bytes) -> None:
        """Send to the peer."""
        assert self._transport is not None
        if self._dropped is None and not self._transport.is_closing():
            self._transport.write(data)

    def congested(self) -> bool:
        """Whether the peer is behind with reading."""
        return self._congested

    def close(self) -> None:
        """Close once everything written is sent; a peer that has not said its last word gets time to read ours."""
        assert self._transport is not None
        if self._ended or self._listener.deaf or not self._transport.can_write_eof():
            self._transport.close()
        elif self._dropped is None and not self._transport.is_closing():
            self._dropped = 0
            self._rest, self._frame = b"", None
            self._transport.write_eof()
            self._linger_deadline = asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
            self._read(True)

    def _drop(self, nbytes: int) -> None:
        """Read no further than a bounded way behind our last word."""
        assert self._transport is not None
        assert self._dropped is not None
        self._dropped += nbytes
        if self._dropped > LINGER_BYTES_MAX:
            self._transport.close()

    def drain(self) -> None:
        """Tell the peer that the server is about to stop, and take no more requests unless it may take leave."""
        self._conversation.drain()
        self._read(self._reading)

    def proceed(self) -> None:
        """Present the rest again; read on unless the conversation stalled."""
        if self._ended and not self._conversation.busy:
            self.close()
        if self._reading or self._conversation.closing:
            return
        rest, self._rest = self._rest, b""
        if self._frame is None:
            self._present(memoryview(rest))
        elif not self._conversation.stalled:
            self._read(True)

    def _present(self, view: memoryview) -> None:
        done = self._conversation.receive(view)
        if self._auth_deadline is not None and self._conversation.identity is not None:
            self._auth_deadline.cancel()
            self._auth_deadline = None
        if self._conversation.closing:
            return
        stalled = self._conversation.stalled
        if done < len(view):
            self._keep(view[done:], stalled)
        stranger = self._conversation.identity is None
        if (stranger or self._held) and not self._hold(len(self._rest) if stranger else 0):
            self.abort("strangers have too much unfinished")
            return
        self._read(not stalled)

    def _hold(self, size: int) -> bool:
        """Count what is kept for a stranger; whether all strangers together stay within their bound."""
        listener = self._listener
        listener.held_for_strangers += size - self._held
        self._held = size
        return not size or listener.held_for_strangers <= STRANGERS_BYTES_MAX

    def _keep(self, rest: memoryview, stalled: bool) -> None:
        """Put the unfinished frame by, where there is room for all of it if more is to be read."""
        wanted = 0 if stalled else self._session.bytes_wanted(rest)
        if wanted > BIG_FRAME:
            self._frame = mmap(-1, wanted)
            self._frame[: len(rest)] = rest
            self._frame_filled = len(rest)
        else:
            self._rest = bytes(rest)

    def _read(self, wanted: bool) -> None:
        assert self._transport is not None
        wanted = wanted and not self._listener.deaf
        if wanted is not self._reading:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _abort_in(self, seconds: float, cause: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.abort, cause)

    def abort(self, cause: str) -> None:
        """Cut the peer off."""
        assert self._transport is not None
        log.warning("tcp.aborted", extra={"session": self.name, "peer": self._address, "cause": cause})
        self._transport.abort()


def _keep_alive(sock: socket.socket) -> None:
    """Have the system find out about peers that vanished without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", SILENCE_S), ("TCP_KEEPINTVL", PROBE_EVERY_S), ("TCP_KEEPCNT", PROBES)):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
