"""SSPQ peers that mean harm, or do not know better: what they cost is bounded, and others are served all the while."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.served import Served, served
from tests.harness.sspq import (
    CONFIRM,
    DEAD_RECEIVE,
    FOR_EVER,
    HEAD,
    MAGIC,
    NO_RECEIVE,
    OTHER,
    RECEIVE,
    SEND,
    SspqPeer,
    packet,
    send,
)

MIB = 1 << 20
MAX_PAYLOAD = 4 * MIB


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, LISTEN__SSPQ="127.0.0.1:0", SSPQ__MAX_PAYLOAD=str(MAX_PAYLOAD)) as running:
        yield running


@pytest.fixture
def bystander(broker: Served) -> Iterator[SspqPeer]:
    """A well-behaved peer that must be served before and after, with the queue left as it was."""
    peer = SspqPeer(broker.ports["sspq"])
    serve_once(peer)
    yield peer
    serve_once(peer)
    peer.vanish()


def serve_once(peer: SspqPeer) -> None:
    """A message that is not given up, there and back."""
    peer.send(send(b"calm", FOR_EVER))
    assert peer.take() == (FOR_EVER, b"calm")
    peer.confirm()


def newcomer(broker: Served) -> SspqPeer:
    return SspqPeer(broker.ports["sspq"])


@pytest.mark.parametrize("kind", [SEND, RECEIVE, CONFIRM, DEAD_RECEIVE, NO_RECEIVE, OTHER, 0x00])
@pytest.mark.parametrize("size", [MAX_PAYLOAD + 1, 2**31, 2**32 - 1])
def test_a_length_bomb_is_closed_from_its_eight_bytes(
    broker: Served, bystander: SspqPeer, kind: int, size: int
) -> None:
    peer = newcomer(broker)
    peer.send(HEAD.pack(MAGIC, kind, 3, size))
    assert peer.closed()


def test_announced_but_unsent_messages_cost_no_memory(broker: Served, bystander: SspqPeer) -> None:
    before = broker.resident_bytes()
    peers = [newcomer(broker) for _ in range(200)]
    for peer in peers:
        peer.send(HEAD.pack(MAGIC, SEND, 3, MAX_PAYLOAD) + b"a little of it")
    serve_once(bystander)
    assert broker.resident_bytes() - before < 64 * MIB
    for peer in peers:
        peer.vanish()


@pytest.mark.parametrize("kind", [OTHER, NO_RECEIVE, 0x42, CONFIRM])
def test_payloads_nobody_wants_are_not_kept(broker: Served, bystander: SspqPeer, kind: int) -> None:
    before = broker.resident_bytes()
    peers = [newcomer(broker) for _ in range(64)]
    for peer in peers:
        peer.send(HEAD.pack(MAGIC, kind, 0, MAX_PAYLOAD) + bytes(MAX_PAYLOAD - 1))
    serve_once(bystander)
    assert broker.resident_bytes() - before < 32 * MIB
    for peer in peers:
        peer.send(b"\x00")
        serve_once(peer)
        peer.vanish()


def test_a_peer_as_slow_as_can_be_is_understood(broker: Served, bystander: SspqPeer) -> None:
    peer = newcomer(broker)
    for byte in send(b"slow") + packet(OTHER, 0, b"what?") + packet(RECEIVE, 9, b"please"):
        peer.send(bytes((byte,)))
        bystander.send(packet(CONFIRM))
    assert peer.read() == (SEND, 3, b"slow")
    peer.confirm()
    serve_once(peer)


@pytest.mark.parametrize(
    "half",
    [b"", b"\x55", packet(CONFIRM)[:-1], HEAD.pack(MAGIC, CONFIRM, 0, 4) + b"don", send(b"half")[:-1]],
    ids=["nothing", "a byte of magic", "a head without its end", "half a payload", "half a message"],
)
@pytest.mark.parametrize("farewell", ["vanish", "reset"])
def test_half_a_packet_and_gone_while_holding_follows_the_retry_rule(
    broker: Served, bystander: SspqPeer, half: bytes, farewell: str
) -> None:
    for left in (2, 1, 0):
        peer = newcomer(broker)
        if left == 2:
            peer.send(send(b"held", 2))
        assert peer.take() == (left, b"held")
        peer.send(half)
        getattr(peer, farewell)()
    graveyard = newcomer(broker)
    assert graveyard.take(DEAD_RECEIVE) == (0, b"held")
    graveyard.confirm()
    serve_once(graveyard)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"\x00",
        b"\x99\x55" * 4000,
        b"\x55\x55",
        packet(OTHER, 0, b"fine") + b"\xde\xad\xbe\xef" * 100_000,
    ],
    ids=["http", "tls", "a zero", "magic the wrong way round", "half right", "after a good packet"],
)
def test_what_is_no_packet_ends_the_connection_and_gives_back_what_it_held(
    broker: Served, bystander: SspqPeer, garbage: bytes
) -> None:
    peer = newcomer(broker)
    peer.send(send(b"held", 1))
    assert peer.take() == (1, b"held")
    peer.send(garbage)
    assert peer.closed()
    other = newcomer(broker)
    assert other.take() == (0, b"held")
    other.confirm()
    serve_once(other)


def test_a_flood_of_requests_is_one_request(broker: Served, bystander: SspqPeer) -> None:
    before = broker.resident_bytes()
    peer = newcomer(broker)
    peer.send((packet(RECEIVE) + packet(DEAD_RECEIVE) + packet(CONFIRM)) * 200_000)
    peer.send(send(b"one"))
    assert peer.read() == (SEND, 3, b"one")
    peer.confirm()
    serve_once(peer)
    assert broker.resident_bytes() - before < 32 * MIB


def test_a_receiver_that_does_not_read_holds_one_message_and_nobody_up(broker: Served, bystander: SspqPeer) -> None:
    peer = newcomer(broker)
    bystander.send(b"".join(send(bytes(MIB), 0) for _ in range(8)))
    peer.send(packet(RECEIVE))
    for _ in range(7):
        assert bystander.take() == (0, bytes(MIB))
        bystander.confirm()
    assert peer.read() == (SEND, 0, bytes(MIB))
    peer.confirm()
    serve_once(peer)


def test_fifteen_hundred_waiting_connections(broker: Served, bystander: SspqPeer) -> None:
    before = broker.resident_bytes()
    peers = [newcomer(broker) for _ in range(1500)]
    for peer in peers:
        peer.send(packet(RECEIVE))
    for number in range(len(peers)):
        bystander.send(send(struct.pack(">I", number), 0))
    seen = set()
    for peer in peers:
        seen.add(struct.unpack(">I", peer.read()[2])[0])
        peer.confirm()
    assert seen == set(range(len(peers)))
    assert broker.resident_bytes() - before < 100 * MIB
    for peer in peers:
        peer.vanish()
