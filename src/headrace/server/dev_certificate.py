"""The self-signed certificate `serve --dev` makes in its data directory. Apart from `tls`, for its heavy import."""

import datetime
import ipaddress
import logging
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.log.disk import make_private_directory
from headrace.server.private import write_private

DEV_CERT_NAME = "dev-cert.pem"
DEV_KEY_NAME = "dev-private-key.pem"
DEV_VALID_DAYS = 3650

log = logging.getLogger("headrace.tls")

_LOOPBACK_NAMES = ("localhost",)
_LOOPBACK_ADDRESSES = ("127.0.0.1", "::1")


def dev_certificate(data_dir: Path | str, *, now: datetime.datetime) -> tuple[Path, Path]:
    """The self-signed certificate and key of a data directory, made on first use and kept while they are valid.

    Good for localhost, 127.0.0.1 and ::1; both are readable by their owner alone.
    """
    directory = Path(data_dir)
    cert_path, key_path = directory / DEV_CERT_NAME, directory / DEV_KEY_NAME
    problem = _problem(cert_path, key_path, now)
    if problem is not None:
        if cert_path.exists() or key_path.exists():
            log.warning("tls.dev_certificate_made_anew", extra={"cause": problem})
        make_private_directory(directory)
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(key_path, pem)
        write_private(cert_path, _self_signed(key, now).public_bytes(serialization.Encoding.PEM))
    return cert_path, key_path


def _problem(cert_path: Path, key_path: Path, now: datetime.datetime) -> str | None:
    """Why these files cannot be used, None when they can; the signature tells of any byte that changed."""
    try:
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        certificate.verify_directly_issued_by(certificate)
    except InvalidSignature:
        return f"{cert_path.name} fails its signature"
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        return str(error)
    if certificate.public_key() != key.public_key():
        return f"{key_path.name} is not the key of {cert_path.name}"
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        return f"{cert_path.name} is out of date"
    return None


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
