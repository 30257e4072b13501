"""Marks in the log: which dead letters were redriven, and whose turn it is to redrive more.

Reads the topic `$redriven`; what a mark looks like is told by `model.marks`.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable

from headrace.auth import Identity
from headrace.log import Log
from headrace.model.batch import Batch, Column, Protocol, build_batch
from headrace.model.marks import mark_part, marked_offsets, packed_offsets
from headrace.model.names import REDRIVEN_TOPIC, is_dead_topic
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.server.staging import StagedChunk
from headrace.server.walk import Turns, messages_from


class Marks:
    """Who may mark dead letters: whoever has the `turn`, so that two cannot send the same letter."""

    def __init__(self, log: Log) -> None:
        self.turn = asyncio.Lock()
        self._log = log

    async def among(self, wanted: set[int]) -> set[int]:
        """Those of these dead letters that have been redriven; other work goes on meanwhile."""
        found: set[int] = set()
        turns = Turns()
        for mark in messages_from(self._log, REDRIVEN_TOPIC, min(wanted, default=0)):
            found |= wanted.intersection(marked_offsets(mark.value))
            await turns.give_way()
        return found

    async def not_letters(self, offsets: Iterable[int], identity: Identity) -> list[int]:
        """Those of these offsets that are no dead letters this identity may read; other work goes on meanwhile."""
        left = sorted(set(offsets))
        for topic in self._log.topics():
            if is_dead_topic(topic) and identity.may_subscribe(topic):
                left = await self._outside(topic, left)
        return left

    async def _outside(self, topic: str, offsets: list[int]) -> list[int]:
        outside: list[int] = []
        turns = Turns()
        at = 0
        while at < len(offsets):
            batch = self._log.batch_at(topic, offsets[at])
            if batch is None:
                return outside + offsets[at:]
            begins, ends = (bisect_left(offsets, edge, at) for edge in (batch.base, batch.end))
            outside += offsets[at:begins]
            at = ends
            await turns.give_way()
        return outside


async def without_marked(chunk: StagedChunk, marks: Marks) -> tuple[StagedChunk, int]:
    """The chunk without copies of dead letters that were redriven before, and how many those were.

    A batch of copies is followed by the mark that names their letters, in the same order.
    """
    batches = list(chunk.batches())
    letters = {at: _letters(batch) for at, batch in enumerate(batches) if batch.topic == REDRIVEN_TOPIC}
    wanted = set().union(*letters.values())
    seen = await marks.among(wanted)
    if not seen and len(wanted) == sum(map(len, letters.values())):
        return chunk, 0
    parts: list[bytes] = []
    skipped = 0
    for at, batch in enumerate(batches):
        if at in letters:
            kept = _first_ones(letters[at], seen)
            skipped += len(letters[at]) - len(kept)
            parts.pop()
            if kept:
                parts += [_some(batches[at - 1], kept), _mark([letters[at][i] for i in kept])]
        else:
            parts.append(bytes(batch.buffer[batch.start : batch.start + batch.size]))
    return _chunk(parts, chunk.rows - skipped), skipped


def _first_ones(letters: list[int], seen: set[int]) -> list[int]:
    """Where letters are that were not seen before; they are now."""
    places = []
    for place, letter in enumerate(letters):
        if letter not in seen:
            seen.add(letter)
            places.append(place)
    return places


def _letters(mark: Batch) -> list[int]:
    return [letter for index in range(mark.count) for letter in marked_offsets(mark.value(index))]


def _mark(letters: list[int]) -> bytes:
    return mark_part(packed_offsets(letters), 0, Protocol.SPARK)


def _some(batch: Batch, chosen: list[int]) -> bytes:
    """A batch of these messages of another one."""
    messages = [batch.message(index) for index in chosen]
    return build_batch(
        batch.topic,
        [message.value for message in messages],
        timestamp_us=0,
        protocol=Protocol(batch.protocol),
        keys=[message.key or b"" for message in messages] if batch.columns & Column.KEY else None,
        headers=[message.headers for message in messages] if batch.columns & Column.HEADERS else None,
        message_ids=[m.message_id or "" for m in messages] if batch.columns & Column.MESSAGE_ID else None,
    )


def _chunk(parts: list[bytes], rows: int) -> StagedChunk:
    starts = []
    at = RECORD_HEADER_SIZE
    for part in parts:
        starts.append(at)
        at += len(part)
    return StagedChunk(bytearray(RECORD_HEADER_SIZE) + b"".join(parts), starts, rows)
