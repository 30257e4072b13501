"""Which transport an endpoint asks for: QUIC, or one TLS connection a stream where UDP does not get through."""

import asyncio
from urllib.parse import urlsplit

from headrace.model.errors import HeadraceError
from headrace.protocols.fujin.streams import ConnectionLost, Security, StreamTransport

PORT = 4848


class BadEndpoint(HeadraceError):
    """An endpoint nothing can connect to."""


async def connect(endpoint: str, security: Security | None = None, timeout_s: float = 10.0) -> StreamTransport:
    """A connection to the broker at `quic://host:port` or `tls://host:port`.

    Raises BadEndpoint, CertificateFileError for files of `security`, and ConnectionLost with the cause.
    """
    scheme, host, port = _parts(endpoint)
    security = security or Security()
    try:
        async with asyncio.timeout(timeout_s):
            if scheme == "quic":
                from headrace.protocols.fujin.transport_quic import QuicTransport

                return await QuicTransport.connect(host, port, security)
            from headrace.protocols.fujin.transport_tls import TlsTransport

            return await TlsTransport.connect(host, port, security)
    except TimeoutError:
        raise ConnectionLost(f"{endpoint}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ConnectionLost(f"{endpoint}: {error.strerror or error}") from None


def _parts(endpoint: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(endpoint)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError as error:
        raise BadEndpoint(f"{endpoint}: {error}") from None
    if scheme not in ("quic", "tls") or not host:
        raise BadEndpoint(f"{endpoint}: expected quic://host:port or tls://host:port")
    return scheme, host, PORT if port is None else port
