from pathlib import Path

from headrace.log import LogSettings
from tests.unit.log.records import batches_of, filled, opened

SECOND = 1_000_000
KEEP_ALL = LogSettings(segment_bytes=4096, fill_bytes=0, retention_s=100)
FAR = 2**63


def test_old_segments_go_once_two_snapshots_are_beyond_them(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, KEEP_ALL)
    assert log.retire(10_000 * SECOND, FAR) is None
    log.write_snapshot(b"", log.durable_offset)
    removal = log.retire(10_000 * SECOND, FAR)
    assert removal is not None
    before = log.durable_offset
    removal.run()
    assert removal.error is None
    assert [path.stem for path in sorted(tmp_path.glob("*.seg"))] == [f"{log.first_offset:020}"]
    assert sorted(tmp_path.glob("*.idx")) == []
    assert (log.next_offset, log.first_offset > 0) == (before, True)
    assert all(record.first >= log.first_offset for record in log.iter_records(0))
    log.close()
    assert opened(tmp_path, KEEP_ALL).next_offset == before


def test_young_segments_stay(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, KEEP_ALL)
    log.write_snapshot(b"", log.durable_offset)
    assert log.retire(60 * SECOND, FAR) is None


def test_age_is_counted_from_the_youngest_record(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, KEEP_ALL)
    log.write_snapshot(b"", log.durable_offset)
    removal = log.retire((100 + 25) * SECOND, FAR)
    assert removal is not None
    assert log.first_offset <= 25 * 4
    oldest = next(iter(log.iter_records(0)))
    assert oldest.first == log.first_offset


def test_what_a_subscription_needs_stays_unless_retention_is_hard(tmp_path: Path) -> None:
    log = filled(tmp_path / "soft", 60, KEEP_ALL)
    log.write_snapshot(b"", log.durable_offset)
    assert log.retire(10_000 * SECOND, needed_from=0) is None
    removal = log.retire(10_000 * SECOND, needed_from=100)
    assert removal is not None
    assert 0 < log.first_offset <= 100
    hard = LogSettings(segment_bytes=4096, fill_bytes=0, retention_s=100, retention_hard=True)
    log = filled(tmp_path / "hard", 60, hard)
    log.write_snapshot(b"", log.durable_offset)
    assert log.retire(10_000 * SECOND, needed_from=0) is not None


def test_topics_forget_what_was_retired(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4096, fill_bytes=0, retention_s=0, tail_cache_bytes=0)
    log = filled(tmp_path, 60, settings)
    total = log.count_from("orders", 0)
    log.write_snapshot(b"", log.durable_offset)
    assert log.retire(10_000 * SECOND, FAR) is not None
    batches = list(batches_of(log, "orders", 0))
    assert batches[0].base >= log.first_offset
    assert log.count_from("orders", 0) == sum(batch.count for batch in batches) < total
