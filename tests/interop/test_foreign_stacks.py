"""Clients written on other people's QUIC against a real broker, through weather. All of them take an empty connection
id where their stack has one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.server.dev_certificate import DEV_CERT_NAME
from tests.harness.foreign import Foreign, quic_go, quinn
from tests.harness.served import Served, served
from tests.harness.udp import Weather, wire

SOME, MANY = 300, 10_000
STACKS = {"quic-go": quic_go, "quinn": quinn}


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Foreign:
    build: Callable[[pytest.Config], Foreign] = STACKS[request.param]
    return build(request.config)


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(tmp_path, LISTEN__FUJIN="127.0.0.1:0", **getattr(request, "param", {})) as running:
        yield running


async def round_of(stack: Foreign, broker: Served, tmp_path: Path, *flags: str, count: int = SOME) -> dict[str, object]:
    """One client does everything; what it tells, once that is complete."""
    address = f"127.0.0.1:{broker.ports['fujin']}"
    told = await stack.round(address, tmp_path / DEV_CERT_NAME, "-messages", str(count), *flags)
    complete(told, count)
    return told


def complete(told: dict[str, object], count: int) -> None:
    assert told["confirmed"] == count
    assert (told["received"], told["missing"], told["disordered"]) == (count + 3, 0, 0)
    assert told["settled"] == count + 3
    assert told["fetched"] == 2


@pytest.mark.parametrize("own_id", [0, 4, 8, 20])
async def test_an_id_of_every_size(stack: Foreign, broker: Served, tmp_path: Path, own_id: int) -> None:
    """And the packets show that it is the size asked for."""
    async with wire(broker.endpoints["fujin"]) as (carrier, endpoint):
        sizes: set[int] = set()

        def passes(datagram: bytes) -> bool:
            if datagram[0] & 0xB0 == 0x80 and datagram[1:5] == b"\0\0\0\1":
                sizes.add(datagram[6 + datagram[5]])
            return True

        carrier.passes = passes
        address = endpoint.removeprefix("quic://")
        told = await stack.round(address, tmp_path / DEV_CERT_NAME, "-messages", str(SOME), "-own-id", str(own_id))
    complete(told, SOME)
    assert sizes == {own_id, 8}, "the client's and ours"


async def test_one_after_the_other(stack: Foreign, broker: Served, tmp_path: Path) -> None:
    for number in range(3):
        await round_of(stack, broker, tmp_path, "-topic", f"turn {number}")


async def test_the_version_is_negotiated(stack: Foreign, broker: Served, tmp_path: Path) -> None:
    assert (await round_of(stack, broker, tmp_path, "-version-2-first"))["version"] == "v1"


async def test_a_client_moves_to_another_socket(stack: Foreign, broker: Served, tmp_path: Path) -> None:
    assert (await round_of(stack, broker, tmp_path, "-migrate", count=2000))["migrated"]


@pytest.mark.parametrize("broker", [{"FUJIN__DIALECT": "reference"}], indirect=True)
async def test_the_dialect_of_the_original(stack: Foreign, broker: Served, tmp_path: Path) -> None:
    await round_of(stack, broker, tmp_path, "-reference")


@pytest.mark.parametrize(("own_id", "seed"), [(0, 1), (0, 2), (8, 3)])
async def test_nothing_is_missing_after_loss_and_disorder(
    stack: Foreign, broker: Served, tmp_path: Path, own_id: int, seed: int
) -> None:
    """10,000 messages; the keys change on the way, with quic-go after its first hundred packets, with quinn halfway."""
    async with wire(broker.endpoints["fujin"]) as (carrier, endpoint):
        carrier.weather = Weather(lost=0.05, late=0.05, doubled=0.02, seed=seed)
        address = endpoint.removeprefix("quic://")
        told = await stack.round(address, tmp_path / DEV_CERT_NAME, "-messages", str(MANY), "-own-id", str(own_id))
    complete(told, MANY)
    assert all(carrier.weather.done.values()), carrier.weather.done


@pytest.mark.parametrize("own_id", [0, 8])
async def test_the_end_of_the_handshake_is_lost(stack: Foreign, broker: Served, tmp_path: Path, own_id: int) -> None:
    """The client believes itself in and sends all it may; none of that is held against it."""
    client: bytes | None = None
    answered, lost = False, 0

    def passes(datagram: bytes) -> bool:
        nonlocal client, answered, lost
        if not datagram[0] & 0x80:
            return True
        to, own = datagram[6 : 6 + datagram[5]], datagram[7 + datagram[5] :][: datagram[6 + datagram[5]]]
        client = own if client is None else client
        if to == client:
            answered |= datagram[0] & 0xB0 == 0x80
            return True
        lost += answered and lost < 4
        return not answered or lost == 4

    async with wire(broker.endpoints["fujin"]) as (carrier, endpoint):
        carrier.passes = passes
        address = endpoint.removeprefix("quic://")
        told = await stack.round(address, tmp_path / DEV_CERT_NAME, "-messages", "3000", "-own-id", str(own_id))
    complete(told, 3000)
    assert lost == 4


@pytest.mark.parametrize("own_id", [0, 8])
async def test_an_address_that_changes_on_the_way(stack: Foreign, broker: Served, tmp_path: Path, own_id: int) -> None:
    """As behind a NAT that forgets: the client does not know that it moved."""
    async with wire(broker.endpoints["fujin"]) as (carrier, endpoint):
        moves = iter((200, 500))
        at = next(moves)

        def passes(_datagram: bytes) -> bool:
            nonlocal at
            if carrier.carried >= at:
                at = next(moves, 1 << 60)
                carrier.move()
            return True

        carrier.passes = passes
        address = endpoint.removeprefix("quic://")
        told = await stack.round(address, tmp_path / DEV_CERT_NAME, "-messages", "3000", "-own-id", str(own_id))
    complete(told, 3000)
    assert at == 1 << 60, "moved twice"
