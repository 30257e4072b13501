"""Reading a log that another writes: what is committed and nothing else, whatever happens to its files meanwhile."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from headrace.kernels.records import BATCHES, EVENTS, OFFSET, ROWS, WIDTH
from headrace.log import Log, LogSettings, OsDisk, SyncMode, SyncPolicy, repair
from headrace.log.disk import File, OsFile
from headrace.log.followed import TopicCodes, TopicTally
from headrace.log.follower import Choice, Follower
from headrace.log.format import INDEX_SUFFIX, SEGMENT_SUFFIX
from headrace.log.walk import Gone, Parts
from headrace.model.errors import StorageError
from tests.unit.log.records import batch, event, filled, flushed, opened, record

HARD = LogSettings(segment_bytes=4096, fill_bytes=0, retention_s=0, retention_hard=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


def everything(wants: Sequence[str] | None = None, kinds: int = BATCHES) -> Choice:
    """All topics, or those named."""
    if wants is None:
        return Choice(kinds, TopicCodes())
    return Choice(kinds, _Some(wants), frozenset(wants).__contains__)


class _Some(dict[bytes, int]):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__({name.encode(): code for code, name in enumerate(names)})

    def __missing__(self, name: bytes) -> int:
        return -1


def offsets(found: Iterator[Parts | Gone]) -> list[int | Gone]:
    """The offset of every row, and what is gone."""
    rows: list[int | Gone] = []
    for each in found:
        if isinstance(each, Gone):
            rows.append(each)
            continue
        for at in range(0, WIDTH * each.parts, WIDTH):
            rows += range(each.table[at + OFFSET], each.table[at + OFFSET] + each.table[at + ROWS])
    return rows


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{SEGMENT_SUFFIX}"))


def test_an_empty_log_has_nothing(directory: Path) -> None:
    with closing(opened(directory)):
        follower = Follower(directory, OsDisk())
        assert follower.committed()[1:3] == (0, 0)
        assert follower.topics() == {}
        assert follower.segments() == []
        assert offsets(follower.walk(0, 0, everything())) == []
        follower.close()


def test_no_log_is_refused(directory: Path) -> None:
    with pytest.raises(StorageError, match="cannot follow"):
        Follower(directory, OsDisk())


def test_messages_and_events_of_all_segments_come_in_order(directory: Path) -> None:
    with closing(filled(directory, 60)) as log:
        assert len(segments(directory)) >= 3
        follower = Follower(directory, OsDisk())
        end = log.durable_offset
        messages = [offset for offset in range(end) if offset % 4 != 3]
        assert offsets(follower.walk(0, end, everything())) == messages
        assert offsets(follower.walk(0, end, everything(kinds=EVENTS))) == list(range(3, end, 4))
        for start, stop in ((0, 1), (5, 6), (17, 123), (100, end), (end - 1, end)):
            assert offsets(follower.walk(start, stop, everything())) == [o for o in messages if start <= o < stop]


def test_a_topic_is_read_without_the_others(directory: Path) -> None:
    with closing(filled(directory, 60)) as log:
        follower = Follower(directory, OsDisk())
        end = log.durable_offset
        for number, topic in enumerate(("orders", "payments", "stock")):
            of_topic = [o for o in range(end) if o // 4 % 3 == number and o % 4 != 3]
            assert offsets(follower.walk(0, end, everything([topic]))) == of_topic
            assert offsets(follower.walk(7, 100, everything([topic]))) == [o for o in of_topic if 7 <= o < 100]
        assert offsets(follower.walk(0, end, everything(["unheard of"]))) == []
        messages = len([o for o in range(end) if o // 4 % 3 == 0 and o % 4 != 3])
        assert follower.topics()["orders"] == TopicTally(0, log.topic_end("orders"), messages)


def test_what_is_not_committed_is_not_seen(directory: Path) -> None:
    with closing(opened(directory)) as log:
        log.append(record(batch(count=2)), refusable=True)
        flushed(log)
        follower = Follower(directory, OsDisk())
        log.append(record(batch(count=5)), refusable=True)
        flush = log.begin_flush()
        assert flush is not None
        flush.run()
        assert follower.committed().latest == 2
        assert follower.topics()["orders"].messages == 2
        log.end_flush(flush)
        assert follower.committed().latest == 7
        assert follower.topics()["orders"].messages == 7
        assert offsets(follower.walk(0, 7, everything())) == list(range(7))


def test_a_growing_log_is_followed_through_its_rolls(directory: Path) -> None:
    with closing(opened(directory)) as log:
        follower, start, seen = Follower(directory, OsDisk()), 0, []
        for number in range(80):
            log.append(record(batch(("orders", "stock")[number % 2], 3, size=40), event()), refusable=True)
            flushed(log)
            if number % 3 == 0:
                latest = follower.committed().latest
                seen += offsets(follower.walk(start, latest, everything(["stock"])))
                start = latest
        assert len(segments(directory)) > 2
        assert seen == [o for o in range(start) if o // 4 % 2 == 1 and o % 4 != 3]


def test_retention_does_not_disturb_who_reads_a_segment_and_is_told_to_who_comes_later(directory: Path) -> None:
    with closing(filled(directory, 60, HARD)) as log:
        follower = Follower(directory, OsDisk())
        end = log.durable_offset
        walk = follower.walk(0, end, everything())
        rows = offsets(iter([next(walk)]))
        log.write_snapshot(b"", end)
        removal = log.retire(1 << 60, end)
        assert removal is not None
        removal.run()
        earliest = log.first_offset
        rest = offsets(walk)
        first_limit = removal.segments[0].end
        assert rows + [o for o in rest if isinstance(o, int)] == [
            o for o in range(end) if o % 4 != 3 and (o < first_limit or o >= earliest)
        ]
        assert [o for o in rest if isinstance(o, Gone)] == [Gone(first_limit, earliest - first_limit)]
        assert follower.committed().earliest == earliest
        assert offsets(follower.walk(earliest - 2, earliest, everything())) == [Gone(earliest - 2, 2)]
        assert min(tally.first for tally in follower.topics().values()) == earliest


class SyncFails(OsDisk):
    """Lets the next synced write of a segment fail, after it was written."""

    def __init__(self) -> None:
        self.failing = False

    def open(self, path: Path, *, writable: bool = False) -> File:
        if not writable:
            return super().open(path)
        return _SyncFails(os.open(path, os.O_RDWR | os.O_CLOEXEC), self)


class _SyncFails(OsFile):
    def __init__(self, fd: int, disk: SyncFails) -> None:
        super().__init__(fd)
        self._disk = disk

    def fdatasync(self) -> None:
        if self._disk.failing:
            self._disk.failing = False
            raise OSError(5, "sync fails")
        super().fdatasync()


@pytest.mark.parametrize("synced_before", [0, 2])
def test_a_segment_that_supersedes_another_wins(directory: Path, synced_before: int) -> None:
    """Visible, never synced, written again elsewhere: also when the new segment takes the very name of the old one."""
    disk = SyncFails()
    settings = LogSettings(sync=SyncPolicy(SyncMode.NONE), fill_bytes=0)
    with closing(Log.open(directory, disk, settings)) as log:
        follower = None
        for number in range(6):
            log.append(record(batch(count=2, size=30)), refusable=True)
            flushed(log, sync=number + 1 == synced_before)
            follower = follower or Follower(directory, OsDisk())
        assert follower is not None
        assert offsets(follower.walk(0, 12, everything())) == list(range(12))
        assert follower.topics()["orders"].messages == 12
        disk.failing = True
        log.append(record(batch(count=2)), refusable=True)
        assert flushed(log, sync=True).error is not None
        assert len(segments(directory)) == (2 if synced_before else 1)
        assert follower.committed().latest == 12
        assert offsets(follower.walk(0, 12, everything())) == list(range(12))
        log.append(record(batch(count=3)), refusable=True)
        assert flushed(log, sync=True).error is None
        assert offsets(follower.walk(3, 15, everything(["orders"]))) == list(range(3, 15))
        assert follower.topics()["orders"].messages == 15


def test_a_restarted_broker_is_followed(directory: Path) -> None:
    filled(directory, 10).close()
    follower = Follower(directory, OsDisk())
    before = follower.committed()
    assert len(offsets(follower.walk(0, before.latest, everything()))) == 30
    with closing(opened(directory)) as log:
        log.append(record(batch(count=4)), refusable=True)
        flushed(log)
        after = follower.committed()
        assert after.writer > before.writer
        assert offsets(follower.walk(before.latest, after.latest, everything())) == list(range(40, 44))


@pytest.mark.parametrize("wants", [None, ["orders"]])
def test_damage_is_told_with_its_extent_and_the_rest_is_read(directory: Path, wants: list[str] | None) -> None:
    with closing(filled(directory, 60)) as log:
        follower = Follower(directory, OsDisk())
        end = log.durable_offset
        whole = offsets(follower.walk(0, end, everything(wants)))
        victim = segments(directory)[1]
        data = bytearray(victim.read_bytes())
        at = data.index(b"orders") + 20
        data[at] ^= 0xFF
        victim.write_bytes(data)
        found = offsets(follower.walk(0, end, everything(wants)))
        gone = [each for each in found if isinstance(each, Gone)]
        assert [each.lost for each in gone] == [3]
        lost = range(gone[0].first, gone[0].first + 3)
        assert [each for each in found if isinstance(each, int)] == [o for o in whole if o not in lost]


@pytest.mark.parametrize("wants", [None, ["orders"]])
def test_offsets_given_up_by_repair_are_told(directory: Path, wants: list[str] | None) -> None:
    filled(directory, 60).close()
    victim = segments(directory)[1]
    data = bytearray(victim.read_bytes())
    data[data.index(b"stock") + 20] ^= 0xFF
    victim.write_bytes(data)
    assert repair(directory, OsDisk()).damage
    with closing(opened(directory)) as log:
        found = offsets(Follower(directory, OsDisk()).walk(0, log.durable_offset, everything(wants)))
        assert [each.lost for each in found if isinstance(each, Gone)] == [3]


def test_a_segment_cut_short_is_a_gap_up_to_the_next(directory: Path) -> None:
    with closing(filled(directory, 60)) as log:
        follower = Follower(directory, OsDisk())
        victim, following = segments(directory)[1:3]
        os.truncate(victim, victim.stat().st_size - 100)
        gone = [each for each in offsets(follower.walk(0, log.durable_offset, everything())) if isinstance(each, Gone)]
        assert len(gone) == 1
        assert gone[0].first + gone[0].lost == int(following.stem)


def test_a_missing_segment_is_gone(directory: Path) -> None:
    with closing(filled(directory, 60)) as log:
        follower = Follower(directory, OsDisk())
        follower.segments()
        victim, following = segments(directory)[1:3]
        victim.unlink()
        gone = [each for each in offsets(follower.walk(0, log.durable_offset, everything())) if isinstance(each, Gone)]
        assert gone == [Gone(int(victim.stem), int(following.stem) - int(victim.stem))]


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_sidecars_are_not_needed(directory: Path, content: bytes | None) -> None:
    with closing(filled(directory, 60)) as log:
        for path in directory.glob(f"*{INDEX_SUFFIX}"):
            path.unlink()
            if content is not None:
                path.write_bytes(content)
        follower = Follower(directory, OsDisk())
        end = log.durable_offset
        of_topic = [o for o in range(end) if o // 4 % 3 == 2 and o % 4 != 3]
        assert offsets(follower.walk(0, end, everything(["stock"]))) == of_topic
        assert follower.topics()["stock"].messages == len(of_topic)


def test_a_record_bigger_than_a_window_is_read_in_pieces(directory: Path) -> None:
    with closing(opened(directory, LogSettings())) as log:
        log.append(record(batch(count=100_000, size=100)), refusable=True)
        log.append(record(batch("stock", count=3)), refusable=True)
        flushed(log)
        follower = Follower(directory, OsDisk())
        found = list(follower.walk(1, 100_003, everything()))
        assert [each.rows for each in found if not isinstance(each, Gone)] == [32_768, 32_768, 32_768, 1_695, 3]
        assert offsets(follower.walk(99_999, 100_002, everything())) == [99_999, 100_000, 100_001]


def test_many_threads_follow_while_the_log_grows_and_rolls(directory: Path) -> None:
    settings = LogSettings(sync=SyncPolicy(SyncMode.NONE), segment_bytes=8192, fill_bytes=0)
    with closing(Log.open(directory, OsDisk(), settings)) as log:
        follower = Follower(directory, OsDisk())
        done = threading.Event()
        seen: list[list[int | Gone]] = [[] for _ in range(4)]

        def _follow(rows: list[int | Gone], wants: list[str] | None) -> None:
            start = 0
            while not done.is_set() or start < follower.committed().latest:
                latest = follower.committed().latest
                rows += offsets(follower.walk(start, latest, everything(wants)))
                assert follower.topics() is not None
                start = latest

        wanted: list[list[str] | None] = [None, None, ["stock"], ["stock"]]
        threads = [threading.Thread(target=_follow, args=each) for each in zip(seen, wanted, strict=True)]
        for thread in threads:
            thread.start()
        for number in range(400):
            log.append(record(batch(("orders", "stock")[number % 2], 3, timestamp_us=number, size=60)), refusable=True)
            flushed(log)
        done.set()
        for thread in threads:
            thread.join(120)
        assert seen[0] == seen[1] == list(range(1200))
        assert seen[2] == seen[3] == [offset for offset in range(1200) if offset // 3 % 2]
