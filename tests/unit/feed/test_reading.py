"""Rows of tickets against a plain model that takes messages and events out of their records one by one."""

import json
import re
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.auth import Identity, Scope
from headrace.feed.reading import Reader
from headrace.feed.schema import EVENTS, MESSAGES
from headrace.feed.selection import OffsetsGone
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.ticket import Ticket
from headrace.log import Log, LogSettings, OsDisk
from headrace.log.follower import Follower
from headrace.log.walk import BYTES_MAX, ROWS_MAX
from headrace.model.batch import build_batch
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event, EventPart, Range
from tests.harness.properties import tried
from tests.unit.feed.logs import EVERYBODY, TOPICS, UNSYNCED, event_rows, message_rows, read, records, written
from tests.unit.log.records import batch, flushed, record

LISTED = [{"id": 1, "name": "billing", "topic": "orders", "owner": "a"}, {"id": 2, "name": "", "topic": "stock"}]
NAMES = {1: ("billing", "orders"), 2: ("2", "stock")}

patient = tried(40)
chosen = st.none() | st.lists(st.sampled_from(TOPICS), max_size=3, unique=True).map(tuple)


def cut(rows: list[dict[str, Any]], start: int, end: int, columns: tuple[str, ...] | None) -> list[dict[str, Any]]:
    return [
        {name: row[name] for name in columns or row}
        for row in rows
        if start <= row["offset"] < end
    ]  # fmt: skip


@patient
@given(
    contents=records,
    range_=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    topics=chosen,
    columns=st.none() | st.lists(st.sampled_from(MESSAGES.names), min_size=1, unique=True).map(tuple),
)
def test_messages_are_what_the_model_says(
    contents: list[list[bytes]], range_: tuple[int, int], topics: tuple[str, ...] | None, columns: Any
) -> None:
    with written(contents) as (log, follower):
        start, end = (min(each, log.durable_offset) for each in sorted(range_))
        found = read(follower, Ticket(topics=topics, start=start, end=end, columns=columns))
        rows = [row for row in message_rows(log) if topics is None or row["topic"] in topics]
        assert found == cut(rows, start, end, columns)


@patient
@given(
    contents=records,
    range_=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    columns=st.none() | st.lists(st.sampled_from(EVENTS.names), min_size=1, unique=True).map(tuple),
)
def test_events_are_what_the_model_says(contents: list[list[bytes]], range_: tuple[int, int], columns: Any) -> None:
    with written(contents) as (log, follower):
        start, end = (min(each, log.durable_offset) for each in sorted(range_))
        found = read(follower, Ticket(stream="events", start=start, end=end, columns=columns), listed=LISTED)
        rows = cut(event_rows(log, NAMES | _learned(start)), start, end, columns)
        assert found == rows


def _learned(start: int) -> dict[int, tuple[str, str]]:
    """What the event at the beginning of the log tells those who read it."""
    return {3: ("mine", "orders")} if start == 0 else {}


@patient
@given(contents=records, pattern=st.sampled_from(["orders", ".*", r"\$dead\..*", "(orders|stock)", "o.*"]))
def test_a_pattern_is_for_the_whole_name(contents: list[list[bytes]], pattern: str) -> None:
    with written(contents) as (log, follower):
        expected = [row["offset"] for row in message_rows(log) if re.fullmatch(pattern, row["topic"])]
        assert [row["offset"] for row in read(follower, Ticket(pattern=pattern))] == expected


@patient
@given(contents=records)
def test_who_may_not_see_everything_sees_the_rest(contents: list[list[bytes]]) -> None:
    clerk = Identity("clerk", subscribe=Scope(["orders"]))
    with written(contents) as (log, follower):
        expected = [row for row in message_rows(log) if row["topic"] in ("orders", "$dead.orders")]
        assert read(follower, Ticket(), clerk) == expected
        events = event_rows(log, NAMES | _learned(0))
        allowed = [row for row in events if row["topic"] in ("orders", "$dead.orders")]
        assert read(follower, Ticket(stream="events"), clerk, LISTED) == allowed
        with pytest.raises(BrokerError, match="stock") as refused:
            read(follower, Ticket(topics=("orders", "stock")), clerk)
        assert refused.value.code is Code.FORBIDDEN


def opened(directory: Path) -> Log:
    return Log.open(directory, OsDisk(), LogSettings(sync=UNSYNCED, segment_bytes=1 << 20, fill_bytes=0))


def test_batches_are_neither_tiny_nor_huge(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as log:
        for _ in range(300):
            log.append(record(batch("orders", 1), batch("stock", 100)), refusable=True)
            flushed(log)
        log.append(record(batch("orders", 100_000)), refusable=True)
        log.append(record(batch("orders", 17, size=1 << 20)), refusable=True)
        flushed(log)
        reader = Reader(Follower(tmp_path, OsDisk()), Subscriptions(list))
        found = [each for each, _ in reader.read(Ticket(topics=("orders",)), EVERYBODY).batches]
        sizes = [each.num_rows for each in found]
        assert sum(sizes) == 100_317
        assert sizes[:4] == [300, ROWS_MAX, ROWS_MAX, ROWS_MAX]
        assert sizes[4:] == [1696, 8, 8, 1]
        assert max(each.nbytes for each in found) <= BYTES_MAX + 1000


def test_reading_goes_on_behind_any_batch(tmp_path: Path) -> None:
    """Also in the middle of an event about more messages than fit into one batch."""
    with closing(opened(tmp_path)) as log:
        log.append(record(batch("orders", 100)), refusable=True)
        log.append(record(EventPart(Event.ACKED, 5, 0, [Range(0, 80_000, 1), Range(7, 3, 2)]).encode()), refusable=True)
        log.append(record(EventPart(Event.UNSUBSCRIBED, 6, 1).encode()), refusable=True)
        flushed(log)
        reader = Reader(Follower(tmp_path, OsDisk()), Subscriptions(list))
        columns = ("event", "message_offset")
        whole = read(Follower(tmp_path, OsDisk()), Ticket(stream="events", columns=columns))
        assert len(whole) == 80_004
        position: tuple[int, int, int] = (0, 0, 102)
        pieces: list[dict[str, Any]] = []
        while position[0] < position[2]:
            ticket = Ticket(stream="events", start=position[0], skip=position[1], end=position[2], columns=columns)
            rows, behind = next(reader.read(ticket, EVERYBODY).batches)
            assert 0 < rows.num_rows <= ROWS_MAX
            pieces += rows.to_pylist()
            position = tuple(json.loads(behind))
        assert [row["message_offset"] for row in pieces] == [row["message_offset"] for row in whole]
        assert pieces[-1]["event"] == "unsubscribed"


def test_offsets_that_are_not_there_are_an_error_or_passed_over(tmp_path: Path) -> None:
    hard = LogSettings(sync=UNSYNCED, segment_bytes=4096, fill_bytes=0, retention_s=0, retention_hard=True)
    with closing(Log.open(tmp_path, OsDisk(), hard)) as log:
        for number in range(40):
            log.append(record(batch(count=5, timestamp_us=number)), refusable=True)
            flushed(log)
        flushed(log, sync=True)
        log.write_snapshot(b"", 200)
        removal = log.retire(1 << 60, 200)
        assert removal is not None
        removal.run()
        earliest = log.first_offset
        assert earliest > 0
        follower = Follower(tmp_path, OsDisk())
        assert len(read(follower, Ticket())) == 200 - earliest
        for ticket, first, count in (
            (Ticket(start=0), 0, earliest),
            (Ticket(start=2, end=4), 2, 2),
            (Ticket(start=190, end=210), 200, 10),
            (Ticket(start=300, end=310), 300, 10),
        ):
            with pytest.raises(OffsetsGone) as gone:
                read(follower, ticket)
            assert (gone.value.first, gone.value.count) == (first, count)
        assert len(read(follower, Ticket(start=0, lossy=True))) == 200 - earliest
        assert len(read(follower, Ticket(start=190, end=999, lossy=True))) == 10
        assert read(follower, Ticket(start=2, end=4, lossy=True)) == []
        assert read(follower, Ticket(start=300, end=310, lossy=True)) == []
        assert read(follower, Ticket(start=200)) == []


def test_damage_is_an_error_or_passed_over(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as log:
        for _ in range(10):
            log.append(record(batch(count=5)), refusable=True)
        flushed(log)
        (path,) = tmp_path.glob("*.seg")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        follower = Follower(tmp_path, OsDisk())
        with pytest.raises(OffsetsGone, match="gone") as gone:
            read(follower, Ticket())
        assert gone.value.count == 5
        lost = range(gone.value.first, gone.value.first + 5)
        assert [row["offset"] for row in read(follower, Ticket(lossy=True))] == [o for o in range(50) if o not in lost]
        assert read(follower, Ticket(start=lost.stop)) != []


@patient
@given(contents=records, names=st.lists(st.sampled_from([each.name.lower() for each in Event]), unique=True))
def test_only_the_events_named_are_given(contents: list[list[bytes]], names: list[str]) -> None:
    with written(contents) as (log, follower):
        found = read(follower, Ticket(stream="events", events=tuple(names)), listed=LISTED)
        assert found == [row for row in event_rows(log, NAMES | _learned(0)) if row["event"] in names]


@patient
@given(contents=records)
def test_no_envelope_is_left_out_and_no_batch_that_cannot_hold_one_is_given(contents: list[list[bytes]]) -> None:
    with written(contents) as (log, follower):
        rows = message_rows(log)
        found = read(follower, Ticket(envelopes=True))
        assert [row for row in rows if row["protocol"] == "grpcq" or row["headers"]] == [
            row for row in found if row["protocol"] == "grpcq" or row["headers"]
        ]
        assert all(row in rows for row in found)
        if not any(row["headers"] for row in rows):
            assert [row["offset"] for row in found] == [row["offset"] for row in rows if row["protocol"] == "grpcq"]


@patient
@given(contents=records)
def test_sizes_come_without_the_values(contents: list[list[bytes]]) -> None:
    with written(contents) as (log, follower):
        found = read(follower, Ticket(columns=("offset", "value_size")))
        assert found == [{"offset": row["offset"], "value_size": len(row["value"])} for row in message_rows(log)]


def test_an_event_that_does_not_exist_is_refused() -> None:
    with written([]) as (_, follower), pytest.raises(BrokerError, match="unknown events lost; there are subscribed,"):
        read(follower, Ticket(stream="events", events=("acked", "lost")))


@pytest.mark.parametrize("columns", [("nonsense",), (), ("value", "value")])
def test_columns_that_are_not_there_are_refused(columns: tuple[str, ...]) -> None:
    with written([]) as (_, follower), pytest.raises(BrokerError, match="message_id"):
        read(follower, Ticket(columns=columns))


def test_messages_with_cells_that_are_not_what_they_should_be_are_told_of_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    """A checksum is right and the contents are not: no crash, no nonsense, and what is sound is there."""
    with closing(opened(tmp_path)) as log:
        good = build_batch("orders", [b"a", b"b"], timestamp_us=1, headers=[[("k", b"v")], []], keys=[b"xx", b"yy"])
        assert good.count(b"\1\0k\1\0\0\0v") == 1
        bad = good.replace(b"\1\0k\1\0\0\0v", b"\1\0k\xff\0\0\0v")
        disordered = good.replace(struct.pack("<III", 0, 2, 4), struct.pack("<III", 0, 9, 4))
        for part in (bad, disordered, good):
            log.append(record(part), refusable=True)
        flushed(log)
        follower = Follower(tmp_path, OsDisk())
        found = read(follower, Ticket())
        assert [row["offset"] for row in found] == [0, 1, 2, 3, 4, 5]
        assert [row["value"] for row in found] == [b"a", b"b"] * 3
        assert [row["key"] for row in found] == [b"xx", b"yy", None, None, b"xx", b"yy"]
        told = [row["headers"] for row in found]
        assert [[header["key"] for header in headers or ()] for headers in told] == [
            ["headrace-malformed"], [], ["k", "headrace-malformed"], ["headrace-malformed"], ["k"], [],
        ]  # fmt: skip
        assert b"headers" in told[0][0]["value"]
        assert b"key: a cell from 0 to 9 in 4 bytes" in told[2][1]["value"]
        for start in range(6):
            for end in range(start, 7):
                assert read(follower, Ticket(start=start, end=min(end, 6))) == found[start:end]
