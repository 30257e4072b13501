from pathlib import Path

import pytest

from headrace.log import Log, LogSettings, OsDisk
from headrace.log.scrub import Scrub
from tests.unit.log.records import batches_of, filled, flushed

HARD = LogSettings(segment_bytes=4096, fill_bytes=0, retention_s=0, retention_hard=True)


def passed(log: Log, step: int = 1000) -> Scrub:
    """A whole pass, its findings told to the log."""
    scrub = log.begin_scrub()
    while not scrub.is_over:
        scrub.step(step)
        for found in scrub.take_damage():
            log.note_damage(found)
    return scrub


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
def test_a_pass_over_a_good_log_reads_all_of_it_and_finds_nothing(tmp_path: Path, step: int) -> None:
    log = filled(tmp_path, 60)
    scrub = passed(log, step)
    assert scrub.done == scrub.size == log.size_bytes
    assert (log.damage, scrub.failures) == ([], [])
    log.close()


def test_every_flipped_byte_is_found_in_the_same_words_by_scrub_and_reader(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, LogSettings(segment_bytes=4096, fill_bytes=0, tail_cache_bytes=0))
    paths = sorted(tmp_path.glob("*.seg"))
    for path in paths:
        whole = path.read_bytes()
        for position in range(0, len(whole), 37):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
            scrub = log.begin_scrub()
            while not scrub.is_over:
                scrub.step(500)
            (found,) = scrub.take_damage()
            assert found.start <= position < found.end
            if position >= 64:
                log.damage.clear()
                list(log.iter_records(0))
                assert log.damage == [found]
        path.write_bytes(whole)
    log.close()


def test_what_scrub_found_is_known_to_readers_and_taken_once(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, LogSettings(segment_bytes=4096, fill_bytes=0, tail_cache_bytes=0))
    path = min(tmp_path.glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    passed(log)
    (damage,) = log.take_damage()
    assert log.take_damage() == []
    found = next(batches_of(log, "orders", 0))
    assert log.lost_between("orders", 0, found.base) == [(damage.first, 3)]
    assert log.lost_between("payments", 0, 4) == []
    passed(log)
    assert log.take_damage() == []
    write = log.begin_losses([damage], 9)
    write.run()
    assert [(loss.damage, loss.met_us, loss.given_up) for loss in log.catalog.losses] == [(damage, 9, False)]
    log.close()


def test_a_segment_that_retention_took_meanwhile_is_nothing_to_find(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, HARD)
    log.write_snapshot(b"", log.durable_offset)
    scrub = log.begin_scrub()
    scrub.step(100)
    removal = log.retire(1 << 60, 1 << 60)
    assert removal is not None
    removal.run()
    while not scrub.is_over:
        scrub.step(100)
    assert (scrub.take_damage(), scrub.failures) == ([], [])
    log.close()


def test_what_is_not_synced_is_left_alone(tmp_path: Path) -> None:
    from headrace.log import SyncPolicy
    from tests.unit.log.records import batch, record

    log = Log.open(tmp_path, OsDisk(), LogSettings(sync=SyncPolicy.parse("none")))
    log.append(record(batch(count=3)), refusable=True)
    flushed(log)
    assert log.begin_scrub().is_over
    flushed(log, sync=True)
    assert log.begin_scrub().size == log.size_bytes
    log.close()
