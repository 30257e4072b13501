"""Client certificates asked for in real TLS handshakes, in memory; aioquic says the same from the other side."""

import contextlib
import datetime
import ssl
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from qh3 import tls
from qh3._hazmat import Buffer
from qh3.quic.tls_bridge import QuicTlsBridge

from headrace.quic.connection import Certificate, configuration
from headrace.quic.handshake import FLIGHT_SIZE_MAX, HELLO_SIZE_MAX, PIECES_MAX, ServerHandshake, check_hello
from tests.harness.authority import Authority, PrivateKey
from tests.harness.quic_pair import CLIENT_AT, SERVER_AT, Pair, is_in, streamed

NO_APPLICATION_PROTOCOL = 0x100 + 120
CERTIFICATE_REQUIRED = 0x100 + 116
CERTIFICATE_EXPIRED = 0x100 + 45
UNKNOWN_CA = 0x100 + 48
DECRYPT_ERROR = 0x100 + 51


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_without_an_authority_nobody_is_asked(authority: Authority) -> None:
    pair = Pair(authority.issue_for_a_server())
    pair.carry()
    assert is_in(pair.client)
    assert is_in(pair.server)
    assert pair.server is not None
    assert pair.server.common_name is None


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["P-256", "P-384", "RSA"],
)
def test_a_certificate_lets_its_name_in(authority: Authority, key: PrivateKey) -> None:
    pair = Pair(authority.issue_for_a_server(), authority.issue("alice", key=key), authority.path)
    pair.carry()
    assert pair.server is not None
    assert is_in(pair.client)
    assert is_in(pair.server)
    assert pair.server.common_name == "alice"
    pair.client.send_stream_data(0, b"hello", end_stream=True)
    pair.carry()
    assert streamed(pair.server) == b"hello"


def refusal(pair: Pair) -> int:
    """The code the server closed with, having served nothing."""
    pair.client.send_stream_data(0, b"let me in")
    pair.carry()
    assert pair.server is not None
    assert not is_in(pair.server)
    assert streamed(pair.server) == b""
    assert pair.client.over
    return pair.client.closed_with[0]


def test_no_certificate(authority: Authority) -> None:
    assert refusal(Pair(authority.issue_for_a_server(), None, authority.path)) == CERTIFICATE_REQUIRED


def test_an_expired_certificate(authority: Authority) -> None:
    late = authority.issue("alice", expired=True)
    assert refusal(Pair(authority.issue_for_a_server(), late, authority.path)) == CERTIFICATE_EXPIRED


def test_a_foreign_certificate(authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path, "foreign").issue("alice")
    assert refusal(Pair(authority.issue_for_a_server(), foreign, authority.path)) == UNKNOWN_CA


def test_a_certificate_whose_key_somebody_else_has(authority: Authority) -> None:
    stolen, own = authority.issue("alice"), authority.issue("mallory")
    pair = Pair(authority.issue_for_a_server(), own, authority.path)
    made = pair.client.configuration
    made.load_cert_chain(Certificate(cert=stolen, key=stolen).load()[0], Certificate(cert=own, key=own).load()[1])
    assert pair.client.tls is not None
    pair.client.tls.certificate = made.certificate
    assert refusal(pair) == DECRYPT_ERROR


@pytest.mark.parametrize("client_ca", [False, True])
def test_another_protocol(authority: Authority, client_ca: bool) -> None:
    pair = Pair(authority.issue_for_a_server(), None, authority.path if client_ca else None, protocol="h3")
    assert refusal(pair) == NO_APPLICATION_PROTOCOL


COMPRESSED = b"\x19\0\0\x10" + b"\0\x02\0\xff\xff\0\0\x08" + bytes(8)
"""A certificate that says it becomes 64 KiB (RFC 8879): nobody asked for one, and none is unpacked."""


@pytest.mark.parametrize(
    "flight", [COMPRESSED, b"\x14\0\0\x20" + bytes(32), b"\x0f\0\0\4\4\3\0\0", b"\x0b\0\0\1\1", b"\x01\0\0\0"]
)
def test_a_second_flight_out_of_order(authority: Authority, flight: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(authority.issue_for_a_server(), authority.issue("alice"), authority.path)
    genuine = ServerHandshake._second_flight
    monkeypatch.setattr(
        ServerHandshake, "_second_flight", lambda self, _data, output, epoch: genuine(self, flight, output, epoch)
    )
    assert refusal(pair) > 0x100


def test_a_second_flight_without_end(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = b"\x0b\xff\xff\xff" + bytes(FLIGHT_SIZE_MAX)
    genuine = ServerHandshake._second_flight
    monkeypatch.setattr(
        ServerHandshake, "_second_flight", lambda self, _data, output, epoch: genuine(self, endless, output, epoch)
    )
    pair = Pair(authority.issue_for_a_server(), authority.issue("alice"), authority.path)
    assert refusal(pair) > 0x100


@pytest.mark.parametrize("who", ["alice", "eve", None])
@pytest.mark.parametrize("asked", [True, False])
def test_aioquic_agrees(authority: Authority, tmp_path: Path, who: str | None, asked: bool) -> None:
    """The same handshake with a client somebody else wrote."""
    made = QuicConfiguration(alpn_protocols=["fujin"], is_client=True, server_name="localhost")
    made.load_verify_locations(str(authority.path))
    made.verify_mode = ssl.CERT_REQUIRED
    if who is not None:
        signer = authority if who == "alice" else Authority(tmp_path, "foreign")
        made.load_cert_chain(signer.issue(who))
    pair = Pair(authority.issue_for_a_server(), None, authority.path if asked else None)
    client = QuicConnection(configuration=made)
    client.connect(SERVER_AT, now=0.0)
    for _ in range(5):
        pair.now += 0.001
        for datagram, _at in client.datagrams_to_send(now=pair.now):
            server = pair._accept(datagram)
            assert server is not None
            server.receive_datagram(datagram, CLIENT_AT, pair.now)
        assert pair.server is not None
        for datagram, _at in pair.server.datagrams_to_send(pair.now):
            client.receive_datagram(datagram, SERVER_AT, now=pair.now)
    told = []
    while (event := client.next_event()) is not None:
        told.append(event)
    welcome = not asked or who == "alice"
    assert pair.server is not None
    assert is_in(pair.server) is welcome
    assert any(isinstance(event, HandshakeCompleted) for event in told)
    assert pair.server.common_name == ("alice" if asked and who == "alice" else None)
    if not welcome:
        client.handle_timer(now=pair.now + 60)
        codes = [event.error_code for event in _rest(client) if isinstance(event, ConnectionTerminated)]
        assert codes == [UNKNOWN_CA if who else CERTIFICATE_REQUIRED]


def _rest(client: QuicConnection) -> list[object]:
    found: list[object] = []
    while (event := client.next_event()) is not None:
        found.append(event)
    return found


def test_a_chain_longer_than_three_datagrams(authority: Authority, tmp_path: Path) -> None:
    """A server may send three times what an unproven client sent; the rest of the chain follows the client's answer."""
    signer = authority
    for number in range(6):
        signer = Authority(tmp_path, f"between {number} " + "x" * 50, issuer=signer)
    pair = Pair(signer.issue_for_a_server())
    assert len(pair.server_file.read_bytes()) > 4000
    pair.carry()
    pair.let_time_pass(2)
    assert is_in(pair.client)
    assert is_in(pair.server)


def hello_with(group: tls.Group, share: bytes) -> bytes:
    """The ClientHello of a client with one key share."""
    made = configuration(protocol="fujin", is_client=True, certificate=None, datagram_max=1350, idle_timeout_s=30)
    bridge = QuicTlsBridge(made, version=1, local_initial_source_connection_id=b"me")
    bridge.start()
    found = bridge.next_crypto_data()
    assert found is not None
    head = tls.pull_client_hello(Buffer(data=found.data))
    head.key_share = [(group, share)]
    head.other_extensions = [each for each in head.other_extensions if each[0] != tls.ExtensionType.PRE_SHARED_KEY]
    into = Buffer(capacity=1 << 16)
    tls.push_client_hello(into, head)
    return into.data


KEY = bytes(1152) + bytes(32) + bytes(range(1, 33))


@pytest.mark.parametrize("at", [0, 3, 1149])
@pytest.mark.parametrize("number", [3328, 3329, 4095])
def test_a_key_of_ml_kem_has_numbers_below_its_modulus(at: int, number: int) -> None:
    first = KEY[:at] + number.to_bytes(2, "little") + KEY[at + 2 :]
    second = KEY[: at + 1] + (number << 4).to_bytes(2, "little") + KEY[at + 3 :]
    for share in (first, second):
        with contextlib.nullcontext() if number < 3329 else pytest.raises(tls.AlertIllegalParameter):
            check_hello(hello_with(tls.Group.X25519ML768, share))


@pytest.mark.parametrize("size", [0, 1, 31, 32, 1088, 1184, 1215, 1217, 4000])
def test_a_key_of_ml_kem_of_another_size_is_none(size: int) -> None:
    with pytest.raises(tls.AlertIllegalParameter):
        check_hello(hello_with(tls.Group.X25519ML768, bytes(size)))


@pytest.mark.parametrize("group", [tls.Group.X25519, tls.Group.SECP256R1, tls.Group.SECP384R1, tls.Group.SECP521R1])
@pytest.mark.parametrize("size", [0, 1, 32, 65, 97, 133, 1000])
def test_a_key_share_that_is_none_is_an_alert(authority: Authority, group: tls.Group, size: int) -> None:
    assert isinstance(answer_to(authority, hello_with(group, bytes(size))), tls.Alert)


def answer_to(authority: Authority, *pieces: bytes) -> BaseException | None:
    """What a server's handshake raises for these bytes."""
    file = authority.issue_for_a_server()
    own = Certificate(cert=file, key=file)
    made = configuration(protocol="fujin", is_client=False, certificate=own, datagram_max=1350, idle_timeout_s=30)
    bridge = QuicTlsBridge(
        made,
        version=1,
        local_initial_source_connection_id=b"us",
        remote_initial_source_connection_id=b"me",
        original_destination_connection_id=b"first",
    )
    handshake = ServerHandshake(bridge.tls, None, lambda: datetime.datetime.now(datetime.UTC))
    output = {epoch: Buffer(capacity=1 << 16) for epoch in (tls.Epoch.INITIAL, tls.Epoch.HANDSHAKE, tls.Epoch.ONE_RTT)}
    try:
        for piece in pieces:
            handshake.handle_message(piece, output, tls.Epoch.INITIAL)
    except BaseException as error:
        return error
    return None


def test_a_hello_is_bounded_by_what_it_announces_and_by_its_pieces(authority: Authority) -> None:
    announced = b"\x01" + HELLO_SIZE_MAX.to_bytes(3, "big")
    assert isinstance(answer_to(authority, announced), tls.AlertIllegalParameter)
    assert isinstance(answer_to(authority, b"\x01\0\x3f\0", *[b"\0"] * PIECES_MAX), tls.AlertUnexpectedMessage)
    assert answer_to(authority, b"\x01\0\x3f\0", *[b"\0"] * (PIECES_MAX - 1)) is None
    assert isinstance(answer_to(authority, b"\x02\0\0\0"), tls.AlertUnexpectedMessage)
