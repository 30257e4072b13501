"""Real handshakes over loopback sockets."""

import asyncio
import datetime
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.config import TlsSection
from headrace.http2 import common_name
from headrace.server.dev_certificate import dev_certificate
from headrace.server.tls import TlsError, client_context, server_context

NOW = datetime.datetime.now(datetime.UTC)


class Authority:
    """A certificate authority of its own for one test."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(self._sign(self.name, self.key.public_key(), ca=True))

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, ca: bool) -> bytes:
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - datetime.timedelta(hours=1))
            .not_valid_after(NOW + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        path = self.directory / f"{common_name}-by-{self.path.name}"
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(self._sign(subject, key.public_key(), ca=False) + pem)
        return path


def settings(cert: Path, key: Path, client_ca: Path | str = "") -> TlsSection:
    return TlsSection(cert=str(cert), key=str(key), client_ca=str(client_ca))


async def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> tuple[str, str | None]:
    """One connection with a byte each way: the TLS version and the client's common name as the server saw it."""
    seen: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(common_name(writer.get_extra_info("peercert")))
        writer.write(await reader.read(1))
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
    port = listener.sockets[0].getsockname()[1]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=host)
        writer.write(b"x")
        if await reader.read(1) != b"x":
            raise ConnectionResetError("closed without an answer")
        version = writer.get_extra_info("ssl_object").version()
        writer.close()
        return version, await seen
    finally:
        listener.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
async def test_the_dev_certificate_is_good_for_this_machine(tmp_path: Path, host: str) -> None:
    cert, key = dev_certificate(tmp_path, now=NOW)
    version, name = await handshake(server_context(settings(cert, key)), client_context(cert), host)
    assert version == "TLSv1.3"
    assert name is None


async def test_the_dev_certificate_is_good_for_no_other_name(tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path, now=NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(server_context(settings(cert, key)), client_context(cert), "example.org")
    await handshake(server_context(settings(cert, key)), client_context(verify=False), "example.org")


async def test_a_client_that_only_speaks_an_older_tls_is_refused(tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path, now=NOW)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(cert)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):  # noqa: PT011
        await handshake(server_context(settings(cert, key)), old)


async def test_client_certificates_are_required_once_an_authority_is_named(tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path, now=NOW)
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server = server_context(settings(cert, key, ours.path))
    _, name = await handshake(server, client_context(cert, cert=ours.issue("billing")))
    assert name == "billing"
    for client in (client_context(cert), client_context(cert, cert=theirs.issue("billing"))):
        with pytest.raises(OSError):  # noqa: PT011
            await handshake(server, client)


@pytest.mark.parametrize("which", [0, 1])
def test_a_changed_byte_in_the_dev_certificate_or_its_key_is_found_and_told(
    tmp_path: Path, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is changed between the lines that frame it: what is kept is what was made, or there are new ones."""
    paths = dev_certificate(tmp_path, now=NOW)
    good = [path.read_bytes() for path in paths]
    first, last = good[which].index(b"\n") + 1, good[which].rindex(b"\n-----")
    for position in range(first, last - 4, 7):
        if good[which][position : position + 1] in b"\n=":
            continue
        paths[which].write_bytes(
            good[which][:position] + (b"B" if good[which][position : position + 1] == b"A" else b"A")
            + good[which][position + 1 :]
        )  # fmt: skip
        caplog.clear()
        assert dev_certificate(tmp_path, now=NOW) == paths
        assert caplog.messages == ["tls.dev_certificate_made_anew"]
        for path, content in zip(paths, good, strict=True):
            path.write_bytes(content)


def test_the_dev_certificate_is_kept_and_its_key_is_private(tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path / "data", now=NOW)
    before = cert.read_bytes(), key.read_bytes()
    assert dev_certificate(tmp_path / "data", now=NOW) == (cert, key)
    assert (cert.read_bytes(), key.read_bytes()) == before
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_the_dev_certificate_is_made_again_when_it_is_of_no_use(tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path, now=NOW)
    before = cert.read_bytes()
    dev_certificate(tmp_path, now=NOW + datetime.timedelta(days=4000))
    expired = cert.read_bytes()
    assert expired != before
    key.write_bytes(b"torn")
    dev_certificate(tmp_path, now=NOW + datetime.timedelta(days=4000))
    assert cert.read_bytes() != expired


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path, now=NOW)
    other = Authority(tmp_path, "other").issue("x")
    with pytest.raises(TlsError, match="absent"):
        server_context(settings(tmp_path / "absent", key))
    with pytest.raises(TlsError, match="absent"):
        server_context(settings(cert, key, tmp_path / "absent"))
    with pytest.raises(TlsError, match="private key"):
        server_context(settings(cert, other))
    with pytest.raises(TlsError, match="not a file of certificates"):
        server_context(settings(cert, key, key))
