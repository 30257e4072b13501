import errno
from pathlib import Path

import pytest

from headrace.log import Log, LogSettings, SyncPolicy
from headrace.model.batch import Batch
from headrace.model.parts import RECORD_HEADER_SIZE
from tests.crash.faultdisk import FaultDisk
from tests.unit.log.records import batch, batches_of, event, filled, flushed, opened, record

DIRECTORY = Path("/log")


def on(disk: FaultDisk, sync: str = "always") -> Log:
    return Log.open(DIRECTORY, disk, LogSettings(sync=SyncPolicy.parse(sync), segment_bytes=4096, fill_bytes=0))


def publish(log: Log, topic: str = "orders", count: int = 2) -> int:
    return log.append(record(batch(topic, count)), refusable=True)


def test_append_gives_offsets_without_gaps(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert [publish(log, count=3), log.append(record(event()), refusable=False), publish(log)] == [0, 3, 4]
    assert (log.next_offset, log.durable_offset) == (6, 0)
    log.close()


def test_nothing_is_seen_before_it_is_durable(tmp_path: Path) -> None:
    log = opened(tmp_path)
    publish(log)
    flush = log.begin_flush()
    assert flush is not None
    assert (log.batch_at("orders", 0), log.topic_end("orders"), list(log.iter_records(0))) == (None, 0, [])
    flush.run()
    assert log.batch_at("orders", 0) is None
    (shown,) = log.end_flush(flush).batches
    assert log.batch_at("orders", 1) is shown
    assert log.durable_offset == 2
    log.close()


def test_the_batch_shown_is_the_record_appended_not_a_copy(tmp_path: Path) -> None:
    log = opened(tmp_path)
    mine = record(batch())
    log.append(mine, refusable=True)
    (shown,) = flushed(log).batches
    assert shown.buffer is mine
    log.close()


def test_one_flush_at_a_time_takes_all_that_is_pending(tmp_path: Path) -> None:
    log = opened(tmp_path)
    publish(log)
    first = log.begin_flush()
    assert first is not None
    publish(log)
    publish(log)
    pending = log.pending_bytes
    assert log.begin_flush() is None
    first.run()
    log.end_flush(first)
    assert 0 < log.pending_bytes < pending
    assert [shown.base for shown in flushed(log).batches] == [2, 4]
    assert log.begin_flush() is None
    log.close()


def test_the_parts_of_a_record_become_visible_together(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(record(batch("orders", 2), event(), batch("payments", 3)), refusable=True)
    shown = flushed(log).batches
    assert [(b.topic, b.base, b.count) for b in shown] == [("orders", 0, 2), ("payments", 3, 3)]
    (found,) = log.iter_records(0)
    assert (found.first, found.span) == (0, 6)
    assert [type(part) for part in found.parts()] == [Batch, tuple, Batch]
    log.close()


@pytest.mark.parametrize("cache", [0, 2000, 1 << 20])
def test_a_batch_is_found_by_any_offset_from_memory_or_disk(tmp_path: Path, cache: int) -> None:
    log = filled(tmp_path, 90, LogSettings(segment_bytes=4096, tail_cache_bytes=cache, fill_bytes=0))
    assert len(list(tmp_path.glob("*.seg"))) > 3
    for offset in range(log.next_offset):
        found = log.batch_at("payments", offset)
        expected = next((base for base in range(4, 360, 12) if base + 3 > offset), None)
        assert (found.base if found else None) == expected
        assert log.count_from("payments", offset) == sum(1 for m in range(360) if m >= offset and m % 12 in (4, 5, 6))
    assert log.topics() == ["orders", "payments", "stock"]
    assert (log.batch_at("nobody", 0), log.topic_end("nobody"), log.count_from("nobody", 0)) == (None, 0, 0)
    log.close()


def test_records_between_two_offsets(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    assert [found.first for found in log.iter_records(5, 13)] == [4, 7, 8, 11, 12]
    assert sum(found.span for found in log.iter_records(0)) == log.next_offset
    assert list(log.iter_records(log.next_offset)) == []
    log.close()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    before = [(b.base, b.value(0)) for b in batches_of(log, "stock", 0)]
    log.close()
    log = opened(tmp_path)
    assert [(b.base, b.value(0)) for b in batches_of(log, "stock", 0)] == before
    assert (log.next_offset, log.durable_offset, log.synced_offset) == (240, 240, 240)
    log.close()


def test_policies_that_put_off_the_sync() -> None:
    disk = FaultDisk()
    log = on(disk, "every_n:5")
    syncs = disk.passed["segment.sync.after"]
    for _ in range(2):
        publish(log)
        assert flushed(log).error is None
    assert (log.durable_offset, log.synced_offset) == (4, 0)
    publish(log)
    flushed(log)
    assert (log.durable_offset, log.synced_offset) == (6, 6)
    assert disk.passed["segment.sync.after"] == syncs + 1


def test_the_interval_is_driven_by_the_caller() -> None:
    log = on(FaultDisk(), "interval_ms:10")
    publish(log)
    flushed(log, now=1_000)
    assert (log.sync_due_us, log.begin_flush(5_000)) == (11_000, None)
    flushed(log, now=11_000)
    assert (log.synced_offset, log.sync_due_us) == (2, None)


def test_a_sync_can_be_demanded_whatever_the_policy() -> None:
    log = on(FaultDisk(), "none")
    publish(log)
    flushed(log)
    assert log.synced_offset == 0
    flushed(log, sync=True)
    assert log.synced_offset == 2
    assert log.begin_flush(sync=True) is None


def test_a_full_disk_refuses_publishes_and_keeps_events() -> None:
    disk = FaultDisk()
    log = on(disk)
    publish(log)
    flushed(log)
    mine = record(batch())
    log.append(mine, refusable=True)
    log.append(record(event(77)), refusable=False)
    disk.fail("segment.write", errno.ENOSPC)
    outcome = flushed(log)
    assert "ENOSPC" in str(outcome.error)
    assert log.failing is outcome.error
    assert (outcome.batches, list(outcome.refused), outcome.in_doubt) == ([], [mine], False)
    assert (log.durable_offset, log.next_offset) == (2, 3)
    assert flushed(log).error is log.failing is None
    assert [found.first for found in log.iter_records(0)] == [0, 2]


def test_publishes_appended_during_a_failing_flush_are_refused_with_it() -> None:
    disk = FaultDisk()
    log = on(disk)
    publish(log)
    flush = log.begin_flush()
    assert flush is not None
    late = record(batch())
    log.append(late, refusable=True)
    disk.fail("new-segment.create", errno.EACCES)
    disk.fail("new-segment.create", errno.EACCES)
    flush.run()
    assert late in log.end_flush(flush).refused
    assert log.next_offset == 0


def test_with_nothing_to_write_a_failing_log_still_tries_again() -> None:
    disk = FaultDisk()
    log = on(disk)
    publish(log)
    flushed(log)
    publish(log)
    disk.fail("segment.write", errno.ENOSPC)
    flushed(log)
    assert log.failing is not None
    assert flushed(log).error is None
    assert log.failing is None


def test_after_a_failed_sync_the_log_goes_on_in_a_new_segment() -> None:
    disk = FaultDisk()
    log = on(disk)
    publish(log)
    flushed(log)
    publish(log)
    disk.fail("segment.sync", errno.EIO)
    assert flushed(log).error is not None
    publish(log, "payments")
    assert flushed(log).error is None
    assert sorted(name for name in disk.list(DIRECTORY) if name.endswith(".seg")) == [f"{0:020}.seg", f"{2:020}.seg"]
    assert [b.base for b in batches_of(log, "payments", 0)] == [2]


def test_a_failed_sync_moves_unsynced_records_that_are_visible() -> None:
    disk = FaultDisk()
    log = on(disk, "every_n:100")
    for _ in range(3):
        publish(log)
        flushed(log)
    flushed(log, sync=True)
    for _ in range(3):
        publish(log)
        flushed(log)
    disk.fail("segment.sync", errno.EIO)
    assert flushed(log, sync=True).error is not None
    assert log.synced_offset == log.durable_offset == 12
    assert [b.base for b in batches_of(log, "orders", 0)] == [0, 2, 4, 6, 8, 10]
    assert log.count_from("orders", 0) == 12
    log.close()
    again = on(disk, "every_n:100")
    assert [b.base for b in batches_of(again, "orders", 0)] == [0, 2, 4, 6, 8, 10]


def test_a_disk_that_takes_nothing_back_leaves_a_doubt() -> None:
    disk = FaultDisk()
    log = on(disk)
    publish(log)
    flushed(log)
    publish(log)
    disk.fail("segment.write", errno.EIO)
    disk.fail("segment.truncate", errno.EIO)
    disk.fail("new-segment.create", errno.EIO)
    assert flushed(log).in_doubt
    publish(log)
    assert flushed(log).error is None
    assert log.durable_offset == 4


def test_small_flushes_fill_ahead_and_full_segments_are_cut(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4096, fill_bytes=10_000)
    log = filled(tmp_path, 40, settings)
    *full, active = sorted(tmp_path.glob("*.seg"))
    assert active.stat().st_size > 10_000
    assert [path.stat().st_size for path in full] == [path.stat().st_size & ~7 for path in full]
    assert all(path.stat().st_size <= 4096 for path in full)
    log.close()
    log = opened(tmp_path, settings)
    assert (log.next_offset, log.report.torn) == (160, [])
    log.close()


def test_a_snapshot_is_of_synced_offsets_only() -> None:
    log = on(FaultDisk(), "none")
    publish(log)
    flushed(log)
    with pytest.raises(AssertionError, match="stable storage"):
        log.begin_snapshot(b"", log.durable_offset)


def test_snapshots_are_due_by_bytes(tmp_path: Path) -> None:
    log = opened(tmp_path, LogSettings(snapshot_bytes=200, fill_bytes=0))
    due = []
    for _ in range(2):
        publish(log)
        flushed(log)
        due.append(log.snapshot_due)
    log.write_snapshot(b"", log.durable_offset)
    assert [*due, log.snapshot_due] == [False, True, False]
    log.close()


def test_a_record_whose_parts_do_not_add_up_is_our_bug(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(AssertionError, match="add up"):
        log.append(bytearray(RECORD_HEADER_SIZE + 8), refusable=True)
    log.close()
