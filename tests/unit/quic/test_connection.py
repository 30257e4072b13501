"""What the rest of the project relies on in qh3, so that a new version of it cannot change it unnoticed."""

from pathlib import Path

import pytest

from headrace.quic.certificates import CertificateFileError
from headrace.quic.connection import CONNECTION_WINDOW, STREAM_WINDOW, Certificate, initial_secrets
from tests.harness.authority import Authority
from tests.harness.quic_pair import CLIENT_AT, RETRIED, Pair, heard, is_in, streamed


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(Authority(tmp_path).issue_for_a_server())
    made.carry()
    assert made.server is not None
    heard(made.server)
    return made


def test_held_input_stops_the_peer_at_the_stream_window(pair: Pair) -> None:
    assert pair.server is not None
    pair.server.hold(True)
    pair.client.send_stream_data(0, bytes(4 * STREAM_WINDOW))
    pair.carry()
    pair.let_time_pass(5)
    assert pair.client.get_send_buffer_size(0) == 3 * STREAM_WINDOW
    assert not heard(pair.server)
    pair.server.hold(False)
    taken = len(streamed(pair.server))
    assert taken == STREAM_WINDOW
    pair.carry()
    pair.let_time_pass(1)
    assert taken + len(streamed(pair.server)) == 4 * STREAM_WINDOW


def test_held_input_stops_all_streams_at_the_connection_window(pair: Pair) -> None:
    assert pair.server is not None
    pair.server.hold(True)
    streams = [4 * i for i in range(12)]
    for number in streams:
        pair.client.send_stream_data(number, bytes(STREAM_WINDOW))
    pair.carry()
    pair.let_time_pass(5)
    unsent = sum(pair.client.get_send_buffer_size(number) for number in streams)
    assert len(streams) * STREAM_WINDOW - unsent == CONNECTION_WINDOW


def test_a_held_connection_still_sends_and_sees_the_end(pair: Pair) -> None:
    assert pair.server is not None
    pair.server.hold(True)
    pair.client.send_stream_data(0, b"ask")
    pair.carry()
    pair.server.send_stream_data(0, b"answer")
    pair.carry()
    assert streamed(pair.client) == b"answer"
    pair.client.close(7, reason_phrase="enough")
    pair.carry()
    assert pair.server.over
    pair.server.hold(False)
    assert pair.server.closed_with == (7, "enough")


def test_resetting_a_stream_drops_what_was_not_sent(pair: Pair) -> None:
    assert pair.server is not None
    pair.server.hold(True)
    pair.client.send_stream_data(0, bytes(2 * STREAM_WINDOW), end_stream=True)
    pair.carry()
    assert pair.client.get_send_buffer_size(0) == STREAM_WINDOW
    pair.client.give_up_stream(0, 2)
    assert pair.client.get_send_buffer_size(0) == 0
    pair.client.give_up_stream(0, 2)
    pair.client.stop_listening_to(400, 2)


def test_ten_thousand_streams_leave_nothing_behind(pair: Pair) -> None:
    assert pair.server is not None
    for number in range(0, 40_000, 4):
        pair.client.send_stream_data(number, b"ask", end_stream=True)
        pair.carry()
        assert streamed(pair.server, number) == b"ask"
        pair.server.send_stream_data(number, b"answer", end_stream=True)
        pair.carry()
        assert streamed(pair.client, number) == b"answer"
    assert pair.client.open_outbound_streams == 0
    assert not pair.client._created_local_stream_ids


def test_files_without_a_certificate_and_its_key_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    good, other = authority.issue("a"), authority.issue("b")
    Certificate(cert=good, key=good).load()
    (tmp_path / "empty.pem").write_text("")
    for cert, key in ((good, tmp_path / "missing.pem"), (tmp_path / "empty.pem", good), (good, other)):
        with pytest.raises(CertificateFileError, match=r"\.pem"):
            Certificate(cert=cert, key=key).load()


def test_the_first_secrets_are_those_of_the_rfc() -> None:
    """RFC 9001, A.1."""
    client, server = initial_secrets(bytes.fromhex("8394c8f03e515708"))
    assert client.hex() == "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea"
    assert server.hex() == "3c199828fd139efd216c155ad844cc81fb82fa8d7446fa7d78be803acdda951b"


def exchange(pair: Pair, size: int = 100_000) -> None:
    """Both sides hear each other on a stream; time passes, for those that have to find each other."""
    assert pair.server is not None
    number = pair.client.get_next_available_stream_id()
    pair.client.send_stream_data(number, bytes(size), end_stream=True)
    pair.carry()
    pair.let_time_pass(1)
    assert len(streamed(pair.server, number)) == size
    pair.server.send_stream_data(number, bytes(size), end_stream=True)
    pair.carry()
    pair.let_time_pass(1)
    assert len(streamed(pair.client, number)) == size


@pytest.mark.parametrize("client_ca", [False, True])
@pytest.mark.parametrize("size", [0, 1, 4, 8, 20])
def test_a_client_sent_back_may_have_an_id_of_any_size(tmp_path: Path, size: int, client_ca: bool) -> None:
    authority = Authority(tmp_path)
    own, ca = (authority.issue("alice"), authority.path) if client_ca else (None, None)
    pair = Pair(authority.issue_for_a_server(), own, ca, client_id_size=size, retry=True)
    pair.carry()
    assert pair.server is not None
    assert is_in(pair.client)
    assert is_in(pair.server)
    assert pair.server.host_cid == RETRIED
    exchange(pair)
    for _ in range(3):
        pair.client.request_key_update()
        exchange(pair)


@pytest.mark.parametrize("size", [0, 8])
def test_a_client_is_followed_to_other_addresses_and_back(tmp_path: Path, size: int) -> None:
    """Three moves are all that qh3 takes part in, one back to an address it had among them."""
    pair = Pair(Authority(tmp_path).issue_for_a_server(), client_id_size=size, retry=True)
    pair.carry()
    for address in (("127.0.0.1", 1001), ("127.0.0.2", 1000), CLIENT_AT):
        pair.client_at = address
        exchange(pair)
        pair.answered_at.clear()
        exchange(pair)
        assert pair.answered_at == {address}


def test_what_strangers_send_to_a_connection_from_elsewhere_does_not_move_it(tmp_path: Path) -> None:
    pair = Pair(Authority(tmp_path).issue_for_a_server(), client_id_size=0, retry=True)
    pair.carry()
    assert pair.server is not None
    for port in range(1, 100):
        for first in (0x40, 0xC0, 0xE0):
            pair.server.receive_datagram(bytes([first]) + RETRIED + bytes(1300), ("192.0.2.1", port), pair.now)
    pair.client_at = ("127.0.0.3", 1000)
    exchange(pair)
    assert all(host != "192.0.2.1" for host, _ in pair.answered_at)
