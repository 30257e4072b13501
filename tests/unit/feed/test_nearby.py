"""A log read where it lies: the same rows as through the feed, or the ticket for the feed."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from headrace.feed import nearby as module
from headrace.feed import reading
from headrace.feed.client import DataLoss, FeedError
from headrace.feed.nearby import nearby
from headrace.feed.ticket import Ticket
from headrace.feed.whereabouts import Whereabouts, whereabouts
from headrace.kernels import records
from headrace.log import Log, LogSettings, OsDisk
from headrace.log.follower import Follower
from headrace.model.errors import StorageError
from headrace.spark.source.options import Connection, ReadOptions
from headrace.spark.source.ranges import OffsetRange
from headrace.spark.source.reader import read_range
from tests.unit.feed.logs import UNSYNCED, read
from tests.unit.log.records import batch, flushed, record

SETTINGS = LogSettings(sync=UNSYNCED, segment_bytes=4096, fill_bytes=0)
NOBODY = Connection(endpoint="grpc://127.0.0.1:1", retry_timeout_s=0.0)
Y = TypeVar("Y")
R = TypeVar("R")


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    """A log of several segments, 40 batches of two topics in turn; interpreted kernels pass for compiled ones."""
    monkeypatch.setattr(records, "COMPILED", True)
    with closing(Log.open(tmp_path, OsDisk(), SETTINGS)) as log:
        for number in range(40):
            log.append(record(batch(f"topic-{number % 2}", 20)), refusable=True)
            flushed(log)
        with closing(Follower(tmp_path, OsDisk())) as follower:
            yield follower


def place_of(follower: Follower) -> Whereabouts:
    place = whereabouts(follower.directory)
    assert place is not None
    return place


def drained(generator: Generator[Y, None, R]) -> tuple[list[Y], R]:
    """What a generator yields, and what it returns."""
    found: list[Y] = []
    while True:
        try:
            found.append(next(generator))
        except StopIteration as end:
            return found, end.value


def offsets(batches: list[pa.RecordBatch]) -> list[int | None]:
    return [offset for each in batches for offset in each.column("offset").to_pylist()]


@pytest.mark.parametrize(
    "ticket",
    [Ticket(start=0, end=800), Ticket(start=33, end=617), Ticket(topics=("topic-1",), start=5, end=700)],
)
def test_the_rows_are_those_of_the_feed(follower: Follower, ticket: Ticket) -> None:
    found, rest = drained(nearby(place_of(follower), ticket))
    rows = read(follower, ticket)
    assert offsets(found) == [row["offset"] for row in rows]
    assert [value for each in found for value in each.column("value").to_pylist()] == [row["value"] for row in rows]
    assert rest is None


def test_offsets_that_are_gone_are_named(follower: Follower) -> None:
    with pytest.raises(DataLoss, match="200 offsets from 800 on are not there") as lost:
        drained(nearby(place_of(follower), Ticket(start=0, end=1000)))
    assert (lost.value.first, lost.value.count) == (800, 200)


@pytest.mark.parametrize(
    "other",
    [{"machine": "another"}, {"inode": 0}, {"device": 0}, {"path": "/nowhere"}],
    ids=lambda other: next(iter(other)),
)
def test_another_log_is_left_to_the_feed(follower: Follower, other: dict[str, object]) -> None:
    ticket = Ticket(start=0, end=800)
    assert drained(nearby(place_of(follower)._replace(**other), ticket)) == ([], ticket)  # type: ignore[arg-type]


def test_interpreted_kernels_leave_it_to_the_feed(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "COMPILED", False)
    ticket = Ticket(start=0, end=800)
    assert drained(nearby(place_of(follower), ticket)) == ([], ticket)


def test_events_are_left_to_the_feed(follower: Follower) -> None:
    ticket = Ticket(stream="events", start=0, end=800)
    assert drained(nearby(place_of(follower), ticket)) == ([], ticket)


def test_a_log_that_fails_in_the_middle_is_left_to_the_feed_from_there(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Follower):
        def walk(self, *arguments: object) -> Iterator[object]:  # type: ignore[override]
            yield from islice(super().walk(*arguments), 2)  # type: ignore[arg-type]
            raise StorageError("the disk is on fire")

    monkeypatch.setattr(module, "Follower", Failing)
    monkeypatch.setattr(reading, "SMALL_ROWS", 1)
    found, rest = drained(nearby(place_of(follower), Ticket(start=0, end=800)))
    assert rest is not None
    assert rest.start is not None
    assert 0 < rest.start < 800
    assert offsets(found) == list(range(rest.start))
    assert rest.end == 800


def test_a_task_near_the_log_asks_nobody_and_others_ask_the_feed(follower: Follower) -> None:
    options = ReadOptions(connection=NOBODY, columns=("offset", "value"))
    near = OffsetRange(10, 790, place_of(follower))
    assert offsets(list(read_range(options, near))) == list(range(10, 790))
    for far in (replace(near, place=None), replace(near, place=place_of(follower)._replace(machine="another"))):
        with pytest.raises(FeedError, match=r"127\.0\.0\.1:1"):
            list(read_range(options, far))


def test_columns_are_called_nullable_where_spark_thinks_so(follower: Follower) -> None:
    options = ReadOptions(connection=NOBODY, columns=("key", "offset", "value"), nullable=("offset",))
    (first, *_) = read_range(options, OffsetRange(0, 800, place_of(follower)))
    assert [field.nullable for field in first.schema] == [True, True, False]
