"""The catalog makes "missing" and "foreign" mean something: every file that goes is reported, or does no harm."""

import shutil
from pathlib import Path

import pytest

from headrace.log import Log, LogDamaged, LogSettings, OsDisk, repair, verify
from headrace.log.catalog import (
    CATALOG_NAMES,
    LOSSES_MAX,
    BadCatalog,
    Catalog,
    CatalogFile,
    decode_catalog,
    encode_catalog,
    find_catalog,
)
from headrace.log.committed import COMMITTED_NAME
from headrace.log.format import NewerFormat, SegmentHeader, decode_segment_header
from headrace.log.report import Damage, Loss
from headrace.log.snapshot import Snapshot, decode_snapshot
from headrace.model.errors import StorageError
from tests.unit.log.records import batch, filled, flushed, opened, record

ID = bytes(range(16))
HARD = LogSettings(segment_bytes=4096, fill_bytes=0, retention_s=0, retention_hard=True)
LOSS = Loss(Damage("a.seg", 1, 2, 3, 4), 5, given_up=True)


def test_a_catalog_comes_back() -> None:
    catalog = Catalog(log=ID, epoch=1, turn=2, floor=3, last=4, snapshots=(9, 5), losses=(LOSS,), forgotten=7)
    assert decode_catalog(encode_catalog(catalog)) == catalog


def test_every_flipped_byte_every_cut_and_every_extension_is_found() -> None:
    data = encode_catalog(Catalog(log=ID, losses=(LOSS,)))
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        for bad in (bytes(flipped), data[:position], data + bytes(position + 1)):
            with pytest.raises(BadCatalog):
                decode_catalog(bad)


def test_an_intact_catalog_of_a_later_version_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.log.catalog.CATALOG_VERSION", 2)
    data = encode_catalog(Catalog(log=ID))
    monkeypatch.undo()
    with pytest.raises(NewerFormat):
        decode_catalog(data)
    filled(tmp_path, 3).close()
    (tmp_path / CATALOG_NAMES[0]).write_bytes(data)
    with pytest.raises(StorageError, match="version 2"):
        opened(tmp_path)
    assert (tmp_path / CATALOG_NAMES[0]).read_bytes() == data


def test_the_oldest_losses_are_only_counted_when_there_are_many() -> None:
    losses = tuple(Loss(Damage("a.seg", n, n, n, 1), 0) for n in range(LOSSES_MAX + 3))
    catalog = Catalog(log=ID).with_losses(losses)
    assert (len(catalog.losses), catalog.forgotten, catalog.losses[-1]) == (LOSSES_MAX, 3, losses[-1])


def test_what_was_given_up_may_be_in_pieces() -> None:
    pieces = tuple(Loss(Damage("a.seg", 0, 0, first, 5), 0, given_up=first != 20) for first in (10, 5, 20))
    catalog = Catalog(log=ID, losses=pieces)
    assert catalog.has_given_up(5, 15)
    assert not catalog.has_given_up(5, 16)
    assert not catalog.has_given_up(20, 22)


def test_one_catalog_is_as_good_as_two_and_the_other_is_written_anew(tmp_path: Path) -> None:
    filled(tmp_path, 30).close()
    whole = (tmp_path / CATALOG_NAMES[0]).read_bytes()
    for name in CATALOG_NAMES:
        for bad in (None, b"", whole[:-1], b"\0" * len(whole), encode_catalog(Catalog(log=bytes(16)))):
            (tmp_path / name).unlink()
            if bad is not None:
                (tmp_path / name).write_bytes(bad)
            log = opened(tmp_path)
            assert [name in note for note in log.report.notes] == [True]
            log.close()
            found = find_catalog(tmp_path, OsDisk(), [*CATALOG_NAMES])
            assert (found.bad, found.missing, found.behind) == ({}, [], [])


@pytest.mark.parametrize("name", CATALOG_NAMES)
def test_a_catalog_of_another_log_does_not_count_however_late_it_is(tmp_path: Path, name: str) -> None:
    filled(tmp_path, 10).close()
    mine = verify(tmp_path, OsDisk()).log_id
    (tmp_path / name).write_bytes(encode_catalog(Catalog(log=ID, epoch=9, turn=1 << 40, floor=1 << 40)))
    log = opened(tmp_path)
    assert log.report.damage == []
    log.close()
    assert verify(tmp_path, OsDisk()).log_id == mine
    assert all(decode_catalog((tmp_path / each).read_bytes()).log.hex() == mine for each in CATALOG_NAMES)


def test_both_catalogs_gone_is_damage_and_the_id_is_kept(tmp_path: Path) -> None:
    filled(tmp_path, 30).close()
    log_id = verify(tmp_path, OsDisk()).log_id
    for name in CATALOG_NAMES:
        (tmp_path / name).unlink()
    with pytest.raises(LogDamaged, match="both catalogs"):
        opened(tmp_path)
    log = Log.open(tmp_path, OsDisk(), HARD, accept_damage=True, now=77)
    log.close()
    report = verify(tmp_path, OsDisk())
    assert (report.log_id, report.epoch, report.damage) == (log_id, 1, [])
    assert [(loss.given_up, loss.met_us) for loss in report.losses] == [(True, 77)]


def test_a_missing_first_segment_is_no_retention(tmp_path: Path) -> None:
    filled(tmp_path, 60).close()
    first, second, *_ = sorted(tmp_path.glob("*.seg"))
    first.unlink()
    with pytest.raises(LogDamaged, match=f"offsets 0 to {int(second.stem) - 1} lost"):
        opened(tmp_path)
    repair(tmp_path, OsDisk())
    report = verify(tmp_path, OsDisk())
    assert (report.damage, report.lost, report.epoch) == ([], int(second.stem), 1)
    assert [(loss.damage.first, loss.damage.count) for loss in report.losses] == [(0, int(second.stem))]
    log = opened(tmp_path)
    assert next(log.iter_records(0)).first == int(second.stem)
    log.close()


def test_what_retention_deleted_is_not_missed_and_what_it_did_not_is(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, HARD)
    log.write_snapshot(b"state", log.durable_offset)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.seg")}
    removal = log.retire(10**12, 2**62)
    assert removal is not None
    removal.run()
    floor = log.first_offset
    log.close()
    assert verify(tmp_path, OsDisk()).damage == []
    oldest = min(before)
    (tmp_path / oldest).write_bytes(before[oldest])
    log = opened(tmp_path)
    assert log.first_offset == floor
    assert not (tmp_path / oldest).exists()
    log.close()
    min(tmp_path.glob("*.seg")).unlink()
    with pytest.raises(LogDamaged, match="missing"):
        opened(tmp_path)


@pytest.mark.parametrize("known", [True, False], ids=["with committed", "without"])
def test_a_missing_last_segment_is_damage_even_if_nobody_knows_how_much(tmp_path: Path, known: bool) -> None:
    filled(tmp_path, 60).close()
    last = max(tmp_path.glob("*.seg"))
    last.unlink()
    if not known:
        (tmp_path / COMMITTED_NAME).unlink()
    with pytest.raises(LogDamaged) as raised:
        opened(tmp_path)
    (damage,) = raised.value.report.damage
    assert (damage.segment, damage.first, damage.count) == (
        last.name, int(last.stem), 240 - int(last.stem) if known else 0
    )  # fmt: skip
    log = Log.open(tmp_path, OsDisk(), HARD, accept_damage=True)
    assert log.next_offset == (240 if known else int(last.stem))
    log.append(record(batch(count=3)), refusable=True)
    assert flushed(log).error is None
    log.close()
    assert verify(tmp_path, OsDisk()).damage == []


def test_a_segment_of_another_log_is_damage_and_none_of_it_is_served(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for directory in (ours, theirs):
        filled(directory, 60).close()
    for path in sorted(ours.glob("*.seg")):
        work = tmp_path / "work"
        shutil.copytree(ours, work)
        (work / path.name).write_bytes((theirs / path.name).read_bytes())
        with pytest.raises(LogDamaged, match="belongs to another log"):
            opened(work)
        log = Log.open(work, OsDisk(), HARD, accept_damage=True)
        (damage,) = log.report.damage
        held = [found.first for found in log.iter_records(0)]
        assert not [first for first in held if damage.first <= first < damage.first + damage.count]
        assert log.next_offset == 240
        log.close()
        shutil.rmtree(work)


def retired(directory: Path) -> int:
    """A log with two snapshots whose first segments are gone; the offset at which it begins."""
    log = filled(directory, 60, HARD)
    log.write_snapshot(b"state", log.durable_offset)
    log.append(record(batch(count=3)), refusable=True)
    flushed(log)
    log.write_snapshot(b"state", log.durable_offset)
    removal = log.retire(10**12, 2**62)
    assert removal is not None
    removal.run()
    log.close()
    return log.first_offset


def test_a_snapshot_gone_is_no_harm_as_long_as_there_is_another(tmp_path: Path) -> None:
    retired(tmp_path)
    max(tmp_path.glob("*.snap")).unlink()
    log = opened(tmp_path)
    assert log.snapshot is not None
    assert any("missing" in note for note in log.report.notes)
    log.close()


@pytest.mark.parametrize("how", ["removed", "garbage"])
def test_all_snapshots_gone_after_retention_is_damage(tmp_path: Path, how: str) -> None:
    retired(tmp_path)
    for path in tmp_path.glob("*.snap"):
        path.unlink() if how == "removed" else path.write_bytes(b"garbage")
    with pytest.raises(LogDamaged, match="subscriptions"):
        opened(tmp_path)
    log = Log.open(tmp_path, OsDisk(), HARD, accept_damage=True)
    assert log.snapshot is None
    log.close()
    report = verify(tmp_path, OsDisk())
    assert (report.damage, len(report.losses)) == ([], 1)
    opened(tmp_path).close()
    if how == "garbage":
        assert len(list(tmp_path.glob("*.snap.damaged-*"))) == 2


def test_a_snapshot_of_a_later_version_is_refused_and_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 6).close()
    log = opened(tmp_path)
    log.write_snapshot(b"state", log.durable_offset)
    log.close()
    (path,) = tmp_path.glob("*.snap")
    monkeypatch.setattr("headrace.log.snapshot._VERSION", 3)
    newer = b"".join(Snapshot(24, b"newer", 24, b"", verify_id(tmp_path)).encode())
    monkeypatch.undo()
    path.write_bytes(newer)
    for accept in (False, True):
        with pytest.raises(StorageError, match="version 3"):
            Log.open(tmp_path, OsDisk(), HARD, accept_damage=accept)
    assert path.read_bytes() == newer


def verify_id(directory: Path) -> bytes:
    found = find_catalog(directory, OsDisk(), [*CATALOG_NAMES]).catalog
    assert found is not None
    return found.log


def aged(directory: Path) -> None:
    """Make of a log what the version before there were catalogs would have left."""
    for path in directory.glob("*.seg"):
        data = path.read_bytes()
        header = decode_segment_header(data)
        path.write_bytes(SegmentHeader(header.first, header.created_us, header.generation).encode() + data[64:])
    for path in directory.glob("*.snap"):
        snapshot = decode_snapshot(path.read_bytes())
        path.write_bytes(b"".join(Snapshot(snapshot.offset, snapshot.state, snapshot.synced, b"").encode()))
    for path in [*directory.glob("*.catalog"), *directory.glob("*.idx"), directory / COMMITTED_NAME]:
        path.unlink()


def test_a_log_of_before_there_were_catalogs_opens_and_gets_one(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    log.write_snapshot(b"state", log.durable_offset)
    before = [found.first for found in log.iter_records(0)]
    log.close()
    aged(tmp_path)
    assert verify(tmp_path, OsDisk()).damage == []
    log = opened(tmp_path)
    assert (log.report.damage, log.snapshot) == ([], (240, b"state"))
    assert [found.first for found in log.iter_records(0)] == before
    log.append(record(batch(count=3)), refusable=True)
    assert flushed(log).error is None
    log.close()
    assert decode_segment_header(max(tmp_path.glob("*.seg")).read_bytes()).log == verify_id(tmp_path)
    for path in [*tmp_path.glob("*.snap"), min(tmp_path.glob("*.seg")), max(tmp_path.glob("*.seg"))]:
        work = tmp_path.with_name("work")
        shutil.copytree(tmp_path, work)
        (work / path.name).unlink()
        report = verify(work, OsDisk())
        assert report.damage or any("missing" in note for note in report.notes)
        shutil.rmtree(work)


def test_a_log_of_before_there_were_catalogs_that_begins_late_needs_its_snapshot(tmp_path: Path) -> None:
    retired(tmp_path)
    aged(tmp_path)
    assert verify(tmp_path, OsDisk()).damage == []
    for path in tmp_path.glob("*.snap"):
        path.unlink()
    with pytest.raises(LogDamaged, match="subscriptions"):
        opened(tmp_path)


def test_a_catalog_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    class _Full(OsDisk):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(28, "full")

    file = CatalogFile(tmp_path, OsDisk(), Catalog(log=ID))
    file.begun(7)
    broken = CatalogFile(tmp_path, _Full(), file.catalog)
    with pytest.raises(OSError, match="full"):
        broken.retires(5)
    assert broken.catalog == file.catalog
    assert find_catalog(tmp_path, OsDisk(), [*CATALOG_NAMES]).catalog == file.catalog
