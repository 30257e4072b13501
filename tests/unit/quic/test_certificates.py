"""Which certificates are believed, and why not."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from headrace.quic.certificates import Authorities, CertificateExpired, CertificateFileError, CertificateRefused
from headrace.server.dev_certificate import dev_certificate
from tests.harness.authority import Authority

NOW = datetime.datetime.now(datetime.UTC)


def chain(path: Path) -> list[bytes]:
    return [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(path.read_bytes())]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_client_is_its_common_name(authority: Authority) -> None:
    believed = Authorities.load(authority.path)
    assert believed.check_client(chain(authority.issue("alice")), NOW) == "alice"
    bob = authority.issue("bob", usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    assert believed.check_client(chain(bob), NOW) == "bob"
    carol = authority.issue("carol", key=rsa.generate_private_key(65537, 2048))
    assert believed.check_client(chain(carol), NOW) == "carol"


def test_authorities_in_between_come_with_the_client(authority: Authority, tmp_path: Path) -> None:
    between = Authority(tmp_path, "between", issuer=authority)
    shown = chain(between.issue("alice"))
    assert len(shown) == 2
    assert Authorities.load(authority.path).check_client(shown, NOW) == "alice"
    with pytest.raises(CertificateRefused):
        Authorities.load(authority.path).check_client(shown[:1], NOW)


def test_who_may_not_sign_signs_nothing(authority: Authority, tmp_path: Path) -> None:
    fraud = Authority(tmp_path, "fraud", issuer=authority)
    fraud.pem = authority._signed(fraud.name, fraud.key, ca=False)
    with pytest.raises(CertificateRefused, match="basicConstraints"):
        Authorities.load(authority.path).check_client(chain(fraud.issue("eve")), NOW)


@pytest.mark.parametrize(
    ("how", "refusal", "says"),
    [
        ({"expired": True}, CertificateExpired, "time"),
        ({"usage": ExtendedKeyUsageOID.SERVER_AUTH}, CertificateRefused, "not for clients"),
        ({"name": ""}, CertificateRefused, "no common name"),
    ],
)
def test_a_bad_client_is_refused(
    authority: Authority, how: dict[str, object], refusal: type[Exception], says: str
) -> None:
    path = authority.issue(**({"name": "alice"} | how))  # type: ignore[arg-type]
    with pytest.raises(refusal, match=says):
        Authorities.load(authority.path).check_client(chain(path), NOW)


def test_a_stranger_is_refused(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger").issue("alice")
    with pytest.raises(CertificateRefused):
        Authorities.load(authority.path).check_client(chain(stranger), NOW)


@pytest.mark.parametrize("shown", [[], [b""], [b"\x30\x03\x02\x01\x01"], [b"x"] * 9])
def test_nonsense_is_refused(authority: Authority, shown: list[bytes]) -> None:
    with pytest.raises(CertificateRefused):
        Authorities.load(authority.path).check_client(shown, NOW)


def test_a_server_is_its_names_and_addresses(authority: Authority, tmp_path: Path) -> None:
    believed = Authorities.load(authority.path)
    shown = chain(authority.issue_for_a_server())
    for host in ("localhost", "127.0.0.1", "::1"):
        believed.check_server(shown, host, NOW)
    for host in ("example.org", "127.0.0.2", "not a name"):
        with pytest.raises(CertificateRefused):
            believed.check_server(shown, host, NOW)
    with pytest.raises(CertificateRefused):
        believed.check_server(chain(authority.issue("alice")), "localhost", NOW)
    with pytest.raises(CertificateRefused):
        Authorities.load(Authority(tmp_path, "other").path).check_server(shown, "localhost", NOW)


def test_the_dev_certificate_is_its_own_authority(tmp_path: Path) -> None:
    path, _ = dev_certificate(tmp_path, now=NOW)
    Authorities.load(path).check_server(chain(path), "127.0.0.1", NOW)
    with pytest.raises(CertificateRefused):
        Authorities.load(path).check_server(chain(path), "example.org", NOW)
    with pytest.raises(CertificateExpired):
        Authorities.load(path).check_server(chain(path), "127.0.0.1", NOW + datetime.timedelta(days=4000))


def test_files_that_hold_no_certificates_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(CertificateFileError, match=name):
            Authorities.load(tmp_path / name)
