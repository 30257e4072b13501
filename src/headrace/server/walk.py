"""Reads the log for people: single messages, and long walks a little of the event loop at a time.

The log belongs to the event loop, so a walk does not run in a thread: it stops after each slice, lets everybody else
work, and goes on from the offset it had reached, whatever was rolled or retired meanwhile. A slice is bounded by time
and, so that it can be proved, by steps.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Iterator
from time import perf_counter

from headrace.log import Log, Record
from headrace.model.batch import Batch, Message, Protocol

SLICE_S = 0.002
SLICE_STEPS = 256
STEP_BYTES = 4096
RECORD_COST = 4096


class Turns:
    """A long piece of work that lets everybody else work after each slice of it. `total` counts its steps."""

    def __init__(self) -> None:
        self.total = 0
        self._began = perf_counter()
        self._steps = 0

    async def step(self, size: int = 0, things: int = 1) -> None:
        """So many things and bytes have been looked at: pause if the slice is over. To be called after each few."""
        steps = things + size // STEP_BYTES
        self.total += steps
        self._steps += steps
        if self._steps >= SLICE_STEPS or perf_counter() - self._began > SLICE_S:
            await asyncio.sleep(0)
            self._began = perf_counter()
            self._steps = 0


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
        """The records. Who holds one may wait: the file it came from stays open, and its bytes are its own."""
        more = True
        while more:
            more = False
            began = 0.0
            steps = 0
            for record in self._log.iter_records(self.position):
                size = record.end - record.start
                self.position = record.first + record.span
                self._left -= RECORD_COST + size
                yield record
                if self._left <= 0:
                    return
                began = began or perf_counter()
                steps += 1 + size // STEP_BYTES
                if steps >= SLICE_STEPS or perf_counter() - began > SLICE_S:
                    more = True
                    break
            await asyncio.sleep(0)
        self.complete = True


class Finder:
    """Finds stored batches by the offset of a message; cheap for one that is near the last."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._last: Batch | None = None

    def batch(self, offset: int) -> Batch | None:
        """The batch that holds the message; None when nothing is stored there, or something that is no message."""
        last = self._last
        if last is not None and not last.base <= offset < last.end:
            last = self._log.batch_at(last.topic, offset)
        if last is None or not last.base <= offset < last.end:
            last = self._among_records(offset)
        if last is not None:
            self._last = last
        return last

    def _among_records(self, offset: int) -> Batch | None:
        for record in self._log.iter_records(offset, offset + 1):
            for part in record.parts():
                if isinstance(part, Batch) and part.base <= offset < part.end:
                    return part
        return None


def read_message(batch: Batch, index: int, value_max: int | None = None) -> Message | None:
    """The message with at most so many bytes of its value; None when its bytes do not make sense."""
    try:
        return batch.message(index, value_max)
    except (ValueError, struct.error):
        return None


def unreadable(batch: Batch, index: int) -> Message:
    """What can be told of a message whose bytes do not make sense: its place."""
    return Message(
        offset=batch.base + index,
        topic=batch.topic,
        value=b"",
        timestamp_us=batch.timestamp_us,
        qos=batch.qos,
        protocol=Protocol.INTERNAL,
    )


def batches_from(log: Log, topic: str, start: int) -> Iterator[Batch]:
    """The topic's batches from the one that holds this offset on, one in memory at a time."""
    batch = log.batch_at(topic, start)
    while batch is not None:
        yield batch
        batch = log.batch_at(topic, batch.end)
