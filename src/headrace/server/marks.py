"""Marks in the log: which dead letters were redriven, and whose turn it is to redrive more.

Reads the topic `$redriven`; what a mark looks like is told by `model.marks`.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Iterable

from headrace.auth import Identity
from headrace.log import Log
from headrace.model.batch import Batch, Column, Protocol, build_batch
from headrace.model.marks import mark_part, marked_in, marked_offsets, packed_offsets
from headrace.model.names import REDRIVEN_TOPIC, is_dead_topic
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.server.staging import StagedChunk
from headrace.server.walk import Finder, Turns, batches_from


class Marks:
    """Who may mark dead letters: whoever has the `turn`, so that two cannot send the same letter.

    What is marked is read once and kept, 16 bytes for each letter, for as long as the log may hold the letter.
    """

    def __init__(self, log: Log) -> None:
        self.turn = asyncio.Lock()
        self._log = log
        self._reading = asyncio.Lock()
        self._read_to = 0
        self._letters = array("Q")
        self._marks = array("Q")

    async def refresh(self) -> None:
        """Take in what was marked since the last time; other work goes on meanwhile."""
        async with self._reading:
            turns = Turns()
            for batch in batches_from(self._log, REDRIVEN_TOPIC, max(self._read_to, self._log.first_offset)):
                for index in range(max(0, self._read_to - batch.base), batch.count):
                    for letter in marked_in(batch, index):
                        self._note(letter, batch.base + index)
                        await turns.step()
                    self._read_to = batch.base + index + 1
                    await turns.step(batch.size // batch.count)
            gone = bisect_left(self._letters, self._log.first_offset)
            del self._letters[:gone], self._marks[:gone]

    def mark_of(self, letter: int) -> int | None:
        """The offset of the mark that says a dead letter was redriven, None when none does. After a `refresh`."""
        place = bisect_left(self._letters, letter)
        if place < len(self._letters) and self._letters[place] == letter:
            return self._marks[place]
        return None

    async def among(self, wanted: set[int]) -> set[int]:
        """Those of these dead letters that have been redriven; other work goes on meanwhile."""
        await self.refresh()
        found: set[int] = set()
        turns = Turns()
        for letter in wanted:
            if self.mark_of(letter) is not None:
                found.add(letter)
            await turns.step()
        return found

    async def not_letters(self, offsets: Iterable[int], identity: Identity) -> list[int]:
        """Those of these offsets that are no dead letters this identity may read; other work goes on meanwhile."""
        finder, turns = Finder(self._log), Turns()
        outside = []
        for offset in sorted(set(offsets)):
            batch = finder.batch(offset)
            if batch is None or not is_dead_topic(batch.topic) or not identity.may_subscribe(batch.topic):
                outside.append(offset)
            await turns.step()
        return outside

    def _note(self, letter: int, mark: int) -> None:
        """Keep the first mark of a letter; most come in order."""
        place = len(self._letters)
        if place and self._letters[-1] >= letter:
            place = bisect_left(self._letters, letter)
            if self._letters[place] == letter:
                return
        self._letters.insert(place, letter)
        self._marks.insert(place, mark)


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
