"""Dead letters: listing them, and sending copies back where they came from, each at most once.

A redrive is one record of the log: the copies, and a mark in the topic `$redriven` that holds the offsets of the dead
letters they were made from. Both become true together or not at all, so no letter is marked without its copy or copied
without its mark. A mark always lies behind its dead letters, and retention deletes from the front, so whether a letter
was redriven is known as long as the letter itself is kept. Transactions carry marks as well; `Marks` makes everybody
who redrives wait for each other.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from headrace.auth import Identity
from headrace.broker.deadletters import ATTEMPTS, ORIGIN_OFFSET, ORIGIN_SUBSCRIPTION, ORIGIN_TOPIC, REASON
from headrace.log import Log
from headrace.model.batch import Message, Protocol, build_batch
from headrace.model.errors import BrokerError, Code
from headrace.model.marks import mark_part, marked_offsets, packed_offsets
from headrace.model.names import REDRIVEN_TOPIC, check_topic, dead_topic, is_dead_topic
from headrace.server.engine import Engine
from headrace.server.marks import Marks
from headrace.server.shapes import DeadLetter, dead_letter, origin_topic
from headrace.server.walk import find_message, messages_from

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

    def letters(
        self, identity: Identity, topic: str | None, start: int, limit: int, value_max: int
    ) -> list[DeadLetter]:
        """The oldest dead letters from an offset on that this identity may read, of one topic or of all."""
        log = self._engine.log
        if topic is not None:
            names = [dead_topic(topic)]
        else:
            names = [info.name for info in self._engine.broker.topics() if is_dead_topic(info.name)]
        streams = [messages_from(log, name, start) for name in names if identity.may_subscribe(name)]
        found = list(islice(heapq.merge(*streams, key=lambda message: message.offset), limit))
        marked = redriven_offsets(log, start)
        return [dead_letter(message, value_max=value_max, redriven=message.offset in marked) for message in found]

    async def run(self, identity: Identity, offsets: Sequence[int], to: str | None) -> Redriven:
        """Publish copies of these dead letters to `to`, or to the topics they came from.

        Returns once they are durable. Letters that are unknown, already redriven or out of the identity's reach are
        skipped and named. Raises BrokerError for an impossible target or a log that cannot be written.
        """
        if to is not None:
            check_topic(to)
        if len(offsets) > OFFSETS_MAX:
            raise BrokerError(Code.LIMIT, f"{len(offsets)} offsets in one request; at most {OFFSETS_MAX}")
        wanted = sorted(set(offsets))
        async with self._marks.turn:
            marked = redriven_offsets(self._engine.log, min(wanted, default=0))
            skipped: list[Skipped] = []
            chosen: list[tuple[Message, str]] = []
            for offset in wanted:
                found = self._choose(identity, offset, to, marked)
                if isinstance(found, Skipped):
                    skipped.append(found)
                else:
                    chosen.append(found)
            for chunk in _chunks(chosen):
                await self._publish(chunk)
        return Redriven(len(chosen), skipped)

    def _choose(
        self, identity: Identity, offset: int, to: str | None, marked: set[int]
    ) -> tuple[Message, str] | Skipped:
        """The dead letter at this offset with the topic it goes to, or why it goes nowhere."""
        message = find_message(self._engine.log, offset)
        if message is None or not is_dead_topic(message.topic) or not identity.may_subscribe(message.topic):
            return Skipped(offset, "no dead letter")
        if offset in marked:
            return Skipped(offset, "already redriven")
        target = to or origin_topic(message)
        if not target:
            return Skipped(offset, "it does not say where it came from; name a topic")
        if not identity.may_publish(target):
            return Skipped(offset, f"not allowed to publish to {target}")
        return message, target

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


def redriven_offsets(log: Log, start: int) -> set[int]:
    """The dead letters from offset `start` on that have been redriven."""
    found: set[int] = set()
    for mark in messages_from(log, REDRIVEN_TOPIC, start):
        found.update(offset for offset in marked_offsets(mark.value) if offset >= start)
    return found


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


def _chunks(chosen: Iterable[tuple[Message, str]]) -> Iterator[list[tuple[Message, str]]]:
    """Portions whose values fit into one record of a sensible size."""
    chunk: list[tuple[Message, str]] = []
    size = 0
    for message, target in chosen:
        if chunk and size + len(message.value) > RECORD_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
        chunk.append((message, target))
        size += len(message.value)
    if chunk:
        yield chunk
