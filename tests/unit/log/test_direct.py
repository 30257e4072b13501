"""Writes past the page cache put the same bytes in the same places as any other write."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.direct import BLOCK, STAGE_SIZE, WORTHWHILE, DirectWriter, split
from headrace.log.disk import OsDisk, OsFile
from headrace.model.batch import Buffer
from tests.harness.properties import tried


@given(st.lists(st.binary(max_size=9), max_size=9), st.integers(0, 90))
def test_a_split_loses_nothing(buffers: list[bytes], size: int) -> None:
    before, after = split(buffers, size)
    whole = b"".join(buffers)
    assert b"".join(before) == whole[:size]
    assert b"".join(after) == whole[size:]


@tried(40)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, WORTHWHILE // 20)), min_size=1, max_size=8))
def test_writes_of_every_size_end_up_back_to_back(shapes: list[tuple[int, int]]) -> None:
    path = Path(f"build/direct-{os.getpid()}.test")
    path.parent.mkdir(exist_ok=True)
    disk = OsDisk()
    disk.create(path).close()
    file = disk.open(path, writable=True)
    try:
        expected = bytearray()
        for count, size in shapes:
            buffers = [bytes([number + size & 0xFF]) * size for number in range(count)]
            assert file.pwritev(buffers, len(expected)) == count * size
            expected += b"".join(buffers)
            file.fdatasync()
        assert file.size() == len(expected)
        assert file.pread(len(expected), 0) == expected
    finally:
        file.close()
        path.unlink()


@pytest.mark.parametrize("position", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_write_longer_than_the_stage_starts_anywhere(position: int, tmp_path: Path) -> None:
    disk = OsDisk()
    path = tmp_path / "long"
    disk.create(path).close()
    file = disk.open(path, writable=True)
    before = b"b" * position
    value = bytes(range(251)) * (2 * STAGE_SIZE // 251 + 1)
    file.pwritev([before], 0)
    file.pwritev([value[:1000], value[1000:]], position)
    assert disk.open(path).pread(1 << 30, 0) == before + value
    file.close()


def test_a_file_that_cannot_be_written_so_is_written_otherwise() -> None:
    assert DirectWriter.open(Path("/proc/self/mem-that-is-not-there")) is None


class Unwilling(DirectWriter):
    """A file system that takes the flag and then refuses every write."""

    def write(self, buffers: Iterable[Buffer], position: int) -> None:
        raise OSError(errno.EINVAL, "not aligned to my taste")


def test_a_file_system_that_refuses_such_writes_is_not_asked_twice(tmp_path: Path) -> None:
    path = tmp_path / "f"
    OsDisk().create(path).close()
    unwilling = Unwilling(os.open(path, os.O_WRONLY))
    file = OsFile(os.open(path, os.O_RDWR), unwilling)
    value = bytes(range(256)) * (WORTHWHILE // 128)
    for number in range(2):
        assert file.pwritev([value], number * len(value), sync=True) == len(value)
    assert file.pread(1 << 30, 0) == value * 2
    file.close()
