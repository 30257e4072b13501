"""Fujin's streams over QUIC, the client's side.

A stream nobody reads holds its connection's input back, so that the broker stops sending. That is why streams on which
the broker sends unasked get a connection of their own. Because pings come the same way as everything else, a held
connection takes a breath now and then; what a breath brings is kept up to UNREAD_MAX, and a client that does not read
even then goes unanswered until the broker drops it.
"""

import asyncio
import datetime
import ipaddress
from collections import deque
from dataclasses import dataclass

from headrace.protocols.fujin.streams import ConnectionLost, Security
from headrace.quic.certificates import Authorities, CertificateRefused
from headrace.quic.connection import Certificate, Connection, configuration
from headrace.quic.datagrams import Address, DatagramSocket, connect
from headrace.quic.link import NO_ERROR, Link
from headrace.quic.stream import Reader, Stream

ALPN = "fujin"
DATAGRAM_SIZE = 1350
IDLE_TIMEOUT_S = 30.0
HOLD_AT = 1 << 20
BREATH_S = 1.0
UNREAD_MAX = 64 << 20
BAD_CERTIFICATE = 0x100 + 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where a broker is, and how it is known."""

    address: str
    port: int
    server_name: str
    authorities: Authorities | None
    certificate: Certificate | None

    @classmethod
    def known_by(cls, security: Security, *, host: str, address: str, port: int) -> "Broker":
        """The broker that `security` describes. Raises CertificateFileError."""
        authorities = None
        if security.verify:
            authorities = Authorities.load(security.ca) if security.ca else Authorities.of_the_system()
        return cls(
            address=address,
            port=port,
            server_name=security.server_name or host,
            authorities=authorities,
            certificate=Certificate(cert=security.cert, key=security.key or security.cert) if security.cert else None,
        )

    @property
    def is_near(self) -> bool:
        """Whether it is on this machine."""
        return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback


class QuicTransport:
    """One QUIC connection to a broker, and one more for each stream that wants to be alone."""

    def __init__(self, broker: Broker, main: "QuicTransport | None" = None) -> None:
        self._broker = broker
        self._main = main or self
        self._others: set[QuicTransport] = set()
        self._link: Link | None = None
        self._socket: DatagramSocket | None = None
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._offered: deque[QuicStream] = deque()
        self._changed = asyncio.Event()
        self._openable = asyncio.Event()
        self._breath: asyncio.TimerHandle | None = None
        self.lost: ConnectionLost | None = None
        self.unread = 0

    @classmethod
    async def connect(cls, host: str, port: int, security: Security) -> "QuicTransport":
        """Returns when the handshake is complete and the broker is who it should be.

        Raises OSError, CertificateFileError or ConnectionLost.
        """
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
        transport = cls(Broker.known_by(security, host=host, address=str(found[0][4][0]), port=port))
        await transport._shake()
        return transport

    async def _shake(self) -> None:
        made = configuration(
            protocol=ALPN,
            is_client=True,
            certificate=self._broker.certificate,
            datagram_max=DATAGRAM_SIZE,
            idle_timeout_s=IDLE_TIMEOUT_S,
            server_name=self._broker.server_name,
        )
        socket = connect(self._broker.address, self._broker.port)
        peer: Address = socket.getpeername()
        self._socket = DatagramSocket(socket, received=self._received, turned=self._turned, failed=self._failed)
        connection = Connection(configuration=made)
        self._link = Link(connection, self._socket, self, connected=True)
        connection.connect(peer, self._loop.time())
        self._link.turn()
        try:
            await self._ready
        except BaseException:
            self._link.close(0)
            self._abandon()
            raise

    async def open_stream(self, *, alone: bool = False) -> "QuicStream":
        """A new stream, on a connection of its own if it is to be alone; waits while the broker allows no more."""
        if self.lost is not None or self._link is None:
            raise self.lost or ConnectionLost("not connected")
        if alone:
            return await self._open_apart()
        while not self._link.may_open:
            self._openable.clear()
            await self._openable.wait()
            if self.lost is not None:
                raise self.lost
        stream = QuicStream(self)
        stream.attach(self._link.open(stream))
        return stream

    async def _open_apart(self) -> "QuicStream":
        other = QuicTransport(self._broker, self)
        self._others.add(other)
        try:
            await other._shake()
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None
        return await other.open_stream()

    def done_with(self, stream: "QuicStream") -> None:
        """A stream was closed, and with it the connection it had to itself."""
        if self._main is not self and self._link is not None:
            self._link.close(NO_ERROR)
            self._link.turn()
            self._abandon()

    async def accept_stream(self) -> "QuicStream | None":
        """The next stream the broker opens; None once the connection is over."""
        while not self._offered:
            if self.lost is not None:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._offered.popleft()

    async def close(self) -> None:
        """Close the connection; what was written just before leaves first."""
        for other in list(self._others):
            await other.close()
        if self._link is not None and not self._link.over:
            self._link.turn()
            self._link.close(0)
            self._link.turn()
        self._abandon()

    def shaken(self, link: Link) -> None:
        """The handshake is complete: believe the broker, or leave before a word is said."""
        if self._broker.authorities is not None:
            try:
                now = datetime.datetime.now(datetime.UTC)
                self._broker.authorities.check_server(link.connection.peer_chain, self._broker.server_name, now)
            except CertificateRefused as error:
                link.close(BAD_CERTIFICATE, f"server certificate refused: {error}")
                return
        if not self._ready.done():
            self._ready.set_result(None)

    def opened(self, stream: Stream) -> Reader | None:
        """The broker opened a stream."""
        offered = QuicStream(self)
        offered.attach(stream)
        self._main._offered.append(offered)
        self._main._changed.set()
        return offered

    def closed(self, link: Link, code: int, reason: str) -> None:
        """The connection is over."""
        cause = reason or "closed by the broker"
        self.lost = ConnectionLost(f"{cause} (code {code:#x})" if code else cause)
        if not self._ready.done():
            self._ready.set_exception(self.lost)
        self._changed.set()
        self._openable.set()

    def forgotten(self, link: Link) -> None:
        """Nothing more will come."""
        self._abandon()

    def identified(self, link: Link, connection_id: bytes, valid: bool) -> None:
        """Of no interest: the socket has one connection."""

    def held(self, stream: Stream, held: bool) -> None:
        """A stream is not read, or is again."""
        assert self._link is not None
        self._link.hold(stream, held)
        if self._link.held and self._breath is None:
            self._breath = self._loop.call_later(BREATH_S, self._breathe)

    def _breathe(self) -> None:
        self._breath = None
        if self._link is not None and self._link.held:
            if self.unread <= UNREAD_MAX:
                self._link.breathe()
            self._breath = self._loop.call_later(BREATH_S, self._breathe)

    def _received(self, data: bytes, segment_size: int, address: Address) -> None:
        assert self._link is not None
        self._link.receive(data, segment_size, address)

    def _turned(self) -> None:
        assert self._link is not None
        self._link.turn()
        self._openable.set()

    def _failed(self, error: OSError) -> None:
        """Nobody listens there, or the network is gone.

        On this machine the first is the system's own word that the broker ended. Elsewhere anybody could have said so,
        and a connection that stands is over only when nothing has come for too long.
        """
        if not self._ready.done():
            self._ready.set_exception(ConnectionLost(error.strerror or str(error)))
        elif self._broker.is_near and isinstance(error, ConnectionRefusedError):
            self._loop.call_soon(self._hang_up, error.strerror or str(error))

    def _hang_up(self, cause: str) -> None:
        if self._link is not None:
            self._link.close(NO_ERROR, cause)

    def _abandon(self) -> None:
        self._main._others.discard(self)
        if self._breath is not None:
            self._breath.cancel()
        if self._socket is not None:
            self._socket.close()
        link, self._link = self._link, None
        if link is not None:
            link.abandon()


class QuicStream:
    """One stream of a QuicTransport."""

    def __init__(self, transport: QuicTransport) -> None:
        self._transport = transport
        self._stream: Stream | None = None
        self._chunks: list[bytes] = []
        self._unread = 0
        self._ended = False
        self._held = False
        self._broken: ConnectionLost | None = None
        self._arrived = asyncio.Event()
        self._roomy = asyncio.Event()

    def attach(self, stream: Stream) -> None:
        """Name the stream below; once, before anything else."""
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Send with everything else of this turn."""
        if self._broken is None:
            self._below.write(data)

    async def drain(self) -> None:
        """Wait until the broker has credit for more."""
        while self._broken is None and self._below.crowded:
            self._roomy.clear()
            await self._roomy.wait()
        if self._broken is not None:
            raise self._broken

    async def read(self) -> bytes:
        """What has come."""
        while not self._chunks:
            if self._broken is not None:
                raise self._broken
            if self._ended:
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        chunks, self._chunks = self._chunks, []
        self._read_all()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def write_eof(self) -> None:
        """End our side."""
        if self._broken is None:
            self._below.end()

    def close(self) -> None:
        """Be done with the stream."""
        if self._broken is None:
            self._below.give_up()
            self.broke("closed")
            self._transport.done_with(self)

    def received(self, data: bytes, ended: bool) -> None:
        """The link's call: bytes have come."""
        if data:
            self._chunks.append(data)
            self._unread += len(data)
            self._transport.unread += len(data)
        self._ended |= ended
        self._hold(self._unread > HOLD_AT)
        self._arrived.set()

    def relieved(self) -> None:
        """The link's call: there is room."""
        self._roomy.set()

    def broke(self, cause: str) -> None:
        """The link's call: the stream is gone."""
        self._broken = ConnectionLost(cause)
        self._read_all()
        self._arrived.set()
        self._roomy.set()

    @property
    def _below(self) -> Stream:
        assert self._stream is not None
        return self._stream

    def _read_all(self) -> None:
        self._transport.unread -= self._unread
        self._unread = 0
        self._hold(False)

    def _hold(self, held: bool) -> None:
        if held is not self._held:
            self._held = held
            self._transport.held(self._below, held)
