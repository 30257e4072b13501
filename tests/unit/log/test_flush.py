import errno
import os
from pathlib import Path

import pytest

from headrace.log.catalog import Catalog, CatalogFile
from headrace.log.direct import WORTHWHILE
from headrace.log.disk import OsDisk
from headrace.log.flush import AHEAD_BYTES, AHEAD_FLUSHES, BLOCK, FILL_BYTES_MIN, Fill, Writer
from headrace.log.format import SEGMENT_HEADER_SIZE, SegmentHeader
from tests.crash.faultdisk import FaultDisk, Survival

ID = bytes(range(16))
PATH = Path("/log") / f"{0:020}.seg"


def a_writer(fill_bytes: int = 0) -> tuple[Writer, FaultDisk]:
    disk = FaultDisk()
    writer = Writer(PATH.parent, disk, fill_bytes, CatalogFile(PATH.parent, disk, Catalog(log=ID)))
    writer.start_segment(SegmentHeader(0, 0), [])
    return writer, disk


def test_records_follow_the_header() -> None:
    writer, disk = a_writer()
    writer.append([bytearray(b"12345678"), bytearray(b"abcdefgh")], 16, sync=False)
    assert disk.contents(PATH)[SEGMENT_HEADER_SIZE:] == b"12345678abcdefgh"
    assert writer.position == SEGMENT_HEADER_SIZE + 16


def test_filled_space_is_used_up_before_more_is_filled() -> None:
    writer, disk = a_writer(fill_bytes=32)
    sizes = []
    for _ in range(6):
        writer.append([bytearray(b"12345678")], 8, sync=False)
        sizes.append(len(disk.contents(PATH)) - SEGMENT_HEADER_SIZE)
    assert sizes == [40, 40, 40, 40, 40, 80]


def test_large_writes_fill_nothing() -> None:
    writer, disk = a_writer(fill_bytes=32)
    size = WORTHWHILE
    writer.append([bytearray(size)], size, sync=False)
    assert len(disk.contents(PATH)) == SEGMENT_HEADER_SIZE + size


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="this system cannot write and sync in one call")
def test_a_small_write_is_one_call_even_when_it_fills_new_ground(tmp_path: Path) -> None:
    writer = Writer(tmp_path, OsDisk(), 1 << 20, CatalogFile(tmp_path, OsDisk(), Catalog(log=ID)))
    writer.start_segment(SegmentHeader(0, 0), [])
    order = writer.order([bytearray(b"12345678")], 8)
    assert order is not None
    assert list(map(len, order.buffers)) == [8, FILL_BYTES_MIN]
    assert writer.order([bytearray(WORTHWHILE)], WORTHWHILE) is None
    writer.close()


def test_a_failed_write_leaves_the_file_as_it_was() -> None:
    writer, disk = a_writer(fill_bytes=32)
    writer.append([bytearray(b"12345678")], 8, sync=False)
    disk.fail("segment.write", errno.ENOSPC)
    with pytest.raises(OSError, match="ENOSPC"):
        writer.append([bytearray(b"x" * 64)], 64, sync=False)
    assert disk.contents(PATH)[SEGMENT_HEADER_SIZE:] == b"12345678"
    assert (writer.position, writer.broken) == (SEGMENT_HEADER_SIZE + 8, False)


@pytest.mark.parametrize("operation", ["segment.truncate", "segment.sync"])
def test_a_file_that_cannot_be_cut_back_is_not_trusted(operation: str) -> None:
    writer, disk = a_writer()
    disk.fail("segment.write", errno.EIO)
    disk.fail(operation, errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        writer.append([bytearray(8)], 8, sync=False)
    assert writer.broken


def test_a_segment_that_may_or_may_not_have_its_name_is_not_trusted() -> None:
    writer, disk = a_writer()
    disk.fail("directory.sync", errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        writer.start_segment(SegmentHeader(9, 0), [])
    doubted = writer.broken
    writer.start_segment(SegmentHeader(9, 0), [bytearray(b"carried!")])
    assert (doubted, writer.broken) == (True, False)
    assert disk.contents(PATH.with_name(f"{9:020}.seg"))[SEGMENT_HEADER_SIZE:] == b"carried!"


def test_a_failed_write_that_was_to_be_synced_may_have_been_the_sync() -> None:
    writer, disk = a_writer()
    disk.fail("segment.sync", errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        writer.append([bytearray(b"12345678")], 8, sync=True)
    assert writer.broken


def test_a_synced_write_also_syncs_what_was_put_off() -> None:
    writer, disk = a_writer()
    writer.append([bytearray(b"12345678")], 8, sync=False)
    writer.append([bytearray(b"abcdefgh")], 8, sync=True)
    writer.append([bytearray(b"ABCDEFGH")], 8, sync=True)
    stored = bytes(disk.after_crash(Survival.LOST).contents(PATH))
    assert stored[SEGMENT_HEADER_SIZE : SEGMENT_HEADER_SIZE + 24] == b"12345678abcdefghABCDEFGH"


def test_ground_is_filled_ahead_in_whole_blocks_before_flushes_come_to_its_end() -> None:
    writer, disk = a_writer(fill_bytes=AHEAD_BYTES - 8)
    writer.append([bytearray(b"12345678")], 8, sync=True)
    zeros = writer.claim_zeros()
    writer.fill(zeros)
    size = len(disk.contents(PATH))
    assert (size % BLOCK, size) == (0, 2 * AHEAD_BYTES)
    writer.append([bytearray(b"abcdefgh")], 8, sync=True)
    assert not writer.claim_zeros()
    assert disk.contents(PATH)[SEGMENT_HEADER_SIZE:].rstrip(b"\0") == b"12345678abcdefgh"


def test_ground_is_filled_once_after_a_flush() -> None:
    writer, _ = a_writer(fill_bytes=4096)
    assert not writer.claim_zeros()
    writer.append([bytearray(8)], 8, sync=True)
    assert writer.claim_zeros()
    assert not writer.claim_zeros()


@pytest.mark.parametrize(("size", "sync"), [(AHEAD_BYTES // AHEAD_FLUSHES + 8, True), (8, False)])
def test_nothing_is_filled_ahead_of_big_flushes_and_of_those_nobody_syncs(size: int, sync: bool) -> None:
    writer, _ = a_writer(fill_bytes=4096)
    writer.append([bytearray(size)], size, sync=sync)
    assert not writer.claim_zeros()


@pytest.mark.parametrize("fault", ["segment.write", "segment.sync"])
def test_a_disk_that_will_not_be_filled_ahead_is_asked_again_by_the_flush_that_gets_there(fault: str) -> None:
    writer, disk = a_writer(fill_bytes=64)
    writer.append([bytearray(8)], 8, sync=True)
    disk.fail(fault, errno.ENOSPC)
    Fill(writer, writer.claim_zeros()).run()
    writer.append([bytearray(b"x" * 72)], 72, sync=True)
    stored = bytes(disk.after_crash(Survival.LOST).contents(PATH))
    assert stored[SEGMENT_HEADER_SIZE + 8 :].rstrip(b"\0") == b"x" * 72
    assert not writer.broken
