"""The file by which other processes know how far the log reaches: never torn, never older, taken over by the next."""

import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log import LogSettings, OsDisk
from headrace.log.committed import (
    COMMITTED_NAME,
    COMMITTED_SIZE,
    Committed,
    CommittedFile,
    CommittedReader,
    decode_committed,
)
from headrace.model.errors import StorageError
from tests.unit.log.records import batch, flushed, opened, record

HARD = LogSettings(segment_bytes=4096, fill_bytes=0, retention_s=0, retention_hard=True)


def told(directory: Path) -> Committed:
    found = decode_committed((directory / COMMITTED_NAME).read_bytes())
    assert found is not None
    return found


def test_a_reader_sees_every_change(tmp_path: Path) -> None:
    file = CommittedFile(tmp_path, OsDisk())
    file.write(0, 0, 0, changed=True)
    reader = CommittedReader(tmp_path)
    first = reader.read()
    assert (first.earliest, first.latest) == (0, 0)
    file.write(0, 10, 10, changed=False)
    assert reader.read() == (first.turn + 1, 0, 10, first.generation, 10)
    file.write(5, 10, 8, changed=True)
    assert reader.read() == (first.turn + 2, 5, 10, first.generation + 1, 8)
    reader.close()


def test_the_next_writer_goes_on_in_the_same_file_and_is_told_from_the_last(tmp_path: Path) -> None:
    CommittedFile(tmp_path, OsDisk()).write(3, 9, 9, changed=False)
    reader = CommittedReader(tmp_path)
    before = reader.read()
    CommittedFile(tmp_path, OsDisk()).write(3, 9, 9, changed=False)
    after = reader.read()
    assert (after.turn, after.earliest, after.latest) == (before.turn + 1, 3, 9)
    assert after.writer == before.writer + 1


@given(garbage=st.binary(min_size=1, max_size=40), at=st.integers(16, COMMITTED_SIZE - 1))
def test_what_is_half_written_is_never_taken_for_a_value(garbage: bytes, at: int) -> None:
    """Whatever bytes of one slot are overwritten, the other slot is what counts, or nothing does."""
    mapped = bytearray(COMMITTED_SIZE)

    class _Memory(OsDisk):
        def share(self, path: Path, size: int) -> bytearray:
            return mapped

    file = CommittedFile(Path(), _Memory())
    said = []
    for number in range(3):
        file.write(number, 10 * number, number, changed=False)
        found = decode_committed(bytes(mapped))
        assert found is not None
        said.append(found)
    torn = bytearray(mapped)
    torn[at : at + len(garbage)] = garbage[: COMMITTED_SIZE - at]
    assert decode_committed(bytes(torn)) in (said[-1], said[-2], None)


def test_readers_at_full_speed_never_see_two_values_mixed(tmp_path: Path) -> None:
    file = CommittedFile(tmp_path, OsDisk())
    file.write(0, 0, 0, changed=False)
    reader = CommittedReader(tmp_path)
    seen: list[Committed] = []
    done = threading.Event()

    def _read() -> None:
        while not done.is_set():
            seen.append(reader.read())

    thread = threading.Thread(target=_read)
    thread.start()
    for number in range(20_000):
        file.write(number, 3 * number, 0, changed=False)
    done.set()
    thread.join()
    assert all(each.latest == 3 * each.earliest for each in seen)
    assert all(a.turn <= b.turn for a, b in pairwise(seen))


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"x" * COMMITTED_SIZE, bytes(COMMITTED_SIZE)])
def test_a_file_that_is_none_is_refused_by_readers_and_replaced_by_a_writer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / COMMITTED_NAME).write_bytes(content)
    with pytest.raises(StorageError, match=COMMITTED_NAME):
        CommittedReader(tmp_path).read()
    CommittedFile(tmp_path, OsDisk()).write(1, 2, 2, changed=False)
    assert CommittedReader(tmp_path).read()[1:3] == (1, 2)


def test_no_file_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot follow the log"):
        CommittedReader(tmp_path)


def test_a_log_says_how_far_it_reaches_and_when_its_segments_change(tmp_path: Path) -> None:
    log = opened(tmp_path, HARD)
    assert told(tmp_path)[1:3] == (0, 0)
    log.append(record(batch(count=3)), refusable=True)
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    assert told(tmp_path).latest == 0
    log.end_flush(flush)
    begun = told(tmp_path)
    assert begun.latest == 3
    log.append(record(batch(count=3)), refusable=True)
    flushed(log)
    assert told(tmp_path)[1:] == (0, 6, begun.generation, 6)
    log.append(record(batch(count=3, size=2000)), refusable=True)
    flushed(log)
    rolled = told(tmp_path)
    assert rolled[1:] == (0, 9, begun.generation + 1, 9)
    log.write_snapshot(b"", 9)
    removal = log.retire(1 << 60, 9)
    assert removal is not None
    assert told(tmp_path)[1:] == (6, 9, rolled.generation + 1, 9)
    log.close()
    again = opened(tmp_path, HARD)
    assert (told(tmp_path).earliest, told(tmp_path).latest) == (again.first_offset, again.durable_offset)
    assert told(tmp_path).writer == rolled.writer + 1
    again.close()
