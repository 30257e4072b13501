"""Reads the log for people: single messages, and long walks a few milliseconds of the event loop at a time.

The log belongs to the event loop, so a walk does not run in a thread: it stops after each slice, lets everybody else
work, and goes on from the offset it had reached, whatever was rolled or retired meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from time import perf_counter

from headrace.log import Log, Record
from headrace.model.batch import Batch, Message

SLICE_S = 0.002
RECORD_COST = 4096


class Turns:
    """A long piece of work that lets everybody else work after each slice of it."""

    def __init__(self) -> None:
        self._began = perf_counter()

    async def give_way(self) -> None:
        """Pause if the slice is over; to be called often."""
        if perf_counter() - self._began > SLICE_S:
            await asyncio.sleep(0)
            self._began = perf_counter()


class Walk:
    """One walk over the log's records, from `start` on, of bounded cost: bytes, and RECORD_COST for each record.

    `position` is the offset reached; `complete` says whether the end was reached before the budget was spent.
    """

    def __init__(self, log: Log, start: int, *, cost_max: int) -> None:
        self.position = start
        self.complete = False
        self._log = log
        self._left = cost_max

    async def records(self) -> AsyncGenerator[Record, None]:
        """The records; the consumer must not await anything else while it holds one."""
        more = True
        while more:
            more = False
            began = 0.0
            for record in self._log.iter_records(self.position):
                self.position = record.first + record.span
                self._left -= RECORD_COST + record.end - record.start
                yield record
                if self._left <= 0:
                    return
                began = began or perf_counter()
                if perf_counter() - began > SLICE_S:
                    more = True
                    break
            await asyncio.sleep(0)
        self.complete = True


def find_message(log: Log, offset: int) -> Message | None:
    """The message at this offset; None when nothing is stored there, or something that is no message."""
    for record in log.iter_records(offset, offset + 1):
        for part in record.parts():
            if isinstance(part, Batch) and part.base <= offset < part.end:
                return part.message(offset - part.base)
    return None


def messages_from(log: Log, topic: str, start: int) -> Iterator[Message]:
    """The topic's messages from this offset on, one batch in memory at a time."""
    batch = log.batch_at(topic, start)
    while batch is not None:
        for index in range(max(0, start - batch.base), batch.count):
            yield batch.message(index)
        start = batch.end
        batch = log.batch_at(topic, start)
