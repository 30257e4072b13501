"""A qh3 connection with what this project needs besides: input that can be held back, clients asked for certificates.

The only module that touches qh3's inner names; its tests fail should a new version move them.
"""

import contextlib
import datetime
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import NetworkAddress, QuicConnection, QuicConnectionError
from qh3.quic.tls_bridge import QuicTlsBridge
from qh3.tls import CipherSuite

from headrace.quic.certificates import Authorities, CertificateFileError
from headrace.quic.handshake import ServerHandshake
from headrace.quic.headers import CONNECTION_ID_SIZE, hello

STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 8 << 20
"""Bytes a peer may send ahead of what is taken from it: the bound of what held input costs."""

logging.getLogger("quic").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate chain and its private key, as PEM files; `key` may be the same file."""

    cert: Path | str
    key: Path | str

    def load(self) -> tuple[bytes, bytes]:
        """The chain and the key, each alone and in PEM. Raises CertificateFileError naming the files."""
        try:
            chain = x509.load_pem_x509_certificates(Path(self.cert).read_bytes())
            key = serialization.load_pem_private_key(Path(self.key).read_bytes(), password=None)
            if key.public_key() != chain[0].public_key():
                raise ValueError("the key is not the certificate's")
        except FileNotFoundError as error:
            raise CertificateFileError(f"{error.filename}: no such file") from None
        except (OSError, ValueError, TypeError) as error:
            names = f"{self.cert}, {self.key}"
            raise CertificateFileError(f"{names}: not a certificate chain with its private key: {error}") from None
        pem = serialization.Encoding.PEM
        plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return b"".join(each.public_bytes(pem) for each in chain), plain


def configuration(
    *,
    protocol: str,
    is_client: bool,
    certificate: Certificate | None,
    datagram_max: int,
    idle_timeout_s: float,
    server_name: str = "",
) -> QuicConfiguration:
    """What both roles agree on with qh3. AES-128 first: machines without AES instructions are offered ChaCha20.

    Servers' certificates are checked by `Authorities` once the handshake is complete and before anything is sent.
    Raises CertificateFileError naming the files.
    """
    made = QuicConfiguration(
        alpn_protocols=[protocol],
        is_client=is_client,
        connection_id_length=CONNECTION_ID_SIZE,
        idle_timeout=idle_timeout_s,
        max_data=CONNECTION_WINDOW,
        max_stream_data=STREAM_WINDOW,
        max_datagram_size=datagram_max,
        server_name=server_name or None,
        verify_mode=ssl.CERT_NONE,
        cipher_suites=[
            CipherSuite.AES_128_GCM_SHA256,
            CipherSuite.AES_256_GCM_SHA384,
            CipherSuite.CHACHA20_POLY1305_SHA256,
        ],
    )
    if certificate is not None:
        made.load_cert_chain(*certificate.load())
    return made


class Connection(QuicConnection):
    """One QUIC connection: datagrams in, events out; time as an argument."""

    def __init__(
        self,
        *,
        configuration: QuicConfiguration,
        original_destination_connection_id: bytes | None = None,
        retry_source_connection_id: bytes | None = None,
        authorities: Authorities | None = None,
        wall_clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
            retry_source_connection_id=retry_source_connection_id,
        )
        self._authorities = authorities
        self._wall_clock = wall_clock
        self._held = False
        self._handshake: ServerHandshake | None = None

    @property
    def common_name(self) -> str | None:
        """Of the certificate the client showed; None where none was asked for."""
        return self._handshake.common_name if self._handshake is not None else None

    @property
    def over(self) -> bool:
        """Whether either side closed it, though it may still have to say so."""
        return self._close_event is not None or (self._core is not None and self._core.state in _OVER)

    @property
    def closed_with(self) -> tuple[int, str]:
        """The code and the reason it was closed with, as far as they are known."""
        event = self._close_event
        return (event.error_code, event.reason_phrase) if event is not None else (0, "")

    @property
    def peer_chain(self) -> list[bytes]:
        """The certificates the peer showed, its own first."""
        own = self.get_peercert()
        return [] if own is None else [own.public_bytes(), *(each.public_bytes() for each in self.get_issuercerts())]

    @property
    def _unproven(self) -> bool:
        """Whether this is a server whose client has not shown yet that it receives what is sent to it."""
        return not self._is_client and not self._handshake_complete

    def hold(self, held: bool) -> None:
        """Leave what arrives inside, and with it the credit for more; acknowledgements go on.

        At most CONNECTION_WINDOW bytes collect. Letting go makes their events available.
        """
        if held is not self._held:
            self._held = held
            if not held and self._core is not None:
                self._drain_core()

    def receive_datagram(self, data: bytes, addr: NetworkAddress, now: float) -> None:
        """Take one datagram in.

        Until its address is proven a client is sent at most three times what it sent (RFC 9000, 8.1). qh3 takes
        datagrams apart and does not count what is behind the last packet, where some clients put their padding; so a
        client's first packet is given to it in one piece.
        """
        head = hello(data) if self._unproven else None
        if head is None or head.token is None or not head.end or any(data[head.end :]):
            super().receive_datagram(data, addr, now)
            return
        if self._core is None:
            self._remote_addr = addr
            self._version = head.version
            self._create_core(addr, head.destination, now)
            self._create_tls(remote_source_cid=None)
        if self._require_core().receive_datagram(data, addr, now, len(data))[_AUTHENTIC]:
            self._learn_remote_source_cid(data)
        self._drain_core()

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        """What is to be sent now, each with its destination. As qh3's, without a look at each for a log nobody keeps.

        Raises QuicConnectionError.
        """
        found: list[tuple[bytes, NetworkAddress]] = []
        if self._core is None:
            return found
        poll = self._core.poll_transmit
        try:
            while (transmit := poll(now)) is not None:
                found.append((transmit[0], transmit[1]))
        except RuntimeError as error:
            if not self._unproven:
                raise QuicConnectionError(1, None, str(error)) from None
        return found

    def receive_gro_buffer(self, buffer: bytes, segment_size: int, addr: NetworkAddress, now: float) -> None:
        """Take a buffer of equal datagrams in. As qh3's, without a look at each."""
        if self._core is None or not self._handshake_complete:
            super().receive_gro_buffer(buffer, segment_size, addr, now)
        else:
            self._core.receive_gro_buffer(buffer, segment_size, addr, now)
            self._drain_core()

    def let_go(self) -> None:
        """Free what it holds now, not whenever cycles of objects are looked for. Nothing may be asked of it after."""
        if self._tls is not None:
            del self._tls.tls
        self._core = self._tls = self._handshake = None
        self._events.clear()

    def give_up_stream(self, number: int, code: int) -> None:
        """End our side of a stream at once, whatever state it is in."""
        with contextlib.suppress(ValueError, QuicConnectionError):
            self.reset_stream(number, code)

    def stop_listening_to(self, number: int, code: int) -> None:
        """Ask the peer to end its side of a stream, whatever state it is in."""
        with contextlib.suppress(ValueError, QuicConnectionError):
            self.stop_stream(number, code)

    def _drain_core(self) -> None:
        if not self._held:
            super()._drain_core()

    def _create_tls(self, remote_source_cid: bytes | None) -> QuicTlsBridge:
        bridge = super()._create_tls(remote_source_cid)
        if not self._is_client:
            self._handshake = ServerHandshake(bridge.tls, self._authorities, self._wall_clock)
            bridge.tls = self._handshake  # type: ignore[assignment]
        return bridge


_AUTHENTIC = 2
"""Where the core's report of a datagram counts packets it could decrypt."""
_OVER = frozenset({"closing", "draining", "terminated"})
