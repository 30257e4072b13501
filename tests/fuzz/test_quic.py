"""First packets of strangers, broken in every way: a server's connection takes them all, and answers or says nothing.

Nothing escapes it, not even what qh3's core panics at. Until the address is proven, no more is sent than three times
what came.
"""

import random
from functools import cache
from pathlib import Path

import pytest
from qh3.quic.tls_bridge import QuicTlsBridge

from headrace.quic.certificates import Authorities
from headrace.quic.connection import Certificate, Connection, configuration
from tests.harness.authority import Authority
from tests.harness.first_packets import Stranger, crypto, number

SHARDS = 4
INPUTS = 600
AT = ("192.0.2.1", 443)
ODD_FRAMES = (
    b"\x01",
    b"\x02\0\0\0\0",
    b"\x02" + number(5) + number(0) + number(0) + number(5),
    b"\x1c\0\0\0",
    b"\x1d\0\0",
    b"\x1e",
    b"\x18\0\0\x08" + bytes(24),
    b"\x1a" + bytes(8),
    b"\x08\0x",
    crypto((1 << 62) - 2, b"x"),
    crypto((1 << 62) - 1, b"xx"),
    crypto(1 << 40, b"far"),
)


@cache
def client_configuration() -> object:
    return configuration(protocol="fujin", is_client=True, certificate=None, datagram_max=1350, idle_timeout_s=30)


def hello(source: bytes) -> bytes:
    bridge = QuicTlsBridge(client_configuration(), version=1, local_initial_source_connection_id=source)  # type: ignore[arg-type]
    bridge.start()
    found = bridge.next_crypto_data()
    assert found is not None
    return found.data


def broken(chance: random.Random, whole: bytes) -> bytes:
    """A ClientHello that nearly is one."""
    data = bytearray(whole)
    for _ in range(chance.randrange(5)):
        at = chance.randrange(len(data))
        data[at] = chance.choice((0, 255, data[at] ^ 1, chance.randrange(256)))
    if chance.random() < 0.3:
        at = chance.randrange(len(data))
        del data[at : at + chance.randrange(1, 40)]
    if chance.random() < 0.5:
        data[1:4] = (len(data) - 4).to_bytes(3, "big")
    return bytes(data) if chance.random() < 0.9 else chance.randbytes(chance.randrange(1, 900))


def frames(chance: random.Random, data: bytes) -> list[bytes]:
    """It in pieces, in or out of order, with something else in between."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
    pieces = [crypto(a, data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    if chance.random() < 0.5:
        chance.shuffle(pieces)
    for _ in range(chance.randrange(3)):
        odd = chance.choice((*ODD_FRAMES, chance.randbytes(chance.randrange(1, 60))))
        pieces.insert(chance.randrange(len(pieces) + 1), odd)
    return pieces


@pytest.mark.parametrize("shard", range(SHARDS))
def test_first_packets_of_every_kind(shard: int, tmp_path: Path) -> None:
    chance = random.Random(shard)
    authority = Authority(tmp_path)
    file = authority.issue_for_a_server()
    own = Certificate(cert=file, key=file)
    made = configuration(protocol="fujin", is_client=False, certificate=own, datagram_max=1350, idle_timeout_s=30)
    asked = Authorities.load(authority.path)
    completed = 0
    for _ in range(INPUTS):
        source = chance.randbytes(chance.choice((0, 1, 8, 20)))
        stranger = Stranger(destination=chance.randbytes(8), source=source)
        server = Connection(
            configuration=made,
            original_destination_connection_id=stranger.destination if source else b"original",
            retry_source_connection_id=None if source else stranger.destination,
            nameless_client=not source,
            authorities=chance.choice((None, asked)),
        )
        now, came, sent = 0.0, 0, 0
        for piece in frames(chance, broken(chance, hello(source))):
            datagram = stranger.packet(piece) + (chance.randbytes(30) if chance.random() < 0.1 else b"")
            came += len(datagram)
            server.receive_datagram(datagram, AT, now)
            now += chance.choice((0.001, 2.0))
            server.handle_timer(now)
            sent += sum(len(each) for each, _ in server.datagrams_to_send(now))
            assert sent <= 3 * came or not source, "only a Retry has proven an address"
        completed += sent > 1200
    assert completed > INPUTS // 20, "some of it made sense"
