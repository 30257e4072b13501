"""The Fujin doors put together from the configuration: QUIC, and TLS over TCP for networks that drop UDP."""

import datetime
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headrace.config import Address, Config, ConfigError, TlsSection
from headrace.protocols.fujin import Dialect, FujinSession, FujinSettings, WriteHeaders
from headrace.quic.certificates import Authorities, CertificateFileError
from headrace.quic.connection import Certificate, configuration
from headrace.server.conversation import Terms
from headrace.server.dev_certificate import dev_certificate
from headrace.server.doors import Entrance, check_callers
from headrace.server.engine import Engine
from headrace.server.quic import QuicLimits, QuicListener
from headrace.server.quic_peer import PeerTerms
from headrace.server.quic_stream import StreamTerms
from headrace.server.tcp import TcpLimits, TcpListener
from headrace.server.tls import TlsError, server_context

ALPN = "fujin"
ORIGINAL_CLIENT = (
    "a writer's id was a string, as the original Fujin client has it: it misreads replies to ACK, NACK and FETCH "
    'and messages that are empty, unless fujin.dialect = "reference"'
)

log = logging.getLogger("headrace.fujin")


def quic_door(config: Config, address: Address, engine: Engine, terms: Terms) -> QuicListener:
    """Fujin over QUIC. Raises ConfigError, or TlsError naming a certificate file."""
    check_callers(config, "fujin", address)
    tls = certificate(config, "fujin", address)
    fujin, limits = config.fujin, config.limits
    try:
        made = configuration(
            protocol=ALPN,
            is_client=False,
            certificate=Certificate(cert=tls.cert, key=tls.key),
            datagram_max=fujin.datagram_max,
            idle_timeout_s=fujin.ping_interval_s + fujin.ping_timeout_s + 1,
        )
        authorities = Authorities.load(tls.client_ca) if tls.client_ca else None
    except CertificateFileError as error:
        raise TlsError(str(error)) from None
    streams = StreamTerms(
        engine=engine, terms=terms, new_session=sessions(config), write_timeout_s=limits.write_timeout_s
    )
    peers = PeerTerms(
        streams=streams,
        entrance=Entrance.of(config, "fujin", address, terms.keyring),
        ping_interval_s=fujin.ping_interval_s,
        ping_timeout_s=fujin.ping_timeout_s,
        handshake_timeout_s=limits.auth_timeout_s,
    )
    bounds = QuicLimits(
        connections_max=limits.connections_max,
        connections_per_address_max=limits.connections_per_address_max,
        stop_timeout_s=fujin.stop_timeout_s,
    )
    return QuicListener("fujin", engine, made, authorities, peers, bounds)


def tls_door(config: Config, address: Address, engine: Engine, terms: Terms, bounds: TcpLimits) -> TcpListener:
    """Fujin over TCP, one stream a connection. Raises ConfigError, or TlsError naming a certificate file."""
    check_callers(config, "fujin_tcp", address)
    tls = server_context(certificate(config, "fujin_tcp", address))
    return TcpListener(
        "fujin_tcp",
        engine,
        sessions(config),
        terms,
        bounds,
        tls,
        Entrance.of(config, "fujin_tcp", address, terms.keyring).identify,
        stop_timeout_s=config.fujin.stop_timeout_s,
    )


def sessions(config: Config) -> Callable[[], FujinSession]:
    """What makes the sessions of both doors. Raises ConfigError."""
    fujin = config.fujin
    try:
        settings = FujinSettings(
            dialect=Dialect(fujin.dialect),
            write_headers=WriteHeaders(fujin.write_headers) if fujin.write_headers else None,
            fetch_wait_ms=fujin.fetch_wait_ms,
            push_window=fujin.push_window,
            message_size_max=fujin.message_max,
            headers_size_max=fujin.headers_max,
            transaction_size_max=fujin.transaction_max,
            routes=fujin.routes,
        )
    except ValueError as error:
        key, _, detail = str(error).partition(": ")
        raise ConfigError(f"fujin.{key}", detail) from None
    return partial(FujinSession, settings, _Notice().original_met)


def certificate(config: Config, name: str, address: Address) -> TlsSection:
    """The configured certificate; without one, on loopback, the self-signed one of the data directory.

    Raises ConfigError.
    """
    if config.tls.cert:
        return config.tls
    if not address.is_loopback:
        raise ConfigError(f"listen.{name}", f"{address} can be reached from other machines: set tls.cert and tls.key")
    cert, key = dev_certificate(Path(config.data_dir), now=datetime.datetime.now(datetime.UTC))
    return TlsSection(cert=str(cert), key=str(key))


class _Notice:
    """Says once what a client that is answered in the wrong dialect cannot say: it waits, or misreads."""

    def __init__(self) -> None:
        self._said = False

    def original_met(self) -> None:
        """The client that existed before the document writes here."""
        if not self._said:
            self._said = True
            log.warning("fujin.original_client", extra={"session": "fujin", "cause": ORIGINAL_CLIENT})
