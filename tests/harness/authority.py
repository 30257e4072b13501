"""A certificate authority for one test: certificates of every kind, good and bad."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = datetime.timedelta(hours=1)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


class Authority:
    """Signs; `path` holds its own certificate."""

    def __init__(self, directory: Path, name: str = "authority", *, issuer: "Authority | None" = None) -> None:
        self.directory = directory
        self.issuer = issuer
        self.key: PrivateKey = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = issuer or self
        self.pem = signer._signed(self.name, self.key, ca=True)
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(self.pem)

    def issue(
        self,
        name: str,
        *,
        key: PrivateKey | None = None,
        expired: bool = False,
        ca: bool = False,
        usage: x509.ObjectIdentifier | None = None,
        hosts: tuple[str, ...] = (),
        also: tuple[str, ...] = (),
    ) -> Path:
        """A file of a certificate, those above it but for the root, and the private key; `also`: more common names."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        names = [each for each in (name, *also) if each]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each) for each in names])
        chain = self._signed(subject, key, ca=ca, expired=expired, usage=usage, hosts=hosts)
        above: Authority | None = self
        while above is not None and above.issuer is not None:
            chain += above.pem
            above = above.issuer
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self.directory / f"{'+'.join(names).replace('/', '_') or 'nobody'}-by-{self.path.name}"
        path.write_bytes(chain + pem)
        return path

    def issue_for_a_server(self) -> Path:
        """A certificate for the loopback addresses."""
        return self.issue("server", usage=ExtendedKeyUsageOID.SERVER_AUTH, hosts=("localhost", "127.0.0.1", "::1"))

    def _signed(
        self,
        subject: x509.Name,
        key: PrivateKey,
        *,
        ca: bool,
        expired: bool = False,
        usage: x509.ObjectIdentifier | None = None,
        hosts: tuple[str, ...] = (),
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * HOUR)
            .not_valid_after(now - HOUR if expired else now + HOUR)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            names = [_alternative(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
