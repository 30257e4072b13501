"""Fujin's streams over TCP and TLS 1.3, the client's side: one stream a connection."""

import asyncio
import ssl
from pathlib import Path

from headrace.protocols.fujin.streams import ConnectionLost, Security
from headrace.quic.certificates import CertificateFileError

READ_SIZE = 1 << 18
UNREAD_MAX = 1 << 19


class TlsTransport:
    """An address to connect to, once for every stream."""

    def __init__(self, host: str, port: int, security: Security) -> None:
        self._host = host
        self._port = port
        self._context = _context(security)
        self._server_name = security.server_name or host
        self._streams: set[TlsStream] = set()
        self._first: TlsStream | None = None
        self._over = asyncio.Event()

    @classmethod
    async def connect(cls, host: str, port: int, security: Security) -> "TlsTransport":
        """Returns when the first connection stands; the first stream will use it.

        Raises OSError, CertificateFileError or ConnectionLost.
        """
        transport = cls(host, port, security)
        transport._first = await transport._connect()
        return transport

    async def open_stream(self, *, alone: bool = False) -> "TlsStream":
        """A connection of its own for each stream, whether it is to be alone or not."""
        if self._over.is_set():
            raise ConnectionLost("closed")
        first, self._first = self._first, None
        return first if first is not None and not first.is_over else await self._connect()

    async def accept_stream(self) -> None:
        """Brokers cannot open streams here; returns once the transport is closed."""
        await self._over.wait()

    async def close(self) -> None:
        """Close every connection; what was written just before leaves first."""
        self._over.set()
        streams, self._streams = self._streams, set()
        for stream in streams:
            await stream.hang_up()

    async def _connect(self) -> "TlsStream":
        try:
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._context, server_hostname=self._server_name, limit=UNREAD_MAX
            )
        except ssl.SSLError as error:
            raise ConnectionLost(f"TLS: {error.reason or error}") from None
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None
        self._streams = {stream for stream in self._streams if not stream.is_over}
        stream = TlsStream(reader, writer)
        self._streams.add(stream)
        return stream


class TlsStream:
    """One connection as a stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parts: list[bytes] = []
        self._closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed, by whomever."""
        return self._closed or self._reader.at_eof() or self._writer.is_closing()

    def write(self, data: bytes) -> None:
        """Send with everything else of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    async def drain(self) -> None:
        """Wait until the broker has read enough."""
        self._flush()
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None
        if self._closed:
            raise ConnectionLost("closed")

    async def read(self) -> bytes:
        """What has come."""
        try:
            data = await self._reader.read(READ_SIZE)
        except OSError as error:
            raise ConnectionLost(str(error)) from None
        if not data and self._closed:
            raise ConnectionLost("closed")
        return data

    def write_eof(self) -> None:
        """Nothing to tell: a TLS connection ends both sides at once, and the broker ends it after a DISCONNECT."""

    def close(self) -> None:
        """Hang up."""
        if not self._closed:
            self._closed = True
            self._flush()
            self._writer.close()

    async def hang_up(self) -> None:
        """Close, and return when that is done."""
        self.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            if not self._writer.is_closing():
                self._writer.write(parts[0] if len(parts) == 1 else b"".join(parts))


def _context(security: Security) -> ssl.SSLContext:
    """TLS 1.3 as the client wants it. Raises CertificateFileError naming the file."""
    try:
        context = ssl.create_default_context(cafile=str(security.ca) if security.ca else None)
    except FileNotFoundError:
        raise CertificateFileError(f"{security.ca}: no such file") from None
    except OSError as error:
        raise CertificateFileError(f"{security.ca}: not a file of certificates: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if security.cert:
        key = Path(security.key or security.cert)
        try:
            context.load_cert_chain(security.cert, key)
        except FileNotFoundError:
            missing = security.cert if not Path(security.cert).exists() else key
            raise CertificateFileError(f"{missing}: no such file") from None
        except OSError as error:
            names = f"{security.cert}, {key}"
            raise CertificateFileError(f"{names}: not a certificate chain with its private key: {error}") from None
    if not security.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
