"""TLS contexts for listeners and clients, the certificate for --dev, and who is behind a client certificate.

TLS 1.3 only. Knows files and `ssl`; nothing of protocols.
"""

import datetime
import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.config import TlsSection
from headrace.model.errors import HeadraceError

DEV_CERT_NAME = "dev-cert.pem"
DEV_KEY_NAME = "dev-private-key.pem"
DEV_VALID_DAYS = 3650

_LOOPBACK_NAMES = ("localhost",)
_LOOPBACK_ADDRESSES = ("127.0.0.1", "::1")


class TlsError(HeadraceError):
    """Certificate files that cannot be used."""


def server_context(tls: TlsSection) -> ssl.SSLContext:
    """The context of a listener; with `client_ca` set every client must show a certificate signed by it.

    Raises TlsError naming the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_chain(context, tls.cert, tls.key)
    if tls.client_ca:
        _load_authority(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: Path | str = "", *, cert: Path | str = "", key: Path | str = "", verify: bool = True
) -> ssl.SSLContext:
    """The context of a client: `ca` instead of the system's authorities, a certificate of its own if the server asks.

    `verify=False` accepts any server and is for trying things out on one machine.
    Raises TlsError naming the file.
    """
    context = ssl.create_default_context() if not ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca:
        _load_authority(context, ca)
    if cert:
        _load_chain(context, cert, key or cert)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def dev_certificate(data_dir: Path | str, *, now: datetime.datetime) -> tuple[Path, Path]:
    """The self-signed certificate and key of a data directory, made on first use and kept while they are valid.

    Good for localhost, 127.0.0.1 and ::1; the key is readable by its owner alone.
    """
    directory = Path(data_dir)
    cert_path, key_path = directory / DEV_CERT_NAME, directory / DEV_KEY_NAME
    if not _still_valid(cert_path, key_path, now):
        directory.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(key_path, pem, mode=0o600)
        _write(cert_path, _self_signed(key, now).public_bytes(serialization.Encoding.PEM), mode=0o644)
    return cert_path, key_path


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The subject's common name in what `SSLObject.getpeercert()` returns; None without one."""
    for relative_name in (certificate or {}).get("subject", ()):
        for name, value in relative_name:
            if name == "commonName" and value:
                return str(value)
    return None


def _load_chain(context: ssl.SSLContext, cert: Path | str, key: Path | str) -> None:
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except FileNotFoundError:
        missing = next((path for path in (cert, key) if not Path(path).exists()), cert)
        raise TlsError(f"{missing}: no such file") from None
    except (OSError, ValueError) as error:
        raise TlsError(f"{cert}, {key}: not a certificate chain with its private key: {error}") from None


def _no_password() -> str:
    """Keeps OpenSSL from asking the terminal; an encrypted key is refused instead."""
    raise ValueError("the private key is encrypted")


def _load_authority(context: ssl.SSLContext, ca: Path | str) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except FileNotFoundError:
        raise TlsError(f"{ca}: no such file") from None
    except OSError as error:
        raise TlsError(f"{ca}: not a file of certificates: {error}") from None


def _still_valid(cert_path: Path, key_path: Path, now: datetime.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return False
    belongs = certificate.public_key() == key.public_key()
    return belongs and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _self_signed(key: ec.EllipticCurvePrivateKey, now: datetime.datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "headrace --dev")])
    alternatives: list[x509.GeneralName] = [x509.DNSName(host) for host in _LOOPBACK_NAMES]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in _LOOPBACK_ADDRESSES]
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DEV_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _write(path: Path, data: bytes, *, mode: int) -> None:
    """Replaces the file in one step, so that no reader ever sees half of it or a key others may read."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(data)
    temporary.replace(path)
