from pathlib import Path

from headrace.log import OsDisk, dump, repair, verify
from tests.unit.log.records import batch, batches_of, filled, flushed, opened, record


def damaged(tmp_path: Path, *positions: int) -> bytes:
    """A log of several segments whose first has bad bytes at these positions; returns the good bytes."""
    filled(tmp_path, 60).close()
    path = min(tmp_path.glob("*.seg"))
    good = path.read_bytes()
    data = bytearray(good)
    for position in positions:
        data[position] ^= 0xFF
    path.write_bytes(data)
    return good


def test_repair_keeps_every_other_record_and_the_bytes_it_took_out(tmp_path: Path) -> None:
    good = damaged(tmp_path, 70, 1000)
    whole = {(row.offset, row.span) for row in dump(tmp_path, OsDisk()) if row.kind not in ("damage", "lost")}
    report = repair(tmp_path, OsDisk())
    assert len(report.damage) == len(report.kept_aside) == 2
    for damage, name in zip(report.damage, report.kept_aside, strict=True):
        kept = (tmp_path / name).read_bytes()
        assert len(kept) == damage.end - damage.start
        assert sum(a != b for a, b in zip(kept, good[damage.start : damage.end], strict=True)) == 1
    after = verify(tmp_path, OsDisk())
    assert after.intact
    assert after.lost == sum(damage.count for damage in report.damage)
    assert {(row.offset, row.span) for row in dump(tmp_path, OsDisk()) if row.kind != "lost"} == whole
    assert [row.span for row in dump(tmp_path, OsDisk()) if row.kind == "lost"] == [d.count for d in report.damage]


def test_a_repaired_log_opens_reads_and_goes_on(tmp_path: Path) -> None:
    damaged(tmp_path, 70)
    (damage,) = repair(tmp_path, OsDisk()).damage
    log = opened(tmp_path)
    assert next(batches_of(log, "orders", 0)).base == 12
    assert log.count_from("orders", 0) == 57
    assert (damage.first, damage.count) == (0, 3)
    log.append(record(batch()), refusable=True)
    assert flushed(log).error is None
    log.close()


def test_repairing_twice_changes_nothing(tmp_path: Path) -> None:
    damaged(tmp_path, 70)
    repair(tmp_path, OsDisk())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    report = repair(tmp_path, OsDisk())
    assert report.intact
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_damage_to_a_repaired_place_is_named_again(tmp_path: Path) -> None:
    damaged(tmp_path, 70)
    repair(tmp_path, OsDisk())
    path = min(tmp_path.glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert [(d.first, d.count) for d in verify(tmp_path, OsDisk()).damage] == [(0, 3)]


def test_dump_shows_batches_events_and_holes(tmp_path: Path) -> None:
    damaged(tmp_path, 70)
    rows = list(dump(tmp_path, OsDisk(), to=9))
    assert [(row.offset, row.span, row.kind, row.topic) for row in rows] == [
        (0, 3, "damage", ""),
        (3, 1, "acked", ""),
        (4, 3, "batch", "payments"),
        (7, 1, "acked", ""),
        (8, 3, "batch", "stock"),
    ]
    assert [row.offset for row in dump(tmp_path, OsDisk(), offset=9, to=12)] == [8, 11]


def test_verify_counts_everything_and_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 60).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    report = verify(tmp_path, OsDisk())
    assert (report.records, report.messages, report.events, report.next_offset) == (120, 180, 60, 240)
    assert (report.intact, report.torn, report.superseded_bytes) == (True, [], 0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
