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
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code

RESTING_S = 0.25
CROWDED_S = 1.0
UNREAD_S = 60.0
WINDOW_BYTES = 2 << 20
"""What is read of the log at a time."""

OPEN_BYTES = 2 * WINDOW_BYTES
"""What a stream costs that is being made: the window, and rows of it that are put together."""

PIECE_BYTES = 2 << 20
"""What a batch is expected to cost."""


class Encoded(NamedTuple):
    """Rows as a message to be sent, and the position behind them."""

    pieces: list[Buffer]
    position: bytes
    size: int

    @property
    def cost(self) -> int:
        """What it takes; one that is bigger than most was read in a window as big."""
        return self.size if self.size <= PIECE_BYTES else 2 * self.size


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
        return Encoded(pieces, position, sum(map(len, pieces)))

    def rest(self, position: bytes | None) -> None:
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
        self._is_open = False
        self._position: bytes | None = None

    async def run(self) -> None:
        """Send the schema, then the rows. Raises BrokerError and OffsetsGone."""
        ahead: asyncio.Task[Encoded | None] | None = None
        leaving = 0
        try:
            await self._call.write(*await self._worker.run(self._batches.begin))
            made = await self._made_in_turn()
            while made is not None:
                if self._is_open and self._try_take(PIECE_BYTES):
                    ahead = asyncio.create_task(self._made(), name="feed-ahead")
                is_kept = await self._send(made, ahead)
                self._give(leaving)
                leaving = made.cost  # the socket still holds some of it
                made = None
                made, ahead = await (ahead if ahead and is_kept else self._made_in_turn()), None
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait({ahead})
            self._worker.leave(self._batches.close)
            self._give(self._held)

    async def _made_in_turn(self) -> Encoded | None:
        """The next rows, once there is room for them. Who has to wait for it holds nothing meanwhile."""
        if not self._is_open or not self._try_take(PIECE_BYTES):
            await self._rest(self._position)
            await self._open(PIECE_BYTES)
        return await self._made()

    async def _made(self) -> Encoded | None:
        """The next rows; PIECE_BYTES have been taken for them, and as much is held in the end as they cost."""
        taken = PIECE_BYTES
        try:
            made = await self._worker.run(self._batches.next)
            cost = made.cost if made is not None else 0
            if cost > taken and not self._try_take(cost - taken):
                made = None
                await self._rest(self._position)
                self._give(taken)
                taken = 0
                await self._open(cost)
                taken = cost
                made = await self._worker.run(self._batches.next)
            else:
                self._give(max(0, taken - cost))
                taken = cost
        except BaseException:
            self._give(taken)
            raise
        if made is not None:
            self._position = made.position
        return made

    async def _send(self, made: Encoded, ahead: "asyncio.Task[Encoded | None] | None") -> bool:
        """Send rows; whether what was read ahead is good, which had to be dropped otherwise."""
        sending = asyncio.ensure_future(self._call.write(*made.pieces))
        is_kept = True
        try:
            await asyncio.wait({sending}, timeout=RESTING_S)
            if not sending.done():
                is_kept = False
                if ahead is not None:
                    await self._drop(ahead)
                self._position = made.position
                await self._rest(made.position)
                await self._wait_for(sending)
            await sending
        finally:
            if not sending.done():
                sending.cancel()  # so that what is left of it is not sent before the status
                await asyncio.wait({sending})
        return is_kept

    async def _drop(self, ahead: "asyncio.Task[Encoded | None]") -> None:
        """Throw away what was read ahead; whatever went wrong with it will do so again."""
        ahead.cancel()
        await asyncio.wait({ahead})
        if not ahead.cancelled() and ahead.exception() is None and (made := ahead.result()) is not None:
            self._give(made.cost)

    async def _rest(self, position: bytes | None) -> None:
        """Let go of all that was read behind a position."""
        if self._is_open:
            await self._worker.run(lambda: self._batches.rest(position))
            self._is_open = False
            self._give(OPEN_BYTES)

    async def _open(self, size: int) -> None:
        """Take what it costs to go on, and so much for the next rows."""
        await self._memory.take(self._owner, OPEN_BYTES + size)
        self._held += OPEN_BYTES + size
        self._is_open = True

    async def _wait_for(self, sending: "asyncio.Future[None]") -> None:
        """Return when it is done. Raises BrokerError(DRAINING) when that takes too long, or others need the memory."""
        ends = asyncio.get_running_loop().time() + UNREAD_S
        while not sending.done():
            if asyncio.get_running_loop().time() > ends:
                raise BrokerError(Code.DRAINING, f"nothing was read for {UNREAD_S:.0f} s: read on from where you are")
            if self._memory.is_short(OPEN_BYTES + PIECE_BYTES):
                raise BrokerError(
                    Code.DRAINING, "read too slowly while others wait for memory: read on from where you are"
                )
            await asyncio.wait({sending}, timeout=CROWDED_S)

    def _try_take(self, size: int) -> bool:
        if not self._memory.try_take(self._owner, size):
            return False
        self._held += size
        return True

    def _give(self, size: int) -> None:
        self._held -= size
        self._memory.give(self._owner, size)
