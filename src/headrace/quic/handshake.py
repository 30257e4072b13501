"""The server's side of TLS where qh3 leaves something out: asking clients for a certificate, and the right alerts.

qh3's TLS context does the rest. Around it stands `ServerHandshake`: it slips a CertificateRequest (RFC 8446, 4.3.2)
into the server's first flight, and takes the client's Certificate and CertificateVerify out of the second, so that the
context only ever sees the Finished it knows. Nothing is served before that Finished, so nothing without a certificate.

It is also the gate for strangers' bytes: a ClientHello is looked through before the context gets it, and whatever else
goes wrong over one becomes an alert to its sender. Nothing that a client sends is ever decompressed.
"""

import datetime
from collections.abc import Callable
from enum import Enum, auto
from struct import pack
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from qh3 import tls
from qh3._hazmat import Buffer
from qh3.quic.tls_bridge import QuicTlsBridgeError
from qh3.tls import Epoch, HandshakeType

from headrace.quic.certificates import Authorities, CertificateExpired, CertificateRefused

FLIGHT_SIZE_MAX = 1 << 16
HELLO_SIZE_MAX = 1 << 14
PIECES_MAX = 256
"""How often a client may add to its handshake, whose every piece costs a call."""
SIGNED_CONTEXT = b"TLS 1.3, client CertificateVerify"

_CURVES = {0x0403: (ec.SECP256R1, hashes.SHA256()), 0x0503: (ec.SECP384R1, hashes.SHA384())}
_PSS = {0x0804: hashes.SHA256(), 0x0805: hashes.SHA384(), 0x0806: hashes.SHA512()}
_ED25519 = 0x0807
_SIGNATURES = (*_CURVES, *_PSS, _ED25519)
_SIGNATURE_ALGORITHMS = 13
_X25519_SIZE, _ML_KEM_768_SIZE, _ML_KEM_SEED_SIZE, _ML_KEM_MODULUS = 32, 1184, 32, 3329
PANIC = "PanicException"
"""What qh3's core raises where it was not prepared; it is no Exception, and can be told by its name alone."""


class NoCommonProtocol(tls.Alert):
    """The client speaks something else: RFC 9001, 8.1 names this alert."""

    description = tls.AlertDescription.no_application_protocol


class NoCertificate(tls.Alert):
    """The client shows no certificate."""

    description = tls.AlertDescription.certificate_required


class MissingExtension(tls.Alert):
    """The client left something out that TLS 1.3 cannot do without."""

    description = tls.AlertDescription.missing_extension


class UnknownIssuer(tls.Alert):
    """The client's certificate is not believed."""

    description = tls.AlertDescription.unknown_ca


def check_hello(message: bytes) -> None:
    """Return if a ClientHello is one that the context can be given: whole, with shares that are of their groups.

    Raises tls.Alert, or what reading it raises. qh3 panics at a share of ML-KEM that is none (FIPS 203, 7.2).
    """
    if message[0] != HandshakeType.CLIENT_HELLO:
        raise tls.AlertUnexpectedMessage("a handshake that does not begin with ClientHello")
    found = tls.pull_client_hello(Buffer(data=message))
    if not found.key_share or found.supported_versions is None or found.signature_algorithms is None:
        raise MissingExtension("a ClientHello without what TLS 1.3 needs")
    for group, share in found.key_share:
        if group == tls.Group.X25519ML768 and not _is_key_of_ml_kem_768(share[:-_X25519_SIZE]):
            raise tls.AlertIllegalParameter("a key share that is none")


def _is_key_of_ml_kem_768(key: bytes) -> bool:
    """Three times 256 numbers of twelve bits below the modulus, and a seed."""
    if len(key) != _ML_KEM_768_SIZE:
        return False
    numbers = int.from_bytes(key[:-_ML_KEM_SEED_SIZE], "little")
    return all((numbers >> at) & 0xFFF < _ML_KEM_MODULUS for at in range(0, 12 * 768, 12))


class _Step(Enum):
    """What the client owes next."""

    CERTIFICATE = auto()
    CERTIFICATE_VERIFY = auto()
    FINISHED = auto()


class ServerHandshake:
    """Stands where the connection expects a TLS context; what it does not do itself the context does.

    With `authorities` the client must show a certificate they believe; `common_name` is whose it was.
    """

    def __init__(
        self, context: tls.Context, authorities: Authorities | None, now: Callable[[], datetime.datetime]
    ) -> None:
        self.common_name: str | None = None
        self._context = context
        self._authorities = authorities
        self._now = now
        self._step = _Step.CERTIFICATE
        self._received = b""
        self._pieces = 0
        self._leaf: x509.Certificate | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def handle_message(self, input_data: bytes, output_buf: dict[Epoch, Any], epoch: int = -1) -> None:
        """Take handshake bytes in, put the answer into the buffers. Raises tls.Alert, QuicTlsBridgeError, no other."""
        self._pieces += 1
        if self._pieces > PIECES_MAX:
            raise tls.AlertUnexpectedMessage("a handshake in too many pieces")
        try:
            self._handle(input_data, output_buf, epoch)
        except (tls.Alert, QuicTlsBridgeError):
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != PANIC:
                raise
            raise tls.AlertDecodeError(f"malformed handshake: {type(error).__name__}") from None

    def _handle(self, input_data: bytes, output_buf: dict[Epoch, Any], epoch: int) -> None:
        if self._context.state is tls.State.SERVER_EXPECT_CLIENT_HELLO:
            self._hello(input_data, output_buf, epoch)
        elif self._authorities is not None and self._step is not _Step.FINISHED:
            self._second_flight(input_data, output_buf, epoch)
        else:
            self._context.handle_message(input_data, output_buf, epoch)

    def _hello(self, data: bytes, output: dict[Epoch, Any], epoch: int) -> None:
        self._received += data
        size = 4 + int.from_bytes(self._received[1:4], "big") if len(self._received) >= 4 else 4
        if max(size, len(self._received)) > HELLO_SIZE_MAX:
            raise tls.AlertIllegalParameter("too large a ClientHello")
        if len(self._received) < size:
            return
        data, self._received = self._received, b""
        check_hello(data[:size])
        if self._authorities is not None:
            # Keeps the context from expecting the client's Finished right behind its own.
            self._context._alps_negotiated = True
            output = {**output, Epoch.HANDSHAKE: _AskingBuffer(output[Epoch.HANDSHAKE])}
        try:
            self._context.handle_message(data, output, epoch)
        except tls.AlertHandshakeFailure as alert:
            if "ALPN" in str(alert):
                raise NoCommonProtocol(f"the only protocol here is {self._context._alpn_protocols}") from None
            raise

    def _second_flight(self, data: bytes, output: dict[Epoch, Any], epoch: int) -> None:
        if epoch != Epoch.HANDSHAKE:
            raise tls.AlertUnexpectedMessage
        self._received += data
        if len(self._received) > FLIGHT_SIZE_MAX:
            raise tls.AlertIllegalParameter("too large a certificate")
        while len(self._received) >= 4 and self._step is not _Step.FINISHED:
            size = 4 + int.from_bytes(self._received[1:4], "big")
            if len(self._received) < size:
                return
            message, self._received = self._received[:size], self._received[size:]
            if message[0] == HandshakeType.CERTIFICATE and self._step is _Step.CERTIFICATE:
                self._certificate(message[4:])
                self._step = _Step.CERTIFICATE_VERIFY
            elif message[0] == HandshakeType.CERTIFICATE_VERIFY and self._step is _Step.CERTIFICATE_VERIFY:
                self._certificate_verify(message[4:])
                self._step = _Step.FINISHED
            else:
                raise tls.AlertUnexpectedMessage
            self._schedule.update_hash(message)
        if self._step is _Step.FINISHED and self._received:
            rest, self._received = self._received, b""
            self._context.handle_message(rest, output, epoch)

    @property
    def _schedule(self) -> tls.KeySchedule:
        assert self._context.key_schedule is not None
        return self._context.key_schedule

    def _certificate(self, body: bytes) -> None:
        """RFC 8446, 4.4.2: a context, which is empty here, then entries of certificate and extensions."""
        assert self._authorities is not None
        entries, rest = _prefixed(body[1:], 3)
        if body[:1] != b"\0" or rest:
            raise tls.AlertDecodeError("malformed Certificate")
        chain = []
        while entries:
            certificate, entries = _prefixed(entries, 3)
            _, entries = _prefixed(entries, 2)
            chain.append(certificate)
        if not chain:
            raise NoCertificate("a client certificate is required")
        try:
            self.common_name = self._authorities.check_client(chain, self._now())
        except CertificateExpired as error:
            raise tls.AlertCertificateExpired(str(error)) from None
        except CertificateRefused as error:
            raise UnknownIssuer(f"client certificate refused: {error}") from None
        self._leaf = x509.load_der_x509_certificate(chain[0])

    def _certificate_verify(self, body: bytes) -> None:
        """RFC 8446, 4.4.3: the proof that the client has the certificate's key."""
        assert self._leaf is not None
        signature, rest = _prefixed(body[2:], 2)
        if rest:
            raise tls.AlertDecodeError("malformed CertificateVerify")
        signed = self._schedule.certificate_verify_data(SIGNED_CONTEXT)
        try:
            _verify(self._leaf, int.from_bytes(body[:2], "big"), signature, signed)
        except InvalidSignature:
            raise tls.AlertDecryptError("the client does not have its certificate's key") from None


class _AskingBuffer:
    """The buffer of the server's first flight that follows EncryptedExtensions by a CertificateRequest.

    A message enters the transcript when it is read back; so does what was appended to the first.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._asked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def data_slice(self, start: int, end: int) -> bytes:
        """What was written from `start`, and the request if this was the first message."""
        if not self._asked:
            self._asked = True
            self._buffer.push_bytes(_certificate_request())
            end = self._buffer.tell()
        found: bytes = self._buffer.data_slice(start, end)
        return found


def _certificate_request() -> bytes:
    algorithms = pack(f">{len(_SIGNATURES)}H", *_SIGNATURES)
    extension = pack(">HHH", _SIGNATURE_ALGORITHMS, len(algorithms) + 2, len(algorithms)) + algorithms
    body = b"\0" + pack(">H", len(extension)) + extension
    return bytes([HandshakeType.CERTIFICATE_REQUEST]) + len(body).to_bytes(3, "big") + body


def _prefixed(data: bytes, width: int) -> tuple[bytes, bytes]:
    """The bytes announced by a length of so many bytes, and what follows them."""
    end = width + int.from_bytes(data[:width], "big")
    if len(data) < max(end, width):
        raise tls.AlertDecodeError("a length beyond the message")
    return data[width:end], data[end:]


def _verify(certificate: x509.Certificate, algorithm: int, signature: bytes, signed: bytes) -> None:
    """Raises InvalidSignature, or an alert where algorithm and key do not belong together."""
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey) and algorithm in _CURVES:
        curve, digest = _CURVES[algorithm]
        if isinstance(key.curve, curve):
            return key.verify(signature, signed, ec.ECDSA(digest))
    elif isinstance(key, rsa.RSAPublicKey) and algorithm in _PSS:
        of = _PSS[algorithm]
        return key.verify(signature, signed, padding.PSS(padding.MGF1(of), of.digest_size), of)
    elif isinstance(key, ed25519.Ed25519PublicKey) and algorithm == _ED25519:
        return key.verify(signature, signed)
    raise tls.AlertIllegalParameter("a signature algorithm that was not asked for")
