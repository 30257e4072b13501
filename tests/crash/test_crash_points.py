"""The machine stops at every point at which the log changes something on disk, and everything promised is there."""

import errno

import pytest

from headrace.log import LogSettings, repair
from headrace.log.format import SEGMENT_HEADER_SIZE
from tests.crash.faultdisk import Crash, FaultDisk, Survival
from tests.crash.witness import DIRECTORY, Witness

SETTINGS = LogSettings(segment_bytes=4096, retention_s=0, tail_cache_bytes=4000, fill_bytes=1500)

WHOLE = ("before", "after")
WRITE = ("before", "torn", "after")
OPERATIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "new-segment": {"create": WHOLE, "write": WRITE, "sync": WHOLE, "rename": WHOLE, "unlink": WHOLE},
    "segment": {"write": WRITE, "sync": WHOLE, "truncate": WHOLE, "unlink": WHOLE},
    "index": {"create": WHOLE, "write": WRITE, "sync": WHOLE, "rename": WHOLE, "unlink": WHOLE},
    "snapshot": {"create": WHOLE, "write": WRITE, "sync": WHOLE, "rename": WHOLE, "unlink": WHOLE},
    "torn": {"create": WHOLE, "write": WRITE, "sync": WHOLE, "rename": WHOLE},
    "damaged": {"create": WHOLE, "write": WRITE, "sync": WHOLE, "rename": WHOLE},
    "catalog": {"create": WHOLE, "write": WRITE, "sync": WHOLE, "rename": WHOLE},
    "directory": {"sync": WHOLE},
}
POINTS = {
    f"{kind}.{operation}.{moment}"
    for kind, operations in OPERATIONS.items()
    for operation, moments in operations.items()
    for moment in moments
}


class Story:
    """A log's eventful life on a disk that may stop at any moment; `disk` is the one it was on last."""

    def __init__(self, disk: FaultDisk) -> None:
        self.disk = disk
        self.witness: Witness | None = None

    def run(self) -> None:
        """Live it to the end."""
        self.witness = witness = Witness(self.disk, SETTINGS)
        for chapter in (
            fills_segments,
            fills_ahead,
            writes_snapshots,
            disk_is_full,
            sync_fails,
            cut_fails,
            tears,
            loses_an_index,
        ):
            chapter(witness, self.disk)
        bits_rot(witness, self.disk)
        old_segments_go(witness, self.disk)


def fills_segments(witness: Witness, disk: FaultDisk) -> None:
    for _ in range(8):
        witness.publish()
        witness.settle()
        witness.transact()
        witness.publish(count=9)
        assert witness.flush()


def fills_ahead(witness: Witness, disk: FaultDisk) -> None:
    """Between flushes, on a disk that now and then will not."""
    for fault in (None, "segment.write", "segment.sync", None):
        witness.publish()
        assert witness.flush()
        if fault is not None:
            disk.fail(fault, errno.EIO)
        assert witness.fill()
        witness.check()
    assert not witness.fill()


def writes_snapshots(witness: Witness, disk: FaultDisk) -> None:
    for _ in range(3):
        witness.publish()
        assert witness.flush()
        witness.snapshot()


def disk_is_full(witness: Witness, disk: FaultDisk) -> None:
    disk.fail("segment.write", errno.ENOSPC)
    witness.publish()
    witness.settle()
    assert not witness.flush()
    witness.settle()
    assert witness.flush()


def sync_fails(witness: Witness, disk: FaultDisk) -> None:
    disk.fail("segment.sync", errno.EIO)
    witness.settle()
    witness.publish()
    assert not witness.flush()
    assert witness.flush()


def cut_fails(witness: Witness, disk: FaultDisk) -> None:
    disk.fail("segment.write", errno.EIO)
    disk.fail("segment.truncate", errno.EIO)
    witness.publish()
    witness.settle()
    assert not witness.flush()
    witness.publish()
    assert witness.flush()


def tears(witness: Witness, disk: FaultDisk) -> None:
    """Recovery finds half a record at the end and a segment and a snapshot that never got their names."""
    witness.log.close()
    path = max(DIRECTORY / name for name in disk.list(DIRECTORY) if name.endswith(".seg"))
    disk.contents(path).extend(b"\x01half a record".ljust(40, b"?"))
    for suffix in (".seg.tmp", ".snap.tmp"):
        disk.create(DIRECTORY / f"{9:020}{suffix}").pwritev([b"unfinished"], 0)
    witness.reopen(disk)
    assert [str(torn) for torn in witness.log.report.torn]
    witness.check()


def loses_an_index(witness: Witness, disk: FaultDisk) -> None:
    disk.unlink(min(DIRECTORY / name for name in disk.list(DIRECTORY) if name.endswith(".idx")))
    witness.reopen(disk)
    witness.check()


def bits_rot(witness: Witness, disk: FaultDisk) -> None:
    """The first record goes bad, and is repaired."""
    witness.log.close()
    path = min(DIRECTORY / name for name in disk.list(DIRECTORY) if name.endswith(".seg"))
    witness.damaged.add(witness.visible[0])
    disk.damage(path, SEGMENT_HEADER_SIZE + 100, 0x10)
    report = repair(DIRECTORY, disk)
    assert len(report.damage) == 1
    witness.reopen(disk)
    witness.check()


def old_segments_go(witness: Witness, disk: FaultDisk) -> None:
    witness.publish()
    assert witness.flush()
    witness.snapshot()
    witness.publish()
    assert witness.flush()
    witness.snapshot()
    witness.retire(now=10**9, needed_from=2**63)
    assert witness.retired
    witness.check()


def passages() -> dict[str, int]:
    """How often an undisturbed life passes each point."""
    disk = FaultDisk()
    Story(disk).run()
    return dict(disk.passed)


PASSAGES = passages()


def test_every_declared_point_is_passed_and_no_other() -> None:
    assert set(PASSAGES) == POINTS
    assert len(POINTS) >= 40


@pytest.mark.parametrize("survival", Survival, ids=lambda survival: survival.name.lower())
@pytest.mark.parametrize("point", sorted(POINTS))
def test_crash_at(point: str, survival: Survival) -> None:
    for passage in range(1, PASSAGES[point] + 1):
        disk = FaultDisk()
        disk.crash_at(point, passage)
        story = Story(disk)
        with pytest.raises(Crash):
            story.run()
        after = disk.after_crash(survival, seed=passage)
        witness = story.witness
        if witness is None:
            Witness(after, SETTINGS)
            continue
        witness.recover(after)
        witness.check()
        goes_on(witness, after)


def goes_on(witness: Witness, disk: FaultDisk) -> None:
    """The log can be appended to, and a second crash takes nothing of it."""
    witness.publish()
    witness.settle()
    assert witness.flush()
    witness.check()
    witness.recover(disk.after_crash(Survival.LOST))
    witness.check()
