"""Messages looked up by their offsets: when they were published, and to which topic."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed import births
from headrace.feed.births import UNKNOWN, Births
from headrace.log import Log, LogSettings, OsDisk
from headrace.log.follower import Follower
from tests.harness.properties import tried
from tests.unit.feed.logs import UNSYNCED, message_rows, records, written
from tests.unit.log.records import batch, flushed, record


@tried(30)
@given(contents=records, offsets=st.lists(st.integers(0, 400), max_size=60))
def test_everything_that_is_there_is_found_in_any_order(contents: list[list[bytes]], offsets: list[int]) -> None:
    with written(contents) as (log, follower):
        known = {row["offset"]: row for row in message_rows(log)}
        found = Births(follower)
        for _ in range(2):
            times, codes = found.find(np.array(offsets, np.int64))
            for offset, when, code in zip(offsets, times.tolist(), codes.tolist(), strict=True):
                if offset in known:
                    assert (when, found.topics[code]) == (known[offset]["timestamp"], known[offset]["topic"])
                else:
                    assert (when, code) == (UNKNOWN, UNKNOWN)


def test_what_is_written_later_is_found_later(tmp_path: Path) -> None:
    with closing(Log.open(tmp_path, OsDisk(), LogSettings(sync=UNSYNCED, fill_bytes=0))) as log:
        found = None
        for number in range(20):
            log.append(record(batch(count=3, timestamp_us=number)), refusable=True)
            flushed(log)
            found = found or Births(Follower(tmp_path, OsDisk()))
            times, _ = found.find(np.arange(3 * number + 3))
            assert times.tolist() == [offset // 3 for offset in range(3 * number + 3)]


def test_little_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "BLOCKS_MAX", 2)
    hard = LogSettings(sync=UNSYNCED, segment_bytes=8192, fill_bytes=0, retention_s=0, retention_hard=True)
    with closing(Log.open(tmp_path, OsDisk(), hard)) as log:
        for number in range(100):
            log.append(record(batch(count=10, timestamp_us=number, size=50)), refusable=True)
            flushed(log)
        found = Births(Follower(tmp_path, OsDisk()))
        backwards = np.arange(999, -1, -1)
        assert found.find(backwards)[0].tolist() == [offset // 10 for offset in backwards.tolist()]
        flushed(log, sync=True)
        log.write_snapshot(b"", 1000)
        removal = log.retire(1 << 60, 1000)
        assert removal is not None
        removal.run()
        times, _ = Births(Follower(tmp_path, OsDisk())).find(backwards)
        first = log.first_offset
        assert times.tolist() == [offset // 10 if offset >= first else UNKNOWN for offset in backwards.tolist()]
