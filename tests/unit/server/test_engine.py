"""A disk that fails and recovers under a running broker: refused is refused, kept is kept, nobody waits for others."""

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.log import OsDisk
from headrace.log.disk import File, WriteOrder
from headrace.log.flush import AHEAD_BYTES
from headrace.model.batch import Buffer, build_batch
from headrace.testing import broker
from tests.harness.peer import NACK, SUBSCRIBE, frame, publish
from tests.harness.stream import Stream, connected


class MoodyDisk(OsDisk):
    """A real disk whose segment files fail on demand."""

    def __init__(self) -> None:
        self.write_error = 0
        self.sync_error = 0
        self.order_error = 0

    def create(self, path: Path) -> File:
        return MoodyFile(super().create(path), self, path)

    def open(self, path: Path, *, writable: bool = False) -> File:
        return MoodyFile(super().open(path, writable=writable), self, path)


class MoodyFile:
    """One file of a moody disk."""

    def __init__(self, file: File, disk: MoodyDisk, path: Path) -> None:
        self._file = file
        self._disk = disk
        self.pread = file.pread
        self.pread_into = file.pread_into
        self.truncate = file.truncate
        self.size = file.size
        self.close = file.close

    def order(self, buffers: Sequence[Buffer], position: int) -> WriteOrder | None:
        if not self._disk.order_error:
            return None
        return WriteOrder(self._disk.order_error, buffers, position, 0)

    def pwritev(self, buffers: Sequence[Buffer], position: int, *, sync: bool = False) -> int:
        if self._disk.order_error:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._disk.write_error:
            half = b"".join(map(bytes, buffers))
            self._file.pwritev([half[: len(half) // 2]], position)
            raise OSError(self._disk.write_error, os.strerror(self._disk.write_error))
        size = self._file.pwritev(buffers, position)
        if sync:
            self.fdatasync()
        return size

    def fdatasync(self) -> None:
        if self._disk.sync_error:
            raise OSError(self._disk.sync_error, os.strerror(self._disk.sync_error))
        self._file.fdatasync()


@pytest.fixture
def full_device() -> Iterator[int]:
    """A descriptor nothing can be written to."""
    fd = os.open("/dev/full", os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("fault", ["write_error", "sync_error", "order_error"])
async def test_refused_publishes_are_named_and_the_log_goes_on_when_space_returns(
    fault: str, tmp_path: Path, full_device: int
) -> None:
    disk = MoodyDisk()
    number = {"write_error": errno.ENOSPC, "sync_error": errno.EIO, "order_error": full_device}[fault]
    async with broker(tmp_path, disk=disk) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        peer.send(publish(b"demo", b"before"))
        await peer.fence()
        setattr(disk, fault, number)
        peer.send(publish(b"demo", b"lost", 21) + publish(b"demo", b"lost too", 22))
        refused = await peer.fence()
        assert [(kind, tag, payload[:2]) for kind, tag, payload in refused] == [
            (NACK, 21, struct.pack(">H", 500)),
            (NACK, 22, struct.pack(">H", 500)),
        ]
        assert refused[0][2][4:].startswith(b"durable publish failed: ")
        assert node.engine.log.failing is not None
        peer.send(frame(SUBSCRIBE, 23, b"\x00\x04demo\x01"))
        assert [(kind, tag) for kind, tag, _ in await peer.fence()] == [(NACK, 23)]
        setattr(disk, fault, 0)
        peer.send(publish(b"demo", b"after"))
        assert await peer.fence() == []
        assert [value for _, value in await peer.take(subscription, 5)] == [b"before", b"after"]
    async with broker(tmp_path) as node:
        assert node.engine.log.report.damage == []
        assert node.engine.log.count_from("demo", 0) == 2


async def test_acks_made_while_the_disk_fails_are_kept_and_fenced_only_when_durable(tmp_path: Path) -> None:
    disk = MoodyDisk()
    async with broker(tmp_path, disk=disk) as node, connected(node) as peer, connected(node) as other:
        subscription = await peer.subscribe(b"demo")
        peer.send(publish(b"demo", b"one") + publish(b"demo", b"two"))
        await peer.fence()
        deliveries = await peer.take(subscription, 2)
        disk.write_error = errno.ENOSPC
        peer.ack(subscription, deliveries[0][0])
        other.send(publish(b"demo", b"three", 31))
        assert [(kind, tag) for kind, tag, _ in await other.fence()] == [(NACK, 31)], "its PONG waits for no stranger"
        disk.write_error = 0
        assert await peer.fence() == []
    async with broker(tmp_path) as node, connected(node) as peer:
        assert node.engine.broker.counters.acked == 1
        again = await peer.subscribe(b"demo")
        assert again == subscription, "handed back after a restart"


async def test_qos_zero_is_dropped_silently_when_the_disk_refuses(tmp_path: Path) -> None:
    disk = MoodyDisk()
    async with broker(tmp_path, disk=disk) as node, connected(node) as peer:
        disk.write_error = errno.ENOSPC
        peer.send(publish(b"demo", b"lost", 1, qos=0))
        assert await peer.fence() == []
        assert node.engine.refused_total == 1
        disk.write_error = 0


async def test_state_after_a_restart_is_the_state_before(tmp_path: Path) -> None:
    async with broker(tmp_path) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        peer.send(b"".join(publish(b"demo", b"%d" % n) for n in range(10)))
        await peer.fence()
        deliveries = await peer.take(subscription, 6)
        peer.ack(subscription, *(tag for tag, _ in deliveries[:3]))
        await peer.fence()
        before = node.engine.broker.subscriptions()
    async with broker(tmp_path) as node, connected(node) as peer:
        after = node.engine.broker.subscriptions()
        assert [(s.id, s.pending, s.in_flight, s.acked) for s in after] == [
            (s.id, s.pending, s.in_flight, s.acked) for s in before
        ]
        values: set[bytes] = set()
        while len(values) < 7:
            values |= {value for _, value in await peer.take(subscription, 10)}
        assert values == {b"%d" % n for n in range(3, 10)}


async def test_an_internal_publish_returns_when_it_is_durable() -> None:
    async with broker() as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        payload = build_batch("demo", [b"inside"], timestamp_us=1)
        await node.engine.publish_durably("demo", payload, 1)
        assert node.engine.log.durable_offset == node.engine.log.next_offset
        assert [value for _, value in await peer.take(subscription, 1)] == [b"inside"]


@pytest.mark.parametrize("sync", ["every_n:3", "interval_ms:1", "none"])
async def test_other_policies_fence_after_the_write(sync: str, tmp_path: Path) -> None:
    async with broker(tmp_path, log={"sync": sync}) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        peer.send(b"".join(publish(b"demo", b"%d" % n) for n in range(5)))
        await peer.fence()
        assert len(await peer.take(subscription, 5)) == 5
    async with broker(tmp_path) as node:
        assert node.engine.log.count_from("demo", 0) == 5


class BarrenDisk(MoodyDisk):
    """A disk that takes records, and nothing that is zeros alone; `asked` counts those."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def open(self, path: Path, *, writable: bool = False) -> File:
        return BarrenFile(super().open(path, writable=writable), self, path)


class BarrenFile(MoodyFile):
    """One file of it."""

    _disk: BarrenDisk

    def pwritev(self, buffers: Sequence[Buffer], position: int, *, sync: bool = False) -> int:
        if not any(map(any, buffers)):
            self._disk.asked += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwritev(buffers, position, sync=sync)


async def test_ground_is_filled_between_flushes_until_there_is_enough_for_many(tmp_path: Path) -> None:
    async with broker(tmp_path, log={"fill_bytes": AHEAD_BYTES // 2}) as node, connected(node) as peer:
        await _published(peer)
        (segment,) = (tmp_path / "log").glob("*.seg")
        while segment.stat().st_size < AHEAD_BYTES:
            await _published(peer)
        assert node.engine.log.size_bytes < AHEAD_BYTES // 2


async def test_a_disk_that_will_not_be_filled_is_asked_once_after_a_flush(tmp_path: Path) -> None:
    disk = BarrenDisk()
    async with broker(tmp_path, disk=disk, log={"fill_bytes": AHEAD_BYTES // 2}) as node, connected(node) as peer:
        for _ in range(5):
            await _published(peer)
        await node.engine.drained(20)
        assert 1 <= disk.asked <= 5
        assert node.engine.log.failing is None


async def _published(peer: Stream) -> None:
    peer.send(publish(b"demo", b"one"))
    assert await peer.fence() == []
