"""Publishing an id once: which ids of messages a topic has seen within its window, and what of a record repeats one.

A fold over the log like everything else: an id is remembered with its batch's time, and for the longest window that its
topic has for any door. What is appended but not durable yet is remembered too; should the log refuse it, it is taken
back. What comes in by a door that has no window there is neither remembered nor looked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.settings import BrokerSettings
from headrace.kernels.identities import ENTRY_SIZE, Recent, admit, digest_ids, expire, read, take_back, written
from headrace.model.batch import Batch, Column, Protocol
from headrace.model.events import EventPart
from headrace.model.names import is_own_topic
from headrace.model.parts import RECORD_HEADER_SIZE, iter_parts

SHARE_AT_ONCE = 256
"""A topic that has to forget early forgets one of so many of its ids at once: seldom, and never for long."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What of a record is to be stored: `count` messages of `topics`, in all; `repeated` were left out."""

    record: bytearray
    topics: tuple[str, ...]
    count: int
    repeated: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to append."""
        return len(self.record) <= RECORD_HEADER_SIZE


class Identities:
    """The ids of every topic.

    remembered   how many there are, never more than `dedup_ids_max` once a call is over
    repeated     messages left out because their id was known
    forgotten    ids forgotten within their window, for want of room
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._recent: dict[str, Recent] = {}
        self.remembered = 0
        self.repeated = 0
        self.forgotten = 0

    def window_us(self, topic: str, door: int) -> int:
        """For how long a topic remembers the ids of what comes in by a door; 0: it does not."""
        if is_own_topic(topic):
            return 0
        own, settings = self._settings.topics.get(topic), self._settings
        if own is not None and own.dedup_s is not None:
            return own.dedup_s * 1_000_000
        return max(settings.dedup_s, settings.dedup_door_s.get(Protocol(door), 0)) * 1_000_000

    def admit(self, record: bytearray) -> Admitted:
        """Leave out of a record the messages whose ids are known, and remember the others as of their batch's time.

        The record is the same one where nothing is left out.
        """
        parts = list(iter_parts(record, RECORD_HEADER_SIZE, len(record), 0))
        batches = [part for part in parts if isinstance(part, Batch)]
        known = {batch.start: found for batch in batches if (found := self._admit(batch)) is not None}
        repeated = sum(map(sum, known.values()))
        if repeated:
            self.repeated += repeated
            left = (_without(part, known) for part in parts)
            record = bytearray().join((bytes(RECORD_HEADER_SIZE), *left))
        topics = tuple(dict.fromkeys(batch.topic for batch in batches))
        return Admitted(record, topics, sum(batch.count for batch in batches) - repeated, repeated)

    def note(self, batch: Batch) -> None:
        """Remember the ids of a batch found in the log; those that are known stay as they are."""
        self._admit(batch)

    def take_back(self, record: bytearray) -> None:
        """The log refused what was admitted: it may come again."""
        for part in iter_parts(record, RECORD_HEADER_SIZE, len(record), 0):
            if isinstance(part, Batch) and (words := self._words(part)) is not None:
                recent = self._recent[part.topic]
                held = recent.count
                take_back(recent, words)
                self.remembered -= held - recent.count

    def saved(self) -> list[tuple[str, bytes]]:
        """What every topic remembers, for a snapshot."""
        return [(topic, written(recent)) for topic, recent in self._recent.items() if recent.count]

    def restore(self, saved: list[tuple[str, bytes]], repeated: int, forgotten: int) -> None:
        """Remember what was saved."""
        self.repeated, self.forgotten = repeated, forgotten
        for topic, entries in saved:
            if len(entries) >= ENTRY_SIZE:
                self._recent[topic] = recent = read(entries)
                self.remembered += recent.count
        self._keep_to_the_limit(0)

    def _admit(self, batch: Batch) -> bytearray | None:
        """Remember a batch's ids; which of its messages were known, None when none was."""
        words = self._words(batch)
        if words is None:
            return None
        recent = self._recent.get(batch.topic)
        if recent is None:
            recent = self._recent[batch.topic] = Recent()
        held = recent.count
        expire(recent, batch.timestamp_us - self._longest_us(batch.topic), 0)
        known: bytearray | None = admit(recent, words, batch.timestamp_us)
        self.remembered += recent.count - held
        if self.remembered > self._settings.dedup_ids_max:
            self._keep_to_the_limit(batch.timestamp_us)
        return known

    def _words(self, batch: Batch) -> object | None:
        """The bits of a batch's ids; None where they have no window."""
        if not batch.columns & Column.MESSAGE_ID or not self.window_us(batch.topic, batch.protocol):
            return None
        at = batch.column_start(Column.MESSAGE_ID)
        return None if at is None else digest_ids(batch.buffer, at, batch.count)

    def _longest_us(self, topic: str) -> int:
        return max(self.window_us(topic, door) for door in Protocol)

    def _keep_to_the_limit(self, now: int) -> None:
        """Forget what is past its window; then have those topics that remember most forget their oldest ids."""
        limit = self._settings.dedup_ids_max
        for topic, recent in self._recent.items():
            self.remembered -= expire(recent, now - self._longest_us(topic), 0)
        while self.remembered > limit:
            topic = max(self._recent, key=lambda name: self._recent[name].count)
            recent = self._recent[topic]
            gone = expire(recent, -1, max(self.remembered - limit, recent.count // SHARE_AT_ONCE))
            self.remembered -= gone
            self.forgotten += gone


def _without(part: Batch | tuple[int, EventPart], known: Mapping[int, bytearray]) -> bytes:
    """A part without the messages that are known, nothing of it when all are."""
    if not isinstance(part, Batch):
        return part[1].encode()
    flags = known.get(part.start, bytes(part.count))
    left = [i for i in range(part.count) if not flags[i]]
    if len(left) == part.count:
        return bytes(part.buffer[part.start : part.start + part.size])
    return part.only(left) if left else b""
