"""Strangers at the QUIC door, generated: what they cost before they are in is bounded, and others are served."""

import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from headrace.protocols.fujin.client import FujinClient, Security
from headrace.server.dev_certificate import DEV_CERT_NAME
from tests.fuzz.test_quic import ODD_FRAMES, broken, frames, hello
from tests.harness.first_packets import Stranger, crypto
from tests.harness.served import Served, served

MIB = 1 << 20
DATAGRAMS = 60
"""What one stranger sends: 72 KB, of which qh3 alone would make 1.5 MiB."""

Script = Callable[[random.Random, bytes], list[bytes]]


def gaps(chance: random.Random, _source: bytes) -> list[bytes]:
    """Bytes that wait for those before them, which never come."""
    first = chance.randrange(1, 2000)
    return [crypto(first + 1101 * index, chance.randbytes(1100)) for index in range(DATAGRAMS)]


def crumbs(chance: random.Random, _source: bytes) -> list[bytes]:
    """A large ClientHello, byte by byte in frames of their own."""
    head = b"\x01\0\x3f\xf0"
    whole = head + bytes(DATAGRAMS * 100)
    return [
        b"".join(crypto(at, whole[at : at + 1]) for at in range(index, index + 100))
        for index in range(0, DATAGRAMS * 100, 100)
    ]


def promises(_chance: random.Random, _source: bytes) -> list[bytes]:
    """A ClientHello of 16 MiB, as far as it goes."""
    whole = b"\x01\xff\xff\xff" + bytes(DATAGRAMS * 1000)
    return [crypto(at, whole[at : at + 1000]) for at in range(0, DATAGRAMS * 1000, 1000)]


def noise(chance: random.Random, _source: bytes) -> list[bytes]:
    """Frames that mean nothing here."""
    return [chance.choice((*ODD_FRAMES, chance.randbytes(100))) for _ in range(DATAGRAMS)]


def hellos(chance: random.Random, source: bytes) -> list[bytes]:
    """One that nearly is one, in pieces, over and over."""
    pieces = frames(chance, broken(chance, hello(source)))
    return (pieces * DATAGRAMS)[:DATAGRAMS]


def genuine(_chance: random.Random, source: bytes) -> list[bytes]:
    """A good beginning, and no more of it."""
    return [crypto(0, hello(source))] * DATAGRAMS


SCRIPTS: dict[str, Script] = {each.__name__: each for each in (gaps, crumbs, promises, noise, hellos, genuine)}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    patient = {"LIMITS__AUTH_TIMEOUT_S": "60", "FUJIN__PING_TIMEOUT_S": "60"}
    with served(tmp_path, LISTEN__FUJIN="127.0.0.1:0", **patient) as running:  # type: ignore[arg-type]
        yield running


@pytest.fixture
async def bystander(broker: Served, tmp_path: Path) -> AsyncIterator[FujinClient]:
    security = Security(ca=tmp_path / DEV_CERT_NAME)
    async with await FujinClient.connect(broker.endpoints["fujin"], security=security) as client:
        yield client


async def served_still(client: FujinClient) -> None:
    """Return when the broker has served this client."""
    writer = await client.writer()
    await writer.write("calm", b"")
    await writer.close()


def attack(broker: Served, script: Script, seed: int, source: bytes = b"") -> tuple[socket.socket, list[bytes]]:
    """One stranger that has proven its address; its socket, and the datagrams it means to send."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", broker.ports["fujin"]))
    sock.settimeout(5)
    stranger = Stranger(source=b"")
    assert stranger.prove(sock, crypto(0, b"\x01"))
    sock.setblocking(False)
    stranger.source = source
    return sock, [stranger.packet(piece) for piece in script(random.Random(seed), source)]


async def send(client: FujinClient, sock: socket.socket, datagrams: list[bytes]) -> None:
    """All of them, a few at a time, as the broker takes them."""
    for first in range(0, len(datagrams), 20):
        for datagram in datagrams[first : first + 20]:
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                sock.send(datagram)
        await served_still(client)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("id_size", [0, 8])
async def test_a_stranger_costs_a_mebibyte_at_most(
    broker: Served, bystander: FujinClient, script: str, id_size: int
) -> None:
    crowd = 12
    socks = []
    for number in range(crowd + 4):
        sock, datagrams = attack(broker, SCRIPTS[script], number, bytes(id_size))
        socks.append(sock)
        await send(bystander, sock, datagrams)
        if number == 3:
            before = broker.resident_bytes()
    assert broker.resident_bytes() - before < crowd * MIB
    for sock in socks:
        sock.close()


async def test_all_strangers_together_cost_64_mebibytes_at_most_and_newcomers_get_in(
    broker: Served, bystander: FujinClient, tmp_path: Path
) -> None:
    """They come one after the other and grow together, when room for small ones was found for all."""
    before = broker.resident_bytes()
    names = ["gaps", *SCRIPTS]
    crowd = []
    for number in range(250):
        crowd.append(attack(broker, SCRIPTS[names[number % len(names)]], number, bytes(8 * (number % 2))))
        await served_still(bystander)
    security = Security(ca=tmp_path / DEV_CERT_NAME)
    for first in range(0, DATAGRAMS, 20):
        for sock, datagrams in crowd:
            await send(bystander, sock, datagrams[first : first + 20])
        async with await FujinClient.connect(broker.endpoints["fujin"], security=security) as newcomer:
            await served_still(newcomer)
    assert broker.resident_bytes() - before < 64 * MIB
    for sock, _ in crowd:
        sock.close()


async def test_one_address_with_many_connections_is_one_stranger(broker: Served, bystander: FujinClient) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", broker.ports["fujin"]))
        sock.settimeout(5)
        strangers = []
        for _ in range(100):
            stranger = Stranger()
            assert stranger.prove(sock, crypto(0, b"\x01"))
            strangers.append(stranger)
        sock.setblocking(False)
        await served_still(bystander)
        before = broker.resident_bytes()
        chance = random.Random(1)
        for stranger in strangers:
            await send(bystander, sock, [stranger.packet(piece) for piece in gaps(chance, b"")])
    assert broker.resident_bytes() - before < 2 * MIB, "one for the stranger, one for what Python keeps of others"


@pytest.mark.parametrize("id_size", [0, 8, 20])
@pytest.mark.parametrize("script", [*SCRIPTS, "other versions"])
async def test_who_has_not_proven_its_address_is_sent_three_times_what_it_sent_at_most(
    tmp_path: Path, script: str, id_size: int
) -> None:
    """Counted until the broker has given the handshake up, repetitions included."""
    with (
        served(tmp_path, LISTEN__FUJIN="127.0.0.1:0", LIMITS__AUTH_TIMEOUT_S="1") as broker,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
    ):
        sock.connect(("127.0.0.1", broker.ports["fujin"]))
        sock.settimeout(2)
        stranger = Stranger(source=bytes(id_size))
        chance = random.Random(7)
        if script == "other versions":
            datagrams = [b"\xc0" + chance.randbytes(4) + b"\x08" + bytes(8) + b"\0" * 1300 for _ in range(20)]
        else:
            datagrams = [stranger.packet(piece) for piece in SCRIPTS[script](chance, bytes(id_size))[:20]]
        sent = received = 0
        for datagram in datagrams:
            sent += sock.send(datagram)
        with contextlib.suppress(TimeoutError):
            while True:
                received += len(sock.recv(65536))
        assert received <= 3 * sent
        assert script not in ("genuine", "other versions") or received, "it was answered at all"


async def test_a_token_is_good_for_its_address_and_its_id_alone(broker: Served, bystander: FujinClient) -> None:
    """Whoever copies or changes one has proven nothing, and is asked again."""
    with contextlib.ExitStack() as kept:
        socks = [kept.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)]
        for sock in socks:
            sock.connect(("127.0.0.1", broker.ports["fujin"]))
            sock.settimeout(5)
        rightful = Stranger()
        assert rightful.prove(socks[0], crypto(0, b"\x01"))
        token, destination = rightful.token, rightful.destination
        for sock, changed, to in (
            (socks[1], token, destination),
            (socks[0], token[:-1], destination),
            (socks[0], bytes(len(token)), destination),
            (socks[0], token, bytes(8)),
            (socks[0], b"x", destination),
        ):
            thief = Stranger(destination=to, token=changed)
            assert thief.prove(sock, crypto(0, hello(b"")))
        assert not rightful.prove(socks[0], crypto(0, hello(b""))), "the rightful one is let in, without a Retry"
        await served_still(bystander)
