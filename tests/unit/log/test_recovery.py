from pathlib import Path

import pytest

from headrace.log import Log, LogDamaged, OsDisk, verify
from headrace.log.committed import COMMITTED_NAME
from headrace.log.format import crc32
from headrace.model.errors import StorageError
from tests.unit.log.records import SMALL, batch, filled, flushed, opened, record


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    log = opened(tmp_path / "new" / "log")
    assert (log.first_offset, log.next_offset, log.snapshot, log.topics()) == (0, 0, None, [])
    log.close()


def test_a_missing_index_is_rebuilt(tmp_path: Path) -> None:
    filled(tmp_path, 60).close()
    index = min(tmp_path.glob("*.idx"))
    good = index.read_bytes()
    index.unlink()
    log = opened(tmp_path)
    assert log.report.rebuilt_indexes == [index.with_suffix(".seg").name]
    assert index.read_bytes() == good
    log.close()


def test_an_index_of_another_segment_is_not_believed(tmp_path: Path) -> None:
    filled(tmp_path, 60).close()
    first, second, *_ = sorted(tmp_path.glob("*.idx"))
    first.write_bytes(second.read_bytes())
    log = opened(tmp_path)
    assert log.report.rebuilt_indexes == [first.with_suffix(".seg").name]
    assert log.count_from("orders", 0) == 60
    log.close()


def test_a_torn_tail_is_cut_and_kept(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    log.close()
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[64:100])
    log = opened(tmp_path)
    (torn,) = log.report.torn
    assert (torn.start, torn.end, torn.first) == (len(whole), len(whole) + 36, 20)
    assert (tmp_path / torn.kept_in).read_bytes() == whole[64:100]
    assert path.read_bytes() == whole
    assert f"from offset 20 on, kept in {torn.kept_in}" in str(torn)
    log.close()


def test_what_follows_a_torn_record_is_cut_with_it_unless_it_is_known_to_have_been_synced(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for _ in range(4):
        log.append(record(batch(count=2, size=100)), refusable=True)
    flushed(log)
    log.close()
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    data[64 + 2 * (len(data) - 64) // 4 + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamaged, match="offsets 4 to 5 lost"):
        opened(tmp_path)
    (tmp_path / COMMITTED_NAME).unlink()
    log = opened(tmp_path)
    assert [torn.first for torn in log.report.torn] == [4]
    assert log.next_offset == 4
    log.close()


def test_a_segment_shorter_than_a_snapshot_knows_is_damage(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    log.write_snapshot(b"", log.durable_offset)
    log.close()
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-48])
    with pytest.raises(LogDamaged, match="offsets 19 to 19 lost"):
        opened(tmp_path)
    log = Log.open(tmp_path, OsDisk(), SMALL, accept_damage=True)
    assert log.next_offset == 20
    assert [found.first for found in log.iter_records(0)][-1] == 16
    log.close()


def test_a_missing_segment_in_the_middle_is_damage_of_known_extent(tmp_path: Path) -> None:
    filled(tmp_path, 100).close()
    _, second, third, *_ = segments(tmp_path)
    second.unlink()
    (damage,) = verify(tmp_path, OsDisk()).damage
    assert (damage.first, damage.count) == (int(second.stem), int(third.stem) - int(second.stem))


def test_all_segments_missing_is_damage_too(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    log.write_snapshot(b"", log.durable_offset)
    log.close()
    for path in segments(tmp_path):
        path.unlink()
    with pytest.raises(LogDamaged, match="every segment file is missing"):
        opened(tmp_path)
    log = Log.open(tmp_path, OsDisk(), SMALL, accept_damage=True)
    assert (log.first_offset, log.next_offset) == (20, 20)
    log.close()


def test_refusing_to_open_a_damaged_log_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 60).close()
    path = segments(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(LogDamaged) as raised:
        Log.open(tmp_path, OsDisk(), SMALL, full_scan=True)
    assert len(raised.value.report.damage) == 1
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_log_of_a_later_version_is_refused_and_not_called_damaged(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    data[8] = 9
    data[48:52] = crc32(bytes(data[:48])).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(StorageError, match="format version 9"):
        opened(tmp_path)


def test_a_log_is_open_once(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    with pytest.raises(StorageError, match="another process"):
        opened(tmp_path)
    log.close()
    opened(tmp_path).close()


def test_recovery_walks_only_what_follows_the_snapshot(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    log.write_snapshot(b"the state", log.durable_offset)
    log.append(record(batch()), refusable=True)
    flushed(log)
    log.close()
    log = opened(tmp_path)
    assert log.snapshot == (40, b"the state")
    assert log.report.records == 1
    assert log.count_from("orders", 0) == 13
    log.close()
