"""Peers that mean harm, or do not know better: what they cost is bounded, and others are served all the while."""

import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.peer import ACK, NACK, PING, POLL, Peer, frame, handshake, publish
from tests.harness.served import Served, served

MIB = 1 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, LIMITS__AUTH_TIMEOUT_S="1") as running:
        yield running


@pytest.fixture
def bystander(broker: Served) -> Iterator[Peer]:
    """A well-behaved peer that must be served before and after."""
    peer = Peer(broker.port)
    subscription = peer.subscribe(b"calm")
    peer.send(publish(b"calm", b"before"))
    peer.fence()
    yield peer
    peer.send(publish(b"calm", b"after"))
    peer.fence()
    peer.send(frame(POLL, 0, struct.pack(">Q", subscription)) * 2)
    assert [value for _, value in peer.fence()] == [b"before", b"after"]
    peer.close()


def hung_up(peer: Peer) -> bool:
    """Whether the broker closes the connection; waits for it."""
    try:
        while True:
            peer.read()
    except ConnectionError:
        return True


@pytest.mark.parametrize("length", [0, 1, 8, 65537, 16 * MIB + 1, 2**31, 2**32 - 1])
def test_a_length_bomb_before_auth_is_closed_from_its_four_bytes(broker: Served, bystander: Peer, length: int) -> None:
    peer = Peer(broker.port, silent=True)
    peer.send(struct.pack(">I", length))
    assert hung_up(peer)


def test_announced_but_unsent_frames_cost_no_memory(broker: Served, bystander: Peer) -> None:
    before = broker.resident_bytes()
    peers = [Peer(broker.port) for _ in range(100)]
    for peer in peers:
        peer.send(struct.pack(">IBQ", 16 * MIB, 3, 1) + b"\x01\x00\x04demo")
    bystander.fence()
    assert broker.resident_bytes() - before < 64 * MIB
    for peer in peers:
        peer.close()


def test_a_peer_that_never_authenticates_is_dropped(broker: Served, bystander: Peer) -> None:
    slow = Peer(broker.port, silent=True)
    slow.send(handshake()[:5])
    assert hung_up(slow)


def test_guessing_keys_ends_after_five_tries(broker: Served, bystander: Peer) -> None:
    peer = Peer(broker.port, silent=True)
    wrong = handshake(b"guess")
    hello, auth = wrong[:15], wrong[15:]
    peer.send(hello + auth * 50)
    assert peer.read()[0] == ACK
    refused = 0
    try:
        while True:
            kind, _, payload = peer.read()
            assert kind == NACK
            assert payload[:2] == struct.pack(">H", 401)
            refused += 1
    except ConnectionError:
        assert refused == 5


def test_a_flood_before_auth_is_answered_in_bounded_memory(broker: Served, bystander: Peer) -> None:
    before = broker.resident_bytes()
    peer = Peer(broker.port, silent=True)
    peer.socket.settimeout(2)
    flood = publish(b"t", bytes(1000)) * 1000
    sent = 0
    try:
        for _ in range(200):
            sent += peer.socket.send(flood)
    except OSError:
        pass
    bystander.fence()
    assert sent > 0
    assert broker.resident_bytes() - before < 64 * MIB
    peer.close()


def test_strangers_with_unfinished_frames_are_bounded_together(broker: Served, bystander: Peer) -> None:
    """Each may have 64 KiB; a thousand of them would be 64 MiB, so the last of them are cut off."""
    before = broker.resident_bytes()
    strangers = [Peer(broker.port, silent=True) for _ in range(1000)]
    cut = 0
    for peer in strangers:
        try:
            peer.send(struct.pack(">IBQ", 65_000, 1, 1) + bytes(64_000))
        except OSError:
            cut += 1
    bystander.fence()
    assert broker.resident_bytes() - before < 64 * MIB
    assert sum(hung_up(peer) for peer in strangers) + cut >= len(strangers)


def test_a_subscriber_that_does_not_read_holds_back_only_itself(broker: Served, bystander: Peer) -> None:
    peer = Peer(broker.port)
    subscription = peer.subscribe(b"wide")
    for _ in range(40):
        bystander.send(publish(b"wide", bytes(MIB)))
    bystander.fence()
    before = broker.resident_bytes()
    peer.send(frame(POLL, 0, struct.pack(">Q", subscription)) * 40)
    bystander.fence()
    assert broker.resident_bytes() - before < 32 * MIB
    peer.send(frame(PING, 0))
    assert len(peer.until_pong()) == 40


def test_two_thousand_idle_connections(broker: Served, bystander: Peer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8192), hard), hard))
    before = broker.resident_bytes()
    peers = []
    for _ in range(2000):
        peer = Peer(broker.port, silent=True)
        peer.send(handshake())
        peers.append(peer)
    for peer in peers:
        assert [peer.read()[0], peer.read()[0]] == [ACK, ACK]
    bystander.fence()
    assert broker.resident_bytes() - before < 100 * MIB
    for peer in peers:
        peer.close()


def test_a_reset_in_mid_frame_disturbs_nobody(broker: Served, bystander: Peer) -> None:
    for _ in range(50):
        peer = Peer(broker.port)
        peer.send(publish(b"calm2", b"x")[:-1])
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()


def test_bytes_of_another_protocol_are_refused_at_once(broker: Served, bystander: Peer) -> None:
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\xde\xad\xbe\xef" * 1000):
        peer = Peer(broker.port, silent=True)
        peer.send(greeting)
        assert hung_up(peer)
