"""Random logs and what the plain model sees in them, for the tests of the feed."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from headrace.auth import Identity
from headrace.feed.reading import Reader
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.ticket import Ticket
from headrace.log import Log, LogSettings, OsDisk, SyncMode, SyncPolicy
from headrace.log.follower import Follower
from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.events import Event, EventPart, Range
from tests.unit.log.records import flushed, record

UNSYNCED = SyncPolicy(SyncMode.NONE)
SMALL = LogSettings(sync=UNSYNCED, segment_bytes=4096, fill_bytes=0)
TOPICS = ("orders", "stock", "größe", "$dead.orders")
EVERYBODY = Identity("somebody")


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch with any columns, whose cells may be empty."""
    values = draw(st.lists(st.binary(max_size=30), min_size=1, max_size=12))

    def _column(cell: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(cell, min_size=len(values), max_size=len(values)))

    return build_batch(
        draw(st.sampled_from(TOPICS)),
        values,
        timestamp_us=draw(st.integers(0, 1 << 50)),
        protocol=draw(st.sampled_from(Protocol)),
        keys=_column(st.binary(max_size=5)),
        headers=_column(st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=4)), max_size=3)),
        message_ids=_column(st.text(max_size=5)),
    )


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """An event about messages that may or may not exist."""
    event = draw(st.sampled_from([each for each in Event if each is not Event.SUBSCRIBED]))
    ranges: list[Range] = []
    if event not in (Event.UNSUBSCRIBED, Event.COMMITTED, Event.REPORTED, Event.DAMAGED):
        pieces = st.tuples(st.integers(0, 150), st.integers(1, 9), st.integers(0, 4))
        ranges = [Range(*each) for each in draw(st.lists(pieces, min_size=1, max_size=4))]
    return EventPart(
        event,
        draw(st.integers(0, 1 << 50)),
        draw(st.integers(0, 4)),
        ranges,
        draw(st.text(max_size=8)),
    ).encode()


SUBSCRIBED = EventPart(Event.SUBSCRIBED, 5, 3, (), "", b'{"topic":"orders","name":"mine","qos":1}').encode()
"""At the beginning of every log, so that it has offset 0."""

records = st.lists(st.lists(batches() | events(), min_size=1, max_size=4), max_size=25)


@contextmanager
def written(contents: list[list[bytes]]) -> Iterator[tuple[Log, Follower]]:
    """A log of several segments with these records, each flushed, and a follower of it."""
    with tempfile.TemporaryDirectory() as directory:
        log = Log.open(Path(directory), OsDisk(), SMALL)
        for parts in [[SUBSCRIBED], *contents]:
            log.append(record(*parts), refusable=True)
            flushed(log)
        follower = Follower(Path(directory), OsDisk())
        try:
            yield log, follower
        finally:
            follower.close()
            log.close()


def message_rows(log: Log) -> list[dict[str, Any]]:
    """Every message, one by one, as the model takes it out of its batch."""
    rows = []
    for each in log.iter_records(0):
        for part in each.parts():
            if isinstance(part, Batch):
                rows += [_row(part, index) for index in range(part.count)]
    return rows


def _row(batch: Batch, index: int) -> dict[str, Any]:
    message = batch.message(index)
    headers = [{"key": key, "value": value} for key, value in message.headers]
    return {
        "key": message.key,
        "value": message.value,
        "topic": message.topic,
        "partition": 0,
        "offset": message.offset,
        "timestamp": message.timestamp_us,
        "headers": headers or None,
        "protocol": message.protocol.name.lower(),
        "message_id": message.message_id,
    }


def event_rows(log: Log, names: dict[int, tuple[str, str]]) -> list[dict[str, Any]]:
    """Every event, expanded by hand. `names` are the name and topic of the subscriptions known beforehand."""
    born = {row["offset"]: row for row in message_rows(log)}
    known = dict(names)
    rows: list[dict[str, Any]] = []
    for each in log.iter_records(0):
        for part in each.parts():
            if not isinstance(part, Batch):
                rows += _event_rows(part[0], part[1], born, known)
    return rows


def _event_rows(
    offset: int, event: EventPart, born: dict[int, dict[str, Any]], known: dict[int, tuple[str, str]]
) -> list[dict[str, Any]]:
    about: list[tuple[int | None, int | None]] = [
        (message, each.attempt) for each in event.ranges for message in range(each.first, each.first + each.count)
    ]
    identity = event.subscription
    name, topic = known.get(identity, (str(identity), None))
    rows = []
    for message, attempt in about or [(None, None)]:
        birth = born.get(-1 if message is None else message)
        rows.append(
            {
                "offset": offset,
                "timestamp": event.timestamp_us,
                "event": event.event.name.lower(),
                "topic": topic or (birth["topic"] if birth else None),
                "subscription": name if identity else None,
                "message_offset": message,
                "attempt": attempt,
                "reason": event.reason or None,
                "latency_ms": (event.timestamp_us - birth["timestamp"]) / 1000 if birth else None,
                "subscription_id": identity or None,
            }
        )
    return rows


def read(follower: Follower, ticket: Ticket, identity: Identity = EVERYBODY, listed: Any = ()) -> list[dict[str, Any]]:
    """The rows of a ticket as dictionaries, timestamps in microseconds."""
    schema, batches = Reader(follower, Subscriptions(lambda: listed)).read(ticket, identity)
    rows = []
    for batch, _ in batches:
        assert batch.schema == schema
        batch.validate(full=True)
        if "timestamp" in schema.names:
            place = schema.names.index("timestamp")
            batch = batch.set_column(place, "timestamp", batch.column(place).view("int64"))
        rows += batch.to_pylist()
    return rows
