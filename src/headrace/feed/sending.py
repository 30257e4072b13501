"""Rows on their way to one reader: made in threads while those before them are sent, within the bounds on memory.

A reader who takes nothing for a moment costs one batch and no more: what was read ahead is dropped, and read again when
he goes on. Where memory is short he is sent away; a client that keeps its place comes back and goes on there.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from headrace.auth import Identity
from headrace.feed.bounds import Memory
from headrace.feed.ipc import OutgoingRows
from headrace.feed.reading import Reader
from headrace.feed.threads import Worker
from headrace.feed.ticket import Ticket
from headrace.feed.wire import flight_data
from headrace.http2 import Call
from headrace.log.walk import BYTES_MAX
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code

RESTING_S = 1.0


class Encoded(NamedTuple):
    """Rows as a message to be sent, and the position behind them."""

    pieces: list[Buffer]
    position: bytes
    held: int


class Batches:
    """The rows of a ticket as messages. Blocks; one thread at a time."""

    def __init__(self, reader: Reader, ticket: Ticket, identity: Identity) -> None:
        self._reader = reader
        self._ticket = ticket
        self._identity = identity
        self._rows: Iterator[tuple[pa.RecordBatch, bytes]] | None = None
        self._encoding: OutgoingRows | None = None

    def begin(self) -> list[Buffer]:
        """The first message: the schema. Raises BrokerError and OffsetsGone."""
        schema, self._rows = self._reader.read(self._ticket, self._identity)
        self._encoding = OutgoingRows(schema)
        return flight_data(self._encoding.schema, b"", ())

    def next(self) -> Encoded | None:
        """More rows; None when there are none. Raises BrokerError and OffsetsGone."""
        if self._rows is None:
            self._rows = self._reader.read(self._ticket, self._identity).batches
        found = next(self._rows, None)
        if found is None:
            return None
        rows, position = found
        assert self._encoding is not None
        header, body = self._encoding.encode(rows)
        pieces = flight_data(header, position, body)
        return Encoded(pieces, position, min(sum(map(len, pieces)), BYTES_MAX))

    def rest(self, position: bytes) -> None:
        """Let go of everything that was read behind this position, until it is asked for again."""
        self._ticket = self._ticket.behind(position)
        self.close()

    def close(self) -> None:
        """Give files and memory back."""
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()  # type: ignore[attr-defined]  # a generator


class Sending:
    """One stream of rows. `run` it; it ends when all are sent, or raises what the reader is to be told."""

    def __init__(self, call: Call, batches: Batches, worker: Worker, memory: Memory, owner: str) -> None:
        self._call = call
        self._batches = batches
        self._worker = worker
        self._memory = memory
        self._owner = owner
        self._held = 0

    async def run(self) -> None:
        """Send the schema, then the rows. Raises BrokerError and OffsetsGone."""
        ahead: asyncio.Task[Encoded | None] | None = None
        try:
            await self._call.write(*await self._worker.run(self._batches.begin))
            made = await self._made_in_turn()
            while made is not None:
                ahead = await self._send(made, self._read_ahead())
                self._give(made.held)
                made = None
                made, ahead = await (ahead or self._made_in_turn()), None
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait({ahead})
            self._worker.leave(self._batches.close)
            self._give(self._held)

    async def _made_in_turn(self) -> Encoded | None:
        """The next rows, once there is room for them."""
        await self._memory.take(self._owner, BYTES_MAX)
        self._held += BYTES_MAX
        return await self._made()

    async def _made(self) -> Encoded | None:
        """The next rows; of the room that was taken for them as much is kept as they need."""
        held = 0
        try:
            made = await self._worker.run(self._batches.next)
            held = made.held if made is not None else 0
        finally:
            self._give(BYTES_MAX - held)
        return made

    def _read_ahead(self) -> "asyncio.Task[Encoded | None] | None":
        """What comes after the rows that are about to be sent, if there is room for it."""
        if not self._memory.try_take(self._owner, BYTES_MAX):
            return None
        self._held += BYTES_MAX
        return asyncio.create_task(self._made(), name="feed-ahead")

    async def _send(
        self, made: Encoded, ahead: "asyncio.Task[Encoded | None] | None"
    ) -> "asyncio.Task[Encoded | None] | None":
        """Send rows; returns what was read ahead, None when that had to be dropped."""
        sending = asyncio.ensure_future(self._call.write(*made.pieces))
        try:
            await asyncio.wait({sending}, timeout=RESTING_S)
            if not sending.done():
                if ahead is not None:
                    await self._drop(ahead)
                    ahead = None
                await self._worker.run(lambda: self._batches.rest(made.position))
                await self._wait_for(sending)
            await sending
        finally:
            sending.cancel()
        return ahead

    async def _drop(self, ahead: "asyncio.Task[Encoded | None]") -> None:
        """Throw away what was read ahead; whatever went wrong with it will do so again."""
        await asyncio.wait({ahead})
        made = None if ahead.exception() else ahead.result()
        self._give(made.held if made is not None else 0)

    async def _wait_for(self, sending: "asyncio.Future[None]") -> None:
        """Return when it is done. Raises BrokerError(DRAINING) when others need the memory."""
        while not sending.done():
            if self._memory.is_short(BYTES_MAX):
                raise BrokerError(
                    Code.DRAINING, "read too slowly while others wait for memory: read on from where you are"
                )
            await asyncio.wait({sending}, timeout=RESTING_S)

    def _give(self, size: int) -> None:
        self._held -= size
        self._memory.give(self._owner, size)
