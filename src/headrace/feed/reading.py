"""Streams of rows for tickets, made while they are read: never more in memory than one window of the log.

Knows tickets, ranges and what to do about offsets that are gone; nothing of Flight.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from headrace.auth import Identity
from headrace.feed.births import Births
from headrace.feed.columns import MessageColumns, chosen, may_be_envelopes, table_of
from headrace.feed.events import EventColumns
from headrace.feed.schema import BadColumns, select
from headrace.feed.selection import OffsetsGone, Range, Topics, range_of, wanted
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.ticket import Ticket
from headrace.kernels.records import BATCHES, EVENTS
from headrace.log.follower import Choice, Follower
from headrace.log.walk import BYTES_MAX, ROWS_MAX, Gone, Parts
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event

_GONE = "are gone, by damage or because the log forgot them meanwhile"
SMALL_ROWS = ROWS_MAX // 4
SMALL_BYTES = 1 << 20


class Rows(NamedTuple):
    """Rows, and where to go on behind them: the offset, and how many rows of the event there were already given."""

    rows: pa.RecordBatch
    next: int
    skip: int


class Reading(NamedTuple):
    """An answered ticket: the schema, and batches each with the position behind it."""

    schema: pa.Schema
    batches: Iterator[tuple[pa.RecordBatch, bytes]]


class Reader:
    """Answers tickets from a followed log."""

    def __init__(self, follower: Follower, subscriptions: Subscriptions) -> None:
        self._follower = follower
        self._subscriptions = subscriptions
        self._births = Births(follower)

    def check(self, ticket: Ticket, identity: Identity) -> pa.Schema:
        """The schema of a ticket's rows. Raises BrokerError for columns, topics or events that are not to be had."""
        wanted(ticket, identity)
        _codes(ticket)
        try:
            return select(ticket.stream, ticket.columns)
        except BadColumns as error:
            raise BrokerError(Code.INVALID, str(error)) from None

    def read(self, ticket: Ticket, identity: Identity) -> Reading:
        """The rows of a ticket. Raises BrokerError and OffsetsGone, at once or while they are read."""
        schema = self.check(ticket, identity)
        offsets = range_of(ticket, self._follower.committed())
        make = self._messages if ticket.stream == "messages" else self._events
        rows = make(ticket, identity, offsets, schema)
        return Reading(schema, _positioned(joined(rows), offsets.end))

    def _messages(self, ticket: Ticket, identity: Identity, offsets: Range, schema: pa.Schema) -> Iterator[Rows]:
        wants = wanted(ticket, identity)
        topics = Topics(wants or (lambda _: True))
        columns = MessageColumns(schema, topics.names)
        for parts in self._parts(offsets, Choice(BATCHES, topics, wants), lossy=ticket.lossy):
            kept = chosen(parts, may_be_envelopes(table_of(parts))) if ticket.envelopes else parts
            if kept.parts:
                yield Rows(columns.rows(kept), kept.next, 0)

    def _events(self, ticket: Ticket, identity: Identity, offsets: Range, schema: pa.Schema) -> Iterator[Rows]:
        columns = EventColumns(schema, self._subscriptions, self._births, wanted(ticket, identity), _codes(ticket))
        skip = ticket.skip if offsets.start == ticket.start else 0
        for parts in self._parts(offsets, Choice(EVENTS, Topics(lambda _: False)), lossy=ticket.lossy):
            for rows in columns.slices(parts, skip):
                yield Rows(*rows)
            skip = 0

    def _parts(self, offsets: Range, choice: Choice, *, lossy: bool) -> Iterator[Parts]:
        for found in self._follower.walk(offsets.start, offsets.end, choice):
            if not isinstance(found, Gone):
                yield found
            elif not lossy:
                raise OffsetsGone(found.first, found.lost, _GONE)


def _codes(ticket: Ticket) -> list[int] | None:
    """The events a ticket wants, None for all. Raises BrokerError(INVALID) for one that does not exist."""
    if ticket.events is None:
        return None
    known = {event.name.lower(): event.value for event in Event}
    unknown = sorted(set(ticket.events) - set(known))
    if unknown:
        raise BrokerError(Code.INVALID, f"unknown events {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in ticket.events]


def joined(pieces: Iterator[Rows]) -> Iterator[Rows]:
    """The same rows, with small batches put together."""
    waiting: list[Rows] = []
    rows = size = 0
    for piece in pieces:
        if waiting and (rows + piece.rows.num_rows > ROWS_MAX or size + piece.rows.nbytes > BYTES_MAX):
            yield _together(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(piece)
        rows += piece.rows.num_rows
        size += piece.rows.nbytes
        if rows >= SMALL_ROWS or size >= SMALL_BYTES:
            yield _together(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _together(waiting)


def _together(pieces: list[Rows]) -> Rows:
    rows = pieces[0].rows
    if len(pieces) > 1:
        (rows,) = pa.Table.from_batches([piece.rows for piece in pieces]).combine_chunks().to_batches()
    return Rows(rows, pieces[-1].next, pieces[-1].skip)


def _positioned(pieces: Iterator[Rows], end: int) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    for rows, start, skip in pieces:
        yield rows, json.dumps([min(start, end), skip, end]).encode()
