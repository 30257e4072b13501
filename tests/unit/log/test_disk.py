from pathlib import Path

import pytest

from headrace.log.disk import OsDisk, keep_aside, write_atomically


def test_bytes_written_at_a_position_come_back(tmp_path: Path) -> None:
    file = OsDisk().create(tmp_path / "f")
    assert file.pwritev([b"abc", bytearray(b"def"), memoryview(b"gh")], 4) == 8
    file.fdatasync()
    assert (file.size(), file.pread(100, 0), file.pread(3, 5)) == (12, bytes(4) + b"abcdefgh", b"bcd")
    file.truncate(6)
    assert file.pread(100, 4) == b"ab"
    file.close()
    file.close()


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    buffers = [bytes([number % 256]) * (number % 7) for number in range(5000)]
    file = OsDisk().create(tmp_path / "f")
    written = file.pwritev(buffers, 0)
    assert file.pread(written, 0) == b"".join(buffers)
    file.close()


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, *rest: real(fd, [b"".join(buffers)[:5]], *rest))
    file = OsDisk().create(tmp_path / "f")
    assert file.pwritev([b"hello", b" ", b"world"], 0) == 11
    assert file.pread(20, 0) == b"hello world"
    file.close()


def test_a_file_opened_for_reading_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    file = OsDisk().open(tmp_path / "f")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwritev([b"y"], 0)
    file.close()


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_atomically(OsDisk(), tmp_path / "f", [b"old"])
    write_atomically(OsDisk(), tmp_path / "f", [b"ne", b"w"])
    assert (tmp_path / "f").read_bytes() == b"new"
    assert OsDisk().list(tmp_path) == ["f"]


def test_bytes_kept_aside_never_replace_others(tmp_path: Path) -> None:
    names = [keep_aside(OsDisk(), tmp_path / "a.torn-64", data) for data in (b"1", b"2", b"3")]
    assert names == ["a.torn-64", "a.torn-64-2", "a.torn-64-3"]
    assert [(tmp_path / name).read_bytes() for name in names] == [b"1", b"2", b"3"]


def test_a_lock_is_held_until_closed(tmp_path: Path) -> None:
    lock = OsDisk().lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        OsDisk().lock(tmp_path / "lock")
    lock.close()
    OsDisk().lock(tmp_path / "lock").close()
