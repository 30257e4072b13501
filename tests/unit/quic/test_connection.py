"""What the rest of the project relies on in qh3, so that a new version of it cannot change it unnoticed."""

from pathlib import Path

import pytest

from headrace.quic.certificates import CertificateFileError
from headrace.quic.connection import CONNECTION_WINDOW, STREAM_WINDOW, Certificate
from tests.harness.authority import Authority
from tests.harness.quic_pair import Pair, heard, streamed


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
