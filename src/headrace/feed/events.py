"""Tables of events turned into Arrow rows: one for each message an event is about. Ranges are expanded by numpy.

Knows the layout of events and their schema; whose they are and what became of which message it looks up.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.feed.births import UNKNOWN, Births
from headrace.feed.columns import Array, Numbers, chosen, table_of
from headrace.feed.schema import TIMESTAMP
from headrace.feed.subscriptions import Subscriptions
from headrace.kernels.columns import gather_ranges
from headrace.kernels.records import (
    CODE,
    EVENT_DETAIL_SIZE,
    EVENT_RANGES,
    EVENT_RANGES_AT,
    EVENT_REASON_SIZE,
    EVENT_SUBSCRIPTION,
    OFFSET,
)
from headrace.kernels.records import TIMESTAMP as TIMESTAMP_COLUMN
from headrace.log.walk import ROWS_MAX, Parts
from headrace.model.events import RANGE, Event

_KNOWN = {event.value: event.name.lower() for event in Event}
NAMES = pa.array([_KNOWN.get(code, str(code)) for code in range(256)])
_RANGE = np.dtype([("first", "<i8"), ("count", "<u4"), ("attempt", "<u4")])
_US_PER_MS = 1000.0

assert _RANGE.itemsize == RANGE.size


class Slice(NamedTuple):
    """Rows, and where to go on behind them: the offset of an event, and how many of its rows were given."""

    rows: pa.RecordBatch
    next: int
    skip: int


class _Pieces(NamedTuple):
    """Runs of messages, each of one event: which one in its table, the first message (-1: none), how many, attempt."""

    event: Numbers
    first: Numbers
    rows: Numbers
    attempt: Numbers


class EventColumns:
    """Makes rows of events.

    `wants` says of a topic whether it is to be read, `codes` are the events wanted; None when all are.
    """

    def __init__(
        self,
        schema: pa.Schema,
        subscriptions: Subscriptions,
        births: Births,
        wants: Callable[[str], bool] | None,
        codes: Sequence[int] | None = None,
    ) -> None:
        self._schema = schema
        self._subscriptions = subscriptions
        self._births = births
        self._wants = wants
        self._codes = codes
        self._needs_births = "latency_ms" in schema.names
        self._needs_topics = "topic" in schema.names or wants is not None

    def slices(self, parts: Parts, skip: int = 0) -> Iterator[Slice]:
        """The rows of all events in the table but the first `skip`, in batches of no more than ROWS_MAX."""
        table = table_of(parts)
        self._learn(parts, table)
        if self._codes is not None:
            parts = chosen(parts, np.isin(table[:, CODE], self._codes))
            table = table_of(parts)
        if not len(table):
            return
        pieces = _pieces(parts, table)
        ends = np.cumsum(pieces.rows)
        event_ends = np.zeros(len(table), np.int64)
        np.maximum.at(event_ends, pieces.event, ends)
        reasons = _reasons(parts, table)
        for begin in range(skip, int(ends[-1]), ROWS_MAX):
            end = min(begin + ROWS_MAX, int(ends[-1]))
            rows = self._rows(table, pieces, ends, np.arange(begin, end), reasons)
            last = int(np.searchsorted(event_ends, end, side="left"))
            if event_ends[last] == end:
                position = (int(table[last + 1, OFFSET]) if last + 1 < len(table) else parts.next, 0)
            else:
                position = (int(table[last, OFFSET]), end - (int(event_ends[last - 1]) if last else 0))
            yield Slice(rows, *position)

    def _rows(self, table: Numbers, pieces: _Pieces, ends: Numbers, rows: Numbers, reasons: Array) -> pa.RecordBatch:
        piece = np.searchsorted(ends, rows, side="right")
        event = pieces.event[piece]
        first = pieces.first[piece]
        message = np.where(first < 0, UNKNOWN, first + rows - (ends[piece] - pieces.rows[piece]))
        names, topics, topic_codes = self._named(table, event)
        births = np.full(len(rows), UNKNOWN, np.int64)
        unnamed = (topic_codes == UNKNOWN) & (message >= 0)
        if self._needs_births or (self._needs_topics and unnamed.any()):
            births, codes = self._births_of(message)
            known = np.array([*range(len(topics), len(topics) + len(self._births.topics)), UNKNOWN])
            topic_codes = np.where(unnamed, known[codes], topic_codes)
            topics = topics + self._births.topics
        times = table[event, TIMESTAMP_COLUMN]
        latency = (times - births) / _US_PER_MS
        columns: dict[str, Array] = {
            "offset": pa.array(table[event, OFFSET]),
            "timestamp": pa.array(times).view(TIMESTAMP),
            "event": NAMES.take(table[event, CODE]),
            "topic": _taken(topics, topic_codes),
            "subscription": names,
            "message_offset": pa.array(message, mask=message < 0),
            "attempt": pa.array(pieces.attempt[piece].astype(np.int32), mask=message < 0),
            "reason": reasons.take(event),
            "latency_ms": pa.array(latency, mask=births == UNKNOWN),
            "subscription_id": pa.array(table[event, EVENT_SUBSCRIPTION], mask=table[event, EVENT_SUBSCRIPTION] == 0),
        }
        made = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        if self._wants is None:
            return made
        wanted = np.array([*map(self._wants, topics), False], np.bool_)
        return made.filter(pa.array(wanted[topic_codes]))

    def _named(self, table: Numbers, event: Numbers) -> tuple[Array, list[str], Numbers]:
        """The subscriptions' names for these rows, topics, and the number of each row's topic."""
        ids, place = np.unique(table[:, EVENT_SUBSCRIPTION], return_inverse=True)
        known = self._subscriptions.known(ids.tolist())
        topics = sorted({each.topic for each in known.values()})
        numbers = {topic: number for number, topic in enumerate(topics)}
        names = pa.array(
            [(known[each].name if each in known else str(each)) if each else None for each in ids.tolist()], pa.string()
        )
        codes = np.array([numbers[known[each].topic] if each in known else UNKNOWN for each in ids.tolist()], np.int64)
        return names.take(place[event]), topics, codes[place[event]]

    def _births_of(self, message: Numbers) -> tuple[Numbers, Numbers]:
        births = np.full(len(message), UNKNOWN, np.int64)
        codes = np.full(len(message), UNKNOWN, np.int64)
        about = np.flatnonzero(message >= 0)
        births[about], codes[about] = self._births.find(message[about])
        return births, codes

    def _learn(self, parts: Parts, table: Numbers) -> None:
        """Remember the subscriptions made by events in the table."""
        for row in np.flatnonzero(table[:, CODE] == Event.SUBSCRIBED).tolist():
            at = int(_reason_at(table)[row] + table[row, EVENT_REASON_SIZE])
            detail = bytes(parts.buffer[at : at + int(table[row, EVENT_DETAIL_SIZE])])
            self._subscriptions.learn(int(table[row, EVENT_SUBSCRIPTION]), detail)


def _pieces(parts: Parts, table: Numbers) -> _Pieces:
    """The ranges of all events, and a piece of one row for each event that has none."""
    counts = table[:, EVENT_RANGES]
    raw = np.empty(int(counts.sum()) * RANGE.size, np.uint8)
    gather_ranges(parts.buffer, parts.table, parts.parts, raw.data)
    ranges = raw.view(_RANGE)
    event = np.repeat(np.arange(len(table)), counts)
    filled = ranges["count"] > 0
    ranges, event = ranges[filled], event[filled]
    alone = np.flatnonzero(np.bincount(event, minlength=len(table)) == 0)
    order = np.argsort(np.concatenate([event, alone]), kind="stable")
    none = np.zeros(len(alone), np.int64)
    return _Pieces(
        np.concatenate([event, alone])[order],
        np.concatenate([ranges["first"], none - 1])[order],
        np.concatenate([ranges["count"].astype(np.int64), none + 1])[order],
        np.concatenate([ranges["attempt"].astype(np.int64), none])[order],
    )


def _reason_at(table: Numbers) -> Numbers:
    return table[:, EVENT_RANGES_AT] + RANGE.size * table[:, EVENT_RANGES]


def _reasons(parts: Parts, table: Numbers) -> Array:
    """The reason of each event, null where it gives none."""
    sizes = table[:, EVENT_REASON_SIZE]
    ends = np.zeros(len(table) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    places = np.repeat(_reason_at(table) - ends[:-1], sizes) + np.arange(int(ends[-1]))
    text = np.frombuffer(parts.buffer, np.uint8)[places]
    present = np.packbits(sizes > 0, bitorder="little")
    return pa.Array.from_buffers(
        pa.string(), len(table), [pa.py_buffer(present.data), pa.py_buffer(ends.data), pa.py_buffer(text.data)]
    )


def _taken(names: list[str], codes: npt.NDArray[np.int64]) -> Array:
    """Names by their codes, null for UNKNOWN."""
    return pa.array(names, pa.string()).take(pa.array(codes, pa.int64(), mask=codes == UNKNOWN))
