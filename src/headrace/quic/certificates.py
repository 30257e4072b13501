"""Whose certificates are believed: chains checked for clients and for servers. Knows nothing of handshakes."""

import contextlib
import datetime
import ipaddress
import ssl
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from headrace.model.errors import HeadraceError

CHAIN_LENGTH_MAX = 8


class CertificateRefused(HeadraceError):
    """A certificate that is not believed."""


class CertificateExpired(CertificateRefused):
    """A certificate before or after its time."""


class CertificateFileError(HeadraceError):
    """A file that holds no certificates."""


class Authorities:
    """Certificates that are believed by themselves, and whatever they signed.

    A self-signed certificate in here is good for the peer that shows it.
    """

    def __init__(self, certificates: Sequence[x509.Certificate]) -> None:
        self._store = Store(list(certificates))

    @classmethod
    def load(cls, path: Path | str) -> "Authorities":
        """Those in a PEM file. Raises CertificateFileError naming it."""
        try:
            return cls(x509.load_pem_x509_certificates(Path(path).read_bytes()))
        except FileNotFoundError:
            raise CertificateFileError(f"{path}: no such file") from None
        except (OSError, ValueError) as error:
            raise CertificateFileError(f"{path}: not a file of certificates: {error}") from None

    @classmethod
    def of_the_system(cls) -> "Authorities":
        """Those the operating system believes. Raises CertificateFileError when it has none."""
        found = ssl.create_default_context().get_ca_certs(binary_form=True)
        if not found:
            raise CertificateFileError("this system has no certificate authorities; name a file of them")
        return cls(list(_readable(found)))

    def check_client(self, chain: Sequence[bytes], now: datetime.datetime) -> str:
        """The common name of the client that shows this chain, its own certificate first.

        Raises CertificateRefused.
        """
        leaf, others = _parsed(chain, now)
        builder = self._policy(_CLIENT, now)
        try:
            builder.build_client_verifier().verify(leaf, others)
        except VerificationError as error:
            raise CertificateRefused(str(error)) from None
        name = _common_name(leaf)
        if name is None:
            raise CertificateRefused("the certificate has no common name, or more than one")
        return name

    def check_server(self, chain: Sequence[bytes], host: str, now: datetime.datetime) -> None:
        """Return if this chain belongs to the server at `host`, a name or an address.

        Raises CertificateRefused.
        """
        leaf, others = _parsed(chain, now)
        builder = self._policy(_SERVER, now)
        try:
            builder.build_server_verifier(_subject(host)).verify(leaf, others)
        except (VerificationError, ValueError) as error:
            raise CertificateRefused(str(error)) from None

    def _policy(self, leaf: ExtensionPolicy, now: datetime.datetime) -> PolicyBuilder:
        builder = PolicyBuilder().store(self._store).time(now).max_chain_depth(CHAIN_LENGTH_MAX)
        return builder.extension_policies(ca_policy=_AUTHORITY, ee_policy=leaf)


def _common_name(certificate: x509.Certificate) -> str | None:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) or None if len(names) == 1 else None


def _subject(host: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _readable(found: Sequence[bytes]) -> Iterator[x509.Certificate]:
    """Those that can be read; an old authority that breaks the rules is nobody's error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        for each in found:
            with contextlib.suppress(ValueError):
                yield x509.load_der_x509_certificate(each)


def _parsed(chain: Sequence[bytes], now: datetime.datetime) -> tuple[x509.Certificate, list[x509.Certificate]]:
    if not chain:
        raise CertificateRefused("no certificate")
    if len(chain) > CHAIN_LENGTH_MAX:
        raise CertificateRefused(f"a chain of more than {CHAIN_LENGTH_MAX} certificates")
    try:
        leaf, *others = [x509.load_der_x509_certificate(each) for each in chain]
    except ValueError as error:
        raise CertificateRefused(f"not a certificate: {error}") from None
    if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
        raise CertificateExpired("the certificate is before or after its time")
    return leaf, others


def _for_clients(_policy: Policy, _certificate: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
    if usage is not None and ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise ValueError("the certificate is not for clients")


def _for_servers(_policy: Policy, _certificate: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
    if usage is not None and ExtendedKeyUsageOID.SERVER_AUTH not in usage:
        raise ValueError("the certificate is not for servers")


def _may_sign(_policy: Policy, _certificate: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("the issuer's certificate is not for signing certificates")


_AUTHORITY = (
    ExtensionPolicy.permit_all()
    .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)
    .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _may_sign)
)
_CLIENT = ExtensionPolicy.permit_all().may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _for_clients)
_SERVER = (
    ExtensionPolicy.permit_all()
    .require_present(x509.SubjectAlternativeName, Criticality.AGNOSTIC, None)
    .may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _for_servers)
)
