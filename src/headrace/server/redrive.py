"""Dead letters: listing them, and sending copies back where they came from, each at most once.

A redrive is one record of the log: the copies, and a mark in the topic `$redriven` that holds the offsets of the dead
letters they were made from. Both become true together or not at all, so no letter is marked without its copy or copied
without its mark. A mark always lies behind its dead letters, and retention deletes from the front, so whether a letter
was redriven is known as long as the letter itself is kept. Transactions carry marks as well; `Marks` makes everybody
who redrives wait for each other.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from headrace.auth import Identity
from headrace.broker.deadletters import ATTEMPTS, ORIGIN_OFFSET, ORIGIN_SUBSCRIPTION, ORIGIN_TOPIC, REASON
from headrace.model.batch import Batch, Message, Protocol, build_batch
from headrace.model.errors import BrokerError, Code
from headrace.model.marks import mark_part, packed_offsets
from headrace.model.names import (
    DEAD_PREFIX,
    REDRIVEN_TOPIC,
    check_topic,
    dead_topic,
    is_dead_topic,
    is_own_topic,
)
from headrace.server.engine import Engine
from headrace.server.marks import Marks
from headrace.server.pages import OFFSET_MAX, Page, visible_topics
from headrace.server.shapes import DeadLetter, dead_letter, origin_topic
from headrace.server.walk import Finder, Turns, read_message

REDRIVEN_FROM = "headrace-redriven-from"
OFFSETS_MAX = 1000
RECORD_BYTES_MAX = 8 << 20

_ORIGIN_HEADERS = frozenset({ORIGIN_TOPIC, ORIGIN_OFFSET, ORIGIN_SUBSCRIPTION, REASON, ATTEMPTS, REDRIVEN_FROM})


class Skipped(msgspec.Struct, frozen=True):
    """A dead letter that was not redriven, and why."""

    offset: int
    cause: str


class Redriven(msgspec.Struct, frozen=True):
    """What a redrive did."""

    redriven: int
    skipped: list[Skipped]


class Redrive:
    """Dead letters of one broker."""

    def __init__(self, engine: Engine, marks: Marks) -> None:
        self._engine = engine
        self._marks = marks

    async def letters(self, identity: Identity, topic: str | None, start: int, page: Page, value_max: int) -> int:
        """Fill a page with the oldest dead letters from an offset on that this identity may read, of one topic or all.

        Returns the offset from which the next page goes on. Topics are opened only when it is their turn.
        """
        await self._marks.refresh()
        log, turns = self._engine.log, Turns()
        waiting: list[tuple[int, str]] = []
        async for name in self._dead_topics(identity, topic, turns):
            if (first := log.next_in(name, start)) is not None:
                waiting.append((first, name))
        heapify(waiting)
        reached = start
        while waiting and not page.full:
            at, name = heappop(waiting)
            batch = log.batch_at(name, at)
            if batch is None:
                continue
            await turns.step(batch.size)
            at = max(at, batch.base)
            until = waiting[0][0] if waiting else OFFSET_MAX
            if at <= until:
                page.scanned(batch.size)
            while at <= until and at < batch.end and page.add(self._shown(batch, at - batch.base, value_max)):
                at += 1
                reached = at
                await turns.step(value_max)
            if (following := log.next_in(name, at)) is not None:
                heappush(waiting, (following, name))
        return reached

    async def _dead_topics(self, identity: Identity, topic: str | None, turns: Turns) -> AsyncGenerator[str, None]:
        if topic is not None:
            yield dead_topic(topic)
            return
        async for name in visible_topics(identity, self._engine.broker, turns, prefix=DEAD_PREFIX):
            yield name

    def _shown(self, batch: Batch, index: int, value_max: int) -> DeadLetter:
        redriven = self._marks.mark_of(batch.base + index) is not None
        return dead_letter(batch, index, value_max=value_max, redriven=redriven)

    async def run(self, identity: Identity, offsets: Sequence[int], to: str | None) -> Redriven:
        """Publish copies of these dead letters to `to`, or to the topics they came from.

        Returns once they are durable. Letters that are unknown, already redriven or out of the identity's reach are
        skipped and named. Raises BrokerError for an impossible target or a log that cannot be written.
        """
        if to is not None:
            check_target(to)
            if identity.may_publish(to):
                self._engine.broker.claim((to,), identity.owner)
        if len(offsets) > OFFSETS_MAX:
            raise BrokerError(Code.LIMIT, f"{len(offsets)} offsets in one request; at most {OFFSETS_MAX}")
        async with self._marks.turn:
            await self._marks.refresh()
            return await self._send(identity, sorted(set(offsets)), to)

    async def _send(self, identity: Identity, wanted: Sequence[int], to: str | None) -> Redriven:
        """Send the letters in portions that fit into one record of a sensible size each."""
        finder, turns = Finder(self._engine.log), Turns()
        skipped: list[Skipped] = []
        chunk: list[tuple[Message, str]] = []
        sent = size = 0
        for offset in wanted:
            found = self._choose(identity, finder, offset, to)
            await turns.step()
            if isinstance(found, Skipped):
                skipped.append(found)
                continue
            batch, index, target = found
            message = read_message(batch, index)
            if message is None:
                skipped.append(Skipped(offset, "its bytes do not make sense"))
                continue
            if chunk and size + len(message.value) > RECORD_BYTES_MAX:
                await self._publish(chunk)
                chunk, size = [], 0
            chunk.append((message, target))
            sent += 1
            size += len(message.value)
            await turns.step(len(message.value))
        if chunk:
            await self._publish(chunk)
        return Redriven(sent, skipped)

    def _choose(
        self, identity: Identity, finder: Finder, offset: int, to: str | None
    ) -> tuple[Batch, int, str] | Skipped:
        """Where the dead letter at this offset is, and the topic it goes to; or why it goes nowhere."""
        batch = finder.batch(offset)
        if batch is None or not is_dead_topic(batch.topic) or not identity.may_subscribe(batch.topic):
            return Skipped(offset, "no dead letter")
        if self._marks.mark_of(offset) is not None:
            return Skipped(offset, "already redriven")
        letter = read_message(batch, offset - batch.base, 0)
        target = to or (origin_topic(letter) if letter is not None else "")
        if not target:
            return Skipped(offset, "it does not say where it came from; name a topic")
        try:
            check_target(target)
        except BrokerError as error:
            return Skipped(offset, error.detail)
        if not identity.may_publish(target):
            return Skipped(offset, f"not allowed to publish to {target}")
        return batch, offset - batch.base, target

    async def _publish(self, chunk: Sequence[tuple[Message, str]]) -> None:
        payload = redrive_parts(chunk, self._engine.clock.now())
        await self._engine.publish_durably(REDRIVEN_TOPIC, payload, len(chunk))


def redrive_parts(chunk: Iterable[tuple[Message, str]], now: int) -> bytes:
    """The payload of one redrive: a batch of copies for each topic and door they came in by, then the mark."""
    copies: dict[tuple[str, Protocol], list[Message]] = defaultdict(list)
    offsets = []
    for message, target in chunk:
        copies[target, message.protocol].append(message)
        offsets.append(message.offset)
    parts = [_copies(target, door, messages, now) for (target, door), messages in copies.items()]
    return b"".join([*parts, mark_part(packed_offsets(offsets), now)])


def check_target(topic: str) -> None:
    """Raises BrokerError(INVALID) for a topic that nobody may publish to, those of the broker's own included."""
    check_topic(topic)
    if is_own_topic(topic):
        raise BrokerError(Code.INVALID, f"only the broker writes to {topic}; name another topic")


def _copies(target: str, door: Protocol, messages: Sequence[Message], now: int) -> bytes:
    headers = [
        [*((n, v) for n, v in m.headers if n not in _ORIGIN_HEADERS), (REDRIVEN_FROM, b"%d" % m.offset)]
        for m in messages
    ]
    keyed = any(message.key for message in messages)
    named = any(message.message_id for message in messages)
    return build_batch(
        target,
        [message.value for message in messages],
        timestamp_us=now,
        protocol=door,
        headers=headers,
        keys=[message.key or b"" for message in messages] if keyed else None,
        message_ids=[message.message_id or "" for message in messages] if named else None,
    )
