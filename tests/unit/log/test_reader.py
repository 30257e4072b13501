from pathlib import Path

from headrace.log import LogSettings
from headrace.log.reader import Stretch
from headrace.model.batch import Batch
from tests.unit.log.records import batch, batches_of, filled, opened

COLD = LogSettings(segment_bytes=4096, tail_cache_bytes=0, fill_bytes=0)


def test_a_stretch_finds_the_batch_or_the_next() -> None:
    batches = [Batch(batch(count=3), 0, base) for base in (10, 20, 30)]
    stretch = Stretch(batches)
    found = [stretch.at(offset) for offset in (0, 10, 12, 13, 22, 32, 33)]
    assert found == [batches[0], batches[0], batches[0], batches[1], batches[1], batches[2], None]


def test_an_index_that_goes_bad_while_serving_is_done_without(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, COLD)
    log.close()
    log = opened(tmp_path, COLD)
    for index in tmp_path.glob("*.idx"):
        index.write_bytes(b"rubbish")
    assert [b.base for b in batches_of(log, "orders", 0)] == list(range(0, 240, 12))
    assert sum(found.span for found in log.iter_records(0)) == 240
    log.close()


def test_a_record_that_goes_bad_while_serving_is_left_out_and_named(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, COLD)
    path = min(tmp_path.glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert [b.base for b in batches_of(log, "orders", 0)][:2] == [12, 24]
    assert [b.base for b in batches_of(log, "stock", 0)][:2] == [8, 20]
    assert [(d.segment, d.first, d.count) for d in log.damage] == [(path.name, 0, 3)]
    log.close()


def test_iterating_goes_on_in_a_segment_that_is_retired_meanwhile(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4096, tail_cache_bytes=0, fill_bytes=0, retention_s=0)
    log = filled(tmp_path, 60, settings)
    log.write_snapshot(b"", log.durable_offset)
    records = log.iter_records(0)
    first = next(records)
    removal = log.retire(10**12, 2**63)
    assert removal is not None
    removal.run()
    segment_end = removal.segments[0].end
    taken = [first]
    while taken[-1].first + taken[-1].span < segment_end:
        taken.append(next(records))
    assert sum(found.span for found in taken) == segment_end
    log.close()
