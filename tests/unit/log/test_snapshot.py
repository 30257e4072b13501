from pathlib import Path

import pytest

from headrace.log import OsDisk
from headrace.log.snapshot import BadSnapshot, Snapshot, decode_snapshot, load_snapshot, store_snapshot


def test_a_snapshot_comes_back() -> None:
    snapshot = Snapshot(offset=5, state=b"state", synced=9, index=b"index")
    assert decode_snapshot(b"".join(snapshot.encode())) == snapshot


def test_every_flipped_byte_and_every_cut_is_found() -> None:
    data = b"".join(Snapshot(5, b"some state", 9, b"some index").encode())
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x01
        with pytest.raises(BadSnapshot):
            decode_snapshot(bytes(flipped))
        with pytest.raises(BadSnapshot):
            decode_snapshot(data[:position])


def test_two_are_kept_and_the_newest_good_one_is_loaded(tmp_path: Path) -> None:
    disk = OsDisk()
    for offset in (3, 20, 100):
        kept = store_snapshot(tmp_path, disk, Snapshot(offset, b"%d" % offset, offset, b""))
    assert kept == [100, 20]
    assert sorted(int(Path(name).stem) for name in disk.list(tmp_path)) == [20, 100]
    loaded = load_snapshot(tmp_path, disk, disk.list(tmp_path))
    assert loaded is not None
    assert loaded.state == b"100"
    (tmp_path / f"{100:020}.snap").write_bytes(b"rubbish")
    loaded = load_snapshot(tmp_path, disk, disk.list(tmp_path))
    assert loaded is not None
    assert loaded.state == b"20"
