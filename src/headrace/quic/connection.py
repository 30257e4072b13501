"""A qh3 connection with what this project needs besides: input that can be held back, clients asked for certificates,
clients that give no connection id.

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
from qh3 import tls
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import NetworkAddress, QuicConnection, QuicConnectionError
from qh3.quic.crypto import CIPHER_SUITES, derive_key_iv_hp
from qh3.quic.tls_bridge import QuicTlsBridge
from qh3.tls import CipherSuite

from headrace.quic.certificates import Authorities, CertificateFileError
from headrace.quic.handshake import ServerHandshake
from headrace.quic.headers import CONNECTION_ID_SIZE, VERSION_1, hello
from headrace.quic.moves import Moves

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
    """One QUIC connection: datagrams in, events out; time as an argument.

    A server that has sent a client back with a Retry goes on under the id it named there. Of a `nameless_client`, one
    whose own id is empty (RFC 9000, 5.1), it must have done so: see `_create_core`.
    """

    def __init__(
        self,
        *,
        configuration: QuicConfiguration,
        original_destination_connection_id: bytes | None = None,
        retry_source_connection_id: bytes | None = None,
        nameless_client: bool = False,
        authorities: Authorities | None = None,
        wall_clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
            retry_source_connection_id=retry_source_connection_id,
        )
        assert not nameless_client or retry_source_connection_id is not None
        if retry_source_connection_id is not None:
            self.host_cid = retry_source_connection_id
        self._nameless_client = nameless_client
        self._authorities = authorities
        self._wall_clock = wall_clock
        self._held = False
        self._handshake: ServerHandshake | None = None
        self._moves: Moves | None = None

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
        if self._moved(addr):
            self._receive_elsewhere(data, len(data), addr, now)
            return
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
        if self._moves is not None and self._moves.any:
            return [(datagram, self._moves.address(name)) for datagram, name in found]
        return found

    def receive_gro_buffer(self, buffer: bytes, segment_size: int, addr: NetworkAddress, now: float) -> None:
        """Take a buffer of equal datagrams in. As qh3's, without a look at each."""
        if self._core is None or not self._handshake_complete:
            super().receive_gro_buffer(buffer, segment_size, addr, now)
        elif self._moved(addr):
            self._receive_elsewhere(buffer, segment_size, addr, now)
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

    def _moved(self, address: NetworkAddress) -> bool:
        """Whether this is a server's client that speaks from where it is not answered; it may, once it is in."""
        return self._moves is not None and self._handshake_complete and not self._moves.at_home(address)

    def _receive_elsewhere(self, data: bytes, segment_size: int, address: NetworkAddress, now: float) -> None:
        core, moves = self._require_core(), self._moves
        assert moves is not None
        name = moves.name(address, core.smoothed_rtt or 0.0, now)
        if len(data) > segment_size:
            report = core.receive_gro_buffer(data, segment_size, name, now)
        else:
            report = core.receive_datagram(data, name, now)
        if report[_AUTHENTIC]:
            moves.heard(address, name)
            moves.answered_at(core.active_path[2])
        self._drain_core()

    def _drain_core(self) -> None:
        if not self._held:
            super()._drain_core()

    def _create_core(self, remote_addr: NetworkAddress, initial_dcid: bytes, now: float) -> None:
        """Make the core; for a client without an id, one that never expects to learn it.

        qh3 derives the first keys from the id it sends to at first, and goes on sending to that until it meets another
        that is not empty. So here it is made to send to none, and given the keys that belong to the id the client
        chose. What comes for any id but its own it drops, which is why that must be the one of a Retry.
        """
        if not self._is_client:
            self._moves = Moves(remote_addr)
        if not self._nameless_client:
            super()._create_core(remote_addr, initial_dcid, now)
            return
        super()._create_core(remote_addr, b"", now)
        aead, header = (name.decode() for name in reversed(CIPHER_SUITES[CipherSuite.AES_128_GCM_SHA256]))
        for direction, secret in zip(("receive", "send"), initial_secrets(initial_dcid), strict=True):
            keys = derive_key_iv_hp(cipher_suite=CipherSuite.AES_128_GCM_SHA256, secret=secret, version=VERSION_1)
            self._require_core().install_packet_key(direction, int(tls.Epoch.INITIAL), (aead, header), *keys, 0)

    def _create_tls(self, remote_source_cid: bytes | None) -> QuicTlsBridge:
        bridge = super()._create_tls(b"" if self._nameless_client else remote_source_cid)
        if not self._is_client:
            self._handshake = ServerHandshake(bridge.tls, self._authorities, self._wall_clock)
            bridge.tls = self._handshake  # type: ignore[assignment]
        return bridge


def initial_secrets(connection_id: bytes) -> tuple[bytes, bytes]:
    """The secrets of a client's and a server's first packets (RFC 9001, 5.2)."""
    common = tls.hkdf_extract(_SHA_256, _INITIAL_SALT, connection_id)
    client, server = (tls.hkdf_expand_label(_SHA_256, common, label, b"", 32) for label in (b"client in", b"server in"))
    return client, server


_SHA_256 = 256
_INITIAL_SALT = bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a")
_AUTHENTIC = 2
"""Where the core's report of a datagram counts packets it could decrypt."""
_OVER = frozenset({"closing", "draining", "terminated"})
