"""The machine stops at every point of staging and committing; every row is in the topic once, whatever was lost.

A driver commits batches of one record and of several, and after the crash does what Spark does: it stages and commits
again whatever it has no answer for, and the batch before that as well.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings
from headrace.log import Log, LogSettings
from headrace.model.errors import BrokerError, Code
from headrace.server.committer import Job
from headrace.server.engine import Engine
from headrace.server.recovery import recover_broker
from headrace.server.snapshots import Snapshots
from tests.crash.faultdisk import Crash, FaultDisk, Survival
from tests.harness.clock import TurnedClock
from tests.harness.drivers import Office, values

SETTINGS = LogSettings(segment_bytes=8192, snapshot_bytes=1500, tail_cache_bytes=4000, fill_bytes=0)
RECORD_BYTES = 1024
PARTS = 4
SIZES = (1, 40, 3, 0, 25)
"""Rows of each batch: a batch of 25 or 40 rows takes several records."""
LOG, STAGING = Path("data/log"), Path("data/staging")
COMMIT_POINTS = {
    "manifest": ("create", "write", "sync", "rename", "unlink"),
    "staged": ("create", "write", "sync", "unlink"),
    "segment": ("write", "sync"),
    "new-segment": ("create", "write", "sync", "rename"),
    "snapshot": ("create", "write", "sync", "rename", "unlink"),
    "directory": ("sync",),
}


class MortalWorker:
    """Does jobs soon; `died` comes true when the machine stops in one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[Job, float], None]) -> None:
        self._loop = loop
        self._done = done
        self.died: asyncio.Future[None] = loop.create_future()

    def submit(self, job: Job) -> None:
        self._loop.call_soon(self._run, job)

    def stop(self) -> None:
        """There is no thread to end."""

    def _run(self, job: Job) -> None:
        try:
            job.run()
        except Crash as crash:
            if not self.died.done():
                self.died.set_exception(crash)
            return
        self._done(job, 0.0)


class Machine:
    """A broker's engine on a disk that may stop; `answered` is the last batch the driver has an answer for."""

    def __init__(self, disk: FaultDisk) -> None:
        self.disk = disk
        self.answered = -1
        self.restart(disk)

    def restart(self, disk: FaultDisk) -> None:
        self.disk = disk
        log = Log.open(LOG, disk, SETTINGS)
        self.clock = clock = TurnedClock()
        broker = recover_broker(log, BrokerSettings(), clock.now())
        self.engine = Engine(log, broker, clock, Snapshots(), self._new_worker)
        self.office = Office(self.engine, STAGING, disk, RECORD_BYTES)

    def _new_worker(self, loop: asyncio.AbstractEventLoop, done: Callable[[Job, float], None]) -> MortalWorker:
        self.worker = MortalWorker(loop, done)
        return self.worker

    async def drive(self) -> None:
        """Stage and commit what is not answered for, and the batch before that once more."""
        for batch in range(max(self.answered, 0), len(SIZES)):
            await self.batch(batch)

    async def batch(self, batch: int) -> None:
        rows, part = content(batch), -(-SIZES[batch] // PARTS)
        receipts = [self.office.stage(batch, rows[part * i : part * (i + 1)], part=f"{i}") for i in range(PARTS)]
        outcome = await self.office.commit(batch, *receipts)
        assert outcome.replayed or batch > self.answered
        self.answered = max(self.answered, batch)

    async def until_the_end(self) -> None:
        """Drive, or die trying. Raises Crash."""
        driving = asyncio.ensure_future(self.drive())
        try:
            await asyncio.wait({driving, self.worker.died}, return_when=asyncio.FIRST_COMPLETED)
            if not self.worker.died.done():
                await driving
                quiet = asyncio.ensure_future(self.engine.drained(60.0))
                await asyncio.wait({quiet, self.worker.died}, return_when=asyncio.FIRST_COMPLETED)
                quiet.cancel()
            if self.worker.died.done():
                self.worker.died.result()
        finally:
            await end_all_but_this()

    async def check(self) -> None:
        """Every batch is there whole, in order, and once; a day later nothing else is left."""
        assert values(self.engine.log) == [value for batch in range(len(SIZES)) for value in content(batch)]
        self.clock.turn(2 * 86_400)
        await self.office.transactions.tend()
        assert self.office.names() == []


async def end_all_but_this() -> None:
    """The machine stopped, or has nothing to do: whatever ran on it runs no more."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def content(batch: int) -> list[bytes]:
    return [b"%d/%d" % (batch, row) + b"." * 80 for row in range(SIZES[batch])]


async def passages() -> dict[str, int]:
    machine = Machine(FaultDisk())
    await machine.until_the_end()
    await machine.check()
    return dict(machine.disk.passed)


PASSAGES = asyncio.run(passages())
POINTS = sorted(point for point in PASSAGES if point.split(".")[1] in COMMIT_POINTS.get(point.split(".")[0], ()))


def test_every_kind_of_point_is_passed() -> None:
    kinds = {tuple(point.split(".")[:2]) for point in POINTS}
    assert kinds == {(kind, operation) for kind, operations in COMMIT_POINTS.items() for operation in operations}


@pytest.mark.parametrize("survival", Survival, ids=lambda survival: survival.name.lower())
@pytest.mark.parametrize("point", POINTS)
async def test_crash_at(point: str, survival: Survival) -> None:
    for passage in range(1, PASSAGES[point] + 1):
        disk = FaultDisk()
        machine = Machine(disk)
        disk.crash_at(point, passage - disk.passed[point])
        if passage <= disk.passed[point]:
            continue
        with pytest.raises(Crash):
            await machine.until_the_end()
        machine.restart(disk.after_crash(survival, seed=passage))
        await machine.office.transactions.tend()
        await machine.until_the_end()
        await machine.check()


async def succeeds(work: Coroutine[None, None, None]) -> bool:
    """Whether the disk let it; no other refusal is expected."""
    try:
        await work
    except BrokerError as refused:
        if refused.code is Code.STORAGE:
            return False
        raise
    return True


FAILING = [
    *(f"staged.{operation}" for operation in ("create", "write", "sync", "unlink")),
    *(f"manifest.{operation}" for operation in ("create", "write", "sync", "rename", "unlink")),
    *("directory.sync", "segment.write", "segment.sync"),
]


@pytest.mark.parametrize("operation", FAILING)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
async def test_a_disk_that_fails_is_told_and_the_commit_can_be_tried_again(operation: str, error: int) -> None:
    for succeeding in range(4):
        disk = FaultDisk()
        machine = Machine(disk)
        for batch in range(len(SIZES)):
            if batch == succeeding:
                disk.fail(operation, error)
            if not await succeeds(machine.batch(batch)):
                await machine.batch(batch)
            disk.heal()
        await machine.engine.drained(5.0)
        await machine.check()
        machine.restart(disk.after_crash(Survival.LOST))
        await machine.check()
