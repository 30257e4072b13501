"""Bursts of datagrams over real sockets: nothing is joined, cut or reordered on the way."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator

import pytest

from headrace.quic import datagrams
from headrace.quic.datagrams import Address, DatagramSocket, bind, connect


class End:
    """A socket and what has arrived there, datagram by datagram."""

    def __init__(self, sock: socket.socket) -> None:
        self.arrived: list[bytes] = []
        self.sender: Address | None = None
        self.failures: list[OSError] = []
        self._news = asyncio.Event()
        self.socket = DatagramSocket(sock, received=self._received, turned=self._news.set, failed=self._fail)

    def _received(self, data: bytes, segment_size: int, address: Address) -> None:
        self.arrived += [data[at : at + segment_size] for at in range(0, len(data), segment_size)]
        self.sender = address

    def _fail(self, error: OSError) -> None:
        self.failures.append(error)
        self._news.set()

    async def until(self, count: int) -> list[bytes]:
        while len(self.arrived) < count and not self.failures:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 10)
        return self.arrived


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    there = End(bind("127.0.0.1", 0))
    here = End(connect("127.0.0.1", there.socket.address[1]))
    yield here, there
    here.socket.close()
    there.socket.close()


BURSTS = {
    "one": [b"x"],
    "equal": [bytes([i]) * 1350 for i in range(40)],
    "a smaller last": [bytes([i]) * 1350 for i in range(20)] + [b"end"],
    "more than one call carries": [bytes([i % 250]) * 1200 for i in range(200)],
    "growing": [b"y" * size for size in (10, 20, 20, 30, 1200, 40, 1350, 1350)],
    "large": [bytes(30_000), bytes(30_000), bytes(1000)],
}


@pytest.mark.parametrize("name", BURSTS)
@pytest.mark.parametrize("segmenting", [True, False])
async def test_a_burst_arrives_as_it_was(ends: tuple[End, End], name: str, segmenting: bool) -> None:
    here, there = ends
    here.socket._segmenting &= segmenting
    here.socket.send(BURSTS[name], None)
    assert await there.until(len(BURSTS[name])) == BURSTS[name]
    assert there.sender is not None
    there.socket.send(BURSTS[name], there.sender)
    assert await here.until(len(BURSTS[name])) == BURSTS[name]


async def test_a_card_that_cannot_segment_is_asked_only_once(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ends
    genuine, tries = DatagramSocket._send_run, 0

    def refusing(self: DatagramSocket, run: list[bytes], address: Address | None) -> None:
        nonlocal tries
        if len(run) > 1:
            tries += 1
            raise OSError(errno.EIO, "no segmentation")
        genuine(self, run, address)

    monkeypatch.setattr(DatagramSocket, "_send_run", refusing)
    here.socket._segmenting = True
    for _ in range(3):
        here.socket.send(BURSTS["equal"], None)
    assert await there.until(120) == BURSTS["equal"] * 3
    assert tries == 1


async def test_what_the_kernel_will_not_take_yet_waits(ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = ends
    genuine, refusals = DatagramSocket._send_run, 3

    def full(self: DatagramSocket, run: list[bytes], address: Address | None) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise BlockingIOError
        genuine(self, run, address)

    monkeypatch.setattr(DatagramSocket, "_send_run", full)
    writable = asyncio.Event()
    here.socket.send([b"first"], None)
    assert here.socket.blocked
    here.socket.when_writable(writable.set)
    here.socket.send([b"second"], None)
    await asyncio.wait_for(writable.wait(), 10)
    assert await there.until(2) == [b"first", b"second"]
    assert not here.socket.blocked


async def test_a_probe_too_large_for_the_path_is_dropped(ends: tuple[End, End]) -> None:
    here, there = ends
    here.socket.send([bytes(70_000), b"after"], None)
    assert await there.until(1) == [b"after"]
    assert not here.failures


async def test_nobody_listens_there() -> None:
    free = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    here = End(connect("127.0.0.1", port))
    here.socket.send([b"hello?"], None)
    await here.until(1)
    assert here.failures[0].errno == errno.ECONNREFUSED
    here.socket.close()
    here.socket.close()
    here.socket.send([b"late"], None)


async def test_ipv6_and_names() -> None:
    for host in ("::1", "localhost"):
        there = End(bind(host, 0))
        here = End(connect(host, there.socket.address[1]))
        here.socket.send([b"hello"], None)
        assert await there.until(1) == [b"hello"]
        here.socket.close()
        there.socket.close()


def test_an_address_that_is_not_here() -> None:
    with pytest.raises(OSError):  # noqa: PT011
        bind("192.0.2.1", 0)


@pytest.mark.parametrize("name", BURSTS)
def test_runs_keep_order_and_bounds(name: str) -> None:
    runs = datagrams._runs(BURSTS[name], True)
    assert [each for run in runs for each in run] == BURSTS[name]
    for run in runs:
        assert len({len(each) for each in run[:-1]}) <= 1
        assert len(run[-1]) <= len(run[0])
        assert len(run) == 1 or sum(map(len, run)) <= datagrams.SEGMENTED_SIZE_MAX
        assert len(run) <= datagrams.SEGMENTS_MAX
