"""Places in a followed log: times, shares, neighbourhoods."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log import Log, LogSettings, OsDisk
from headrace.log.bearings import Cell, block, cells, offset_at
from headrace.log.follower import Follower
from headrace.model.events import Event, EventPart
from tests.harness.properties import tried
from tests.unit.log.records import batch, filled, flushed, opened, record

SECOND = 1_000_000
ROOMY = LogSettings(segment_bytes=1 << 20, fill_bytes=0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Sixty records of three messages and an event a second."""
    with closing(filled(tmp_path / "log", 60)) as log:
        yield log


@pytest.fixture
def follower(log: Log, tmp_path: Path) -> Follower:
    return Follower(tmp_path / "log", OsDisk())


def test_the_offset_of_a_time_is_the_first_at_or_after_it(follower: Follower) -> None:
    for second in range(60):
        assert offset_at(follower, second * SECOND) == 4 * second
        assert offset_at(follower, second * SECOND - 1) == 4 * second
        assert offset_at(follower, second * SECOND - SECOND + 1) == 4 * second
    assert offset_at(follower, -5) == 0


def test_a_time_in_the_future_is_the_end_of_the_log(follower: Follower) -> None:
    assert offset_at(follower, 60 * SECOND) == 240


def test_an_empty_log_begins_and_ends_at_0(tmp_path: Path) -> None:
    with closing(opened(tmp_path)):
        assert offset_at(Follower(tmp_path, OsDisk()), 5) == 0


def test_an_event_has_a_time_too(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as log:
        log.append(record(batch(count=2, timestamp_us=10)), refusable=True)
        log.append(record(EventPart(Event.ACKED, 20, 1).encode()), refusable=False)
        log.append(record(batch(count=2, timestamp_us=30)), refusable=True)
        flushed(log)
        follower = Follower(tmp_path, OsDisk())
        assert [offset_at(follower, when) for when in (10, 11, 20, 21, 30, 31)] == [0, 2, 2, 3, 3, 5]


@tried(20)
@given(times=st.lists(st.integers(0, 50), min_size=1, max_size=40), size=st.sampled_from([10, 3000, 70_000]))
def test_times_that_never_go_back_are_found_exactly(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], size: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    with closing(opened(directory, ROOMY)) as log:
        for when in sorted(times):
            log.append(record(batch(count=2, timestamp_us=when, size=size)), refusable=True)
            flushed(log)
        follower = Follower(directory, OsDisk())
        for when in range(52):
            assert offset_at(follower, when) == 2 * len([each for each in times if each < when])


def test_a_clock_that_went_back_still_leads_to_such_a_time(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as log:
        times = [10, 20, 30, 15, 25, 35, 40]
        for when in times:
            log.append(record(batch(count=1, timestamp_us=when)), refusable=True)
        flushed(log)
        follower = Follower(tmp_path, OsDisk())
        for when in range(10, 41):
            offset = offset_at(follower, when)
            assert times[offset] >= when
            assert offset == 0 or times[offset - 1] < when


def test_cells_cover_a_range_without_gaps(tmp_path: Path) -> None:
    with closing(opened(tmp_path, ROOMY)) as log:
        for _ in range(50):
            log.append(record(batch(count=10, size=7000)), refusable=True)
            flushed(log)
        follower = Follower(tmp_path, OsDisk())
        for start, end in ((0, 500), (33, 444), (499, 500)):
            found = cells(follower, start, end, None)
            assert (found[0].first, found[-1].end) == (start, end)
            assert [each.end for each in found[:-1]] == [each.first for each in found[1:]]
            assert sum(each.rows for each in found) == end - start
        size = sum(path.stat().st_size - 64 for path in tmp_path.glob("*.seg"))
        assert sum(each.bytes for each in cells(follower, 0, 500, None)) == size


def test_cells_of_a_topic_are_where_it_is(tmp_path: Path) -> None:
    with closing(opened(tmp_path, LogSettings(segment_bytes=1 << 20, fill_bytes=0))) as log:
        for topic in ["other"] * 4 + ["mine"] * 2 + ["other"] * 40:
            log.append(record(batch(topic, count=2, size=50_000)), refusable=True)
            flushed(log)
        follower = Follower(tmp_path, OsDisk())
        sealed = follower.segments()[0]
        assert sealed.is_sealed
        found = cells(follower, 0, sealed.segment.end, ["mine"].__contains__)
        assert [(each.first, each.end, each.rows) for each in found] == [(8, 10, 2), (10, 12, 2)]
        assert cells(follower, 0, 7, ["mine"].__contains__) == []
        assert all(isinstance(each, Cell) for each in found)


def test_a_block_holds_the_offset_and_its_neighbours(tmp_path: Path) -> None:
    with closing(opened(tmp_path, LogSettings(segment_bytes=4 << 20, fill_bytes=0))) as log:
        for _ in range(200):
            log.append(record(batch(count=10, size=3000)), refusable=True)
            flushed(log)
        follower = Follower(tmp_path, OsDisk())
        edges = set()
        for offset in range(0, 2000, 7):
            first, end = block(follower, offset)
            assert first <= offset < end
            edges |= {first, end}
        assert {0, 2000} <= edges
        assert 5 <= len(edges) < 20


def test_the_block_of_an_offset_that_is_gone_is_that_offset(tmp_path: Path) -> None:
    hard = LogSettings(segment_bytes=4096, fill_bytes=0, retention_s=0, retention_hard=True)
    with closing(filled(tmp_path, 60, hard)) as log:
        log.write_snapshot(b"", log.durable_offset)
        removal = log.retire(1 << 60, log.durable_offset)
        assert removal is not None
        removal.run()
        assert block(Follower(tmp_path, OsDisk()), 1) == (1, 2)
