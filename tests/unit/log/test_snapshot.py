from pathlib import Path

import pytest

from headrace.log import OsDisk
from headrace.log.catalog import Catalog, CatalogFile
from headrace.log.format import NewerFormat
from headrace.log.snapshot import BadSnapshot, Snapshot, decode_snapshot, find_snapshots, store_snapshot

ID = bytes(range(16))
IDS = pytest.mark.parametrize("log", [b"", ID], ids=["nameless", "named"])


@IDS
def test_a_snapshot_comes_back(log: bytes) -> None:
    snapshot = Snapshot(offset=5, state=b"state", synced=9, index=b"index", log=log)
    assert decode_snapshot(b"".join(snapshot.encode())) == snapshot


@IDS
def test_every_flipped_byte_and_every_cut_is_found(log: bytes) -> None:
    data = b"".join(Snapshot(5, b"some state", 9, b"some index", log).encode())
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x01
        with pytest.raises(BadSnapshot):
            decode_snapshot(bytes(flipped))
        with pytest.raises(BadSnapshot):
            decode_snapshot(data[:position])


@IDS
def test_an_intact_snapshot_of_a_later_version_is_not_damage(log: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("_VERSION", "_VERSION_NAMELESS"):
        monkeypatch.setattr(f"headrace.log.snapshot.{version}", 7)
    data = b"".join(Snapshot(5, b"state", 9, b"", log).encode())
    monkeypatch.undo()
    with pytest.raises(NewerFormat, match="version 7"):
        decode_snapshot(data)


def test_two_are_kept_and_the_newest_good_one_is_loaded(tmp_path: Path) -> None:
    disk = OsDisk()
    catalog = CatalogFile(tmp_path, disk, Catalog(log=ID))
    for offset in (3, 20, 100):
        kept = store_snapshot(tmp_path, disk, Snapshot(offset, b"%d" % offset, offset, b"", ID), catalog)
    assert kept == [100, 20]
    assert catalog.catalog.snapshots == (100, 20)
    names = disk.list(tmp_path)
    assert sorted(int(Path(name).stem) for name in names if name.endswith(".snap")) == [20, 100]
    found = find_snapshots(tmp_path, disk, names, catalog.catalog, full=True)
    assert found.newest is not None
    assert (found.newest.state, found.good, found.bad, found.missing) == (b"100", [100, 20], {}, [])
    (tmp_path / f"{100:020}.snap").write_bytes(b"rubbish")
    found = find_snapshots(tmp_path, disk, names, catalog.catalog, full=False)
    assert found.newest is not None
    assert (found.newest.state, found.good, list(found.bad)) == (b"20", [20], [f"{100:020}.snap"])
    (tmp_path / f"{20:020}.snap").unlink()
    found = find_snapshots(tmp_path, disk, disk.list(tmp_path), catalog.catalog, full=False)
    assert (found.newest, found.missing) == (None, [f"{20:020}.snap"])


def test_a_snapshot_of_another_log_or_under_another_offset_is_bad(tmp_path: Path) -> None:
    disk = OsDisk()
    catalog = Catalog(log=ID, snapshots=(3,))
    for offset, log, reason in ((3, bytes(16), "another log"), (4, ID, "made at offset 4"), (9, b"", "another log")):
        for old in tmp_path.glob("*.snap"):
            old.unlink()
        name = f"{offset if offset != 4 else 5:020}.snap"
        (tmp_path / name).write_bytes(b"".join(Snapshot(offset, b"state", 0, b"", log).encode()))
        found = find_snapshots(tmp_path, disk, disk.list(tmp_path), catalog, full=False)
        assert found.newest is None
        assert reason in found.bad[name]
