"""Rows on their way in: messages as they come, checked one by one, staged in threads many at a time.

Between two messages an upload holds no thread, and what it has gathered is counted against its owner's memory.
"""

import asyncio
from collections.abc import Callable

import pyarrow as pa

from headrace.feed.bounds import Memory
from headrace.feed.incoming import SLICE_BYTES
from headrace.feed.ipc import MESSAGE_MAX, IncomingRows
from headrace.feed.messages import Receipt
from headrace.feed.staging import GATHERED_BYTES, GATHERED_ROWS, Upload
from headrace.feed.threads import Worker
from headrace.feed.wire import FlightData
from headrace.http2 import Call
from headrace.model.errors import BrokerError, Code

IDLE_S = 60.0
COPIES = 3
"""Rows are there as they came, put in order by topic, and as parts of the log."""


async def next_message(call: Call) -> FlightData | None:
    """The next message; None at the end. Raises BrokerError for one that does not come, or is too long; BadMessage."""
    try:
        async with asyncio.timeout(IDLE_S):
            data = await call.read()
    except TimeoutError:
        raise BrokerError(Code.LIMIT, f"nothing came for {IDLE_S:.0f} s: the upload is given up") from None
    if data is None:
        return None
    if len(data) > MESSAGE_MAX:
        raise BrokerError(
            Code.LIMIT, f"a message of {len(data)} bytes; at most {MESSAGE_MAX} are taken: send less at once"
        )
    return FlightData.decode(data)


class Receiving:
    """One upload. `run` it for its receipt; nothing is left of it otherwise."""

    def __init__(self, call: Call, worker: Worker, memory: Memory, owner: str) -> None:
        self._call = call
        self._worker = worker
        self._memory = memory
        self._owner = owner
        self._held = 0
        self._storing: asyncio.Task[None] | None = None

    async def run(self, first: FlightData, begin: Callable[[IncomingRows], Upload]) -> Receipt:
        """Stage the rows that follow the first message, which is their schema.

        Raises BrokerError and BadMessage.
        """
        begun: list[Upload] = []
        try:
            rows = await self._worker.run(lambda: IncomingRows(first))
            await self._worker.run(lambda: begun.append(begin(rows)))
            (upload,) = begun
            while (message := await next_message(self._call)) is not None:
                await self._accept(rows, upload, message)
            await self._store(rows, upload)
            await self._stored()
            return await self._worker.run(upload.finish)
        finally:
            if self._storing is not None:
                self._storing.cancel()
                await asyncio.wait({self._storing})
            self._memory.give(self._owner, self._held)
            self._worker.leave(lambda: _abandon(begun))

    async def _accept(self, rows: IncomingRows, upload: Upload, message: FlightData) -> None:
        checked = rows.check(message)
        if checked is None:
            return
        size = COPIES * max(checked.unpacked, checked.body, SLICE_BYTES if rows.may_swell else 0)
        if not self._memory.try_take(self._owner, size):
            await self._store(rows, upload)
            await self._stored()
            await self._memory.take(self._owner, size)
        self._held += size
        rows.keep(message, checked)
        if rows.waiting_bytes >= GATHERED_BYTES or rows.waiting_rows >= GATHERED_ROWS:
            await self._store(rows, upload)

    async def _store(self, rows: IncomingRows, upload: Upload) -> None:
        """Begin to store what was gathered, once what was gathered before is stored."""
        await self._stored()
        self._storing = asyncio.create_task(self._write(upload, rows.cut(), self._held), name="feed-store")
        self._held = 0

    async def _stored(self) -> None:
        """Return when nothing is being stored. Raises what that raised."""
        storing, self._storing = self._storing, None
        if storing is not None:
            await storing

    async def _write(self, upload: Upload, decode: Callable[[], list[pa.RecordBatch]], held: int) -> None:
        try:
            await self._worker.run(lambda: upload.write(decode()))
        finally:
            self._memory.give(self._owner, held)


def _abandon(uploads: list[Upload]) -> None:
    for upload in uploads:
        upload.abandon()
