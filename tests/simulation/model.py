"""The broker as anybody would first write it: one dictionary entry for each message of each subscription.

It learns from the log alone, record by record, and asserts that each record was lawful when it was written.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headrace.broker import BrokerSettings, TopicSettings
from headrace.broker.views import Status
from headrace.model.batch import ATTEMPTS_UNLIMITED, Batch
from headrace.model.events import Event, EventPart, Range
from headrace.model.names import dead_topic, is_dead_topic
from tests.simulation.memory_log import Record

FOREVER = 1 << 63


class State(Enum):
    PENDING = "pending"
    DEFERRED = "deferred"
    HELD = "held"
    NACKED = "nacked"
    ACKED = "acked"
    HANDED_OVER = "delivered at most once"
    EXPIRED = "expired"
    DEAD = "dead"
    DROPPED = "dropped"


LIVE = {State.PENDING, State.DEFERRED, State.HELD, State.NACKED}
STATUS = {State.PENDING: Status.PENDING, State.DEFERRED: Status.DEFERRED, State.NACKED: Status.WAITING}


@dataclass
class ModelMessage:
    """What was published."""

    offset: int
    batch: int
    value: bytes
    qos: int
    max_attempts: int
    due: int
    expires: int


@dataclass
class Entry:
    """One message in one subscription."""

    message: ModelMessage
    delivery: int
    state: State = State.PENDING
    attempt: int = 0
    due: int = 0


@dataclass
class ModelSubscription:
    """Every message from its start on, by offset and in order: delivery ids count them, whatever became of them."""

    id: int
    topic: str
    qos: int
    owner: str
    name: str
    start: int
    tail: bool = False
    entries: dict[int, Entry] = field(default_factory=dict)
    order: list[Entry] = field(default_factory=list)
    deliveries: int = 0
    nacks: int = 0
    cursor: int = 0

    def enter(self, message: ModelMessage) -> None:
        entry = Entry(message, len(self.order) + 1)
        self.entries[message.offset] = entry
        self.order.append(entry)

    def by_delivery(self, delivery: int) -> Entry | None:
        return self.order[delivery - 1] if 0 < delivery <= len(self.order) else None

    def states(self) -> Counter[State]:
        return Counter([entry.state for entry in self.order])


class Model:
    """A fold over the log."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.topics: dict[str, list[ModelMessage]] = {}
        self.subscriptions: dict[int, ModelSubscription] = {}
        self.last_id = 0
        self.removed: list[EventPart] = []
        self.readers: dict[str, int] = {}
        self.writers: dict[str, tuple[int | None, int | None, int]] = {}

    def topic_settings(self, topic: str) -> TopicSettings:
        return self.settings.topics.get(topic, TopicSettings())

    def backoff_us(self, topic: str, attempt: int) -> int:
        own = self.topic_settings(topic).backoff_ms
        backoff_ms: int = self.settings.retry.backoff_ms if own is None else own
        return 1000 * backoff_ms << (attempt - 1)

    def deadline(self, topic: str, attempt: int, now: int) -> int:
        return now + 1000 * self.settings.retry.ack_wait_ms + self.backoff_us(topic, attempt)

    def attempts_left(self, topic: str, entry: Entry) -> bool:
        own = self.topic_settings(topic).max_attempts or self.settings.retry.max_attempts
        limit = entry.message.max_attempts or own
        return limit == ATTEMPTS_UNLIMITED or entry.attempt < limit

    def apply(self, record: Record) -> None:
        """Learn from one record."""
        copies: Batch | None = None
        for part in record.parts():
            if isinstance(part, Batch):
                self._published(part)
                copies = part
            else:
                self._happened(part[0], part[1], copies)

    def retire(self, offset: int) -> None:
        """Nothing before the offset is stored any more; subscriptions made later never see it."""
        for name, messages in self.topics.items():
            self.topics[name] = [message for message in messages if message.offset >= offset]

    def expected_take(self, sub: ModelSubscription, limit: int, now: int, visible: int) -> int | None:
        """How many messages a take delivers, None where the limits make it hard to say."""
        ready = [e for e in sub.order if self._is_ready(sub, e, now)]
        pending = [e for e in sub.order if e.state is State.PENDING and e.message.offset < visible]
        if sub.tail and ready and pending:
            return None
        if len(ready) >= limit:
            return limit
        if not sub.qos:
            pending = pending[-self.settings.qos0_pending_max :]
        fresh = [e for e in pending if e.message.due <= now < e.message.expires]
        states = sub.states()
        if states[State.HELD] + states[State.NACKED] + states[State.DEFERRED] + limit >= self.settings.inflight_max:
            return None
        return min(limit, len(ready) + len(fresh))

    def _is_ready(self, sub: ModelSubscription, entry: Entry, now: int) -> bool:
        if entry.state is State.HELD and not self.attempts_left(sub.topic, entry):
            return False
        passed = entry.state in (State.HELD, State.NACKED, State.DEFERRED)
        return passed and entry.due <= now < entry.message.expires

    def _published(self, batch: Batch) -> None:
        own = self.topic_settings(batch.topic)
        due = batch.due_us or (batch.timestamp_us + 1000 * own.delay_ms if own.delay_ms else 0)
        ttl_end = batch.timestamp_us + 1_000_000 * own.ttl_s if own.ttl_s else FOREVER
        for index in range(batch.count):
            message = ModelMessage(
                offset=batch.base + index,
                batch=batch.base,
                value=batch.value(index),
                qos=batch.qos,
                max_attempts=batch.max_attempts,
                due=due,
                expires=batch.expires_us or ttl_end,
            )
            self.topics.setdefault(batch.topic, []).append(message)
            for sub in self.subscriptions.values():
                if sub.topic == batch.topic and message.offset >= sub.start:
                    sub.enter(message)

    def _happened(self, offset: int, event: EventPart, copies: Batch | None) -> None:
        if event.event == Event.SUBSCRIBED:
            self._subscribed(offset, event)
            return
        if event.event in (Event.COMMITTED, Event.REPORTED):
            self._told(json.loads(event.detail))
            return
        sub = self.subscriptions[event.subscription]
        if event.event == Event.UNSUBSCRIBED:
            del self.subscriptions[sub.id]
            self.removed.append(event)
            return
        for item in event.ranges:
            entries = self._entries(sub, event, item)
            for entry in entries:
                self._check_and_change(sub, event, entry, item)
            if event.event == Event.DEAD and not is_dead_topic(sub.topic):
                assert copies is not None
                self._check_copies(sub, event, entries, copies)

    def _told(self, said: dict[str, Any]) -> None:
        """A reader reported or was removed, or a writer's chunk is in the log: (last batch, open batch, chunks)."""
        if "writer" not in said:
            self.readers[said["reader"]] = said["offset"]
            if said["offset"] is None:
                del self.readers[said["reader"]]
            return
        last, open_batch, done = self.writers.get(said["writer"], (None, None, 0))
        assert last is None or said["batch"] > last, "a batch is committed once"
        assert said["chunk"] == (done if open_batch == said["batch"] else 0), "chunks come in order"
        if said["chunk"] + 1 == said["chunks"]:
            self.writers[said["writer"]] = (said["batch"], None, 0)
        else:
            self.writers[said["writer"]] = (last, said["batch"], said["chunk"] + 1)

    def _subscribed(self, offset: int, event: EventPart) -> None:
        assert event.subscription > self.last_id, "ids are never used again"
        self.last_id = event.subscription
        said = json.loads(event.detail)
        start = min(said["cursor"], offset)
        sub = ModelSubscription(
            event.subscription, said["topic"], said["qos"], said["owner"], said["name"], start, said["tail"]
        )
        sub.cursor = sub.start
        self.subscriptions[sub.id] = sub
        for message in self.topics.get(sub.topic, []):
            if message.offset >= sub.start:
                sub.enter(message)

    def _entries(self, sub: ModelSubscription, event: EventPart, item: Range) -> list[Entry]:
        """The messages of a range; what retention drops at the cursor is named by count, not by place."""
        if event.event == Event.DROPPED and event.reason == "retention" and item.first >= sub.cursor:
            entries = [e for e in sub.order if e.message.offset >= sub.cursor][: item.count]
            sub.cursor = max(item.first, entries[-1].message.offset + 1 if entries else 0)
            return entries
        entries = [sub.entries[item.first + index] for index in range(item.count)]
        assert len({entry.message.batch for entry in entries}) == 1, "a range is of one batch"
        if item.first >= sub.cursor:
            sub.cursor = item.first + item.count
        return entries

    def _check_and_change(self, sub: ModelSubscription, event: EventPart, entry: Entry, item: Range) -> None:
        kind, now = event.event, event.timestamp_us
        assert entry.state in LIVE, f"{kind.name} of a message already {entry.state.value}"
        if entry.state is State.PENDING:
            self._check_order(sub, entry)
        if kind == Event.DELIVERED:
            self._delivered(sub, event, entry, item)
        elif kind == Event.ACKED:
            assert entry.state is State.HELD
            assert item.attempt == entry.attempt
            entry.state = State.ACKED
        elif kind == Event.NACKED:
            assert entry.state is State.HELD
            assert self.attempts_left(sub.topic, entry)
            entry.state = State.NACKED
            entry.due = now if sub.tail else now + self.backoff_us(sub.topic, entry.attempt)
            sub.nacks += 1
        elif kind == Event.DEAD:
            assert entry.state is State.HELD
            assert item.attempt == entry.attempt
            assert not self.attempts_left(sub.topic, entry)
            assert event.reason != "not acknowledged" or entry.due <= now
            entry.state = State.DEAD
        elif kind == Event.EXPIRED:
            assert entry.message.expires <= now
            assert entry.state is not State.HELD or entry.due <= now
            entry.state = State.EXPIRED
        elif kind == Event.DEFERRED:
            assert entry.state is State.PENDING
            assert entry.message.due > now
            entry.state, entry.due = State.DEFERRED, entry.message.due
        else:
            assert kind == Event.DROPPED
            assert event.reason == "retention" or (event.reason == "overflow" and sub.qos == 0)
            entry.state = State.DROPPED

    def _delivered(self, sub: ModelSubscription, event: EventPart, entry: Entry, item: Range) -> None:
        now = event.timestamp_us
        assert entry.attempt or entry.message.due <= now
        assert entry.message.expires > now
        assert entry.state is State.PENDING or entry.due <= now, "somebody else holds it"
        assert item.attempt == entry.attempt + 1
        assert not entry.attempt or self.attempts_left(sub.topic, entry)
        at_most_once = not (sub.qos and entry.message.qos)
        assert (event.reason == "at most once") == at_most_once
        entry.attempt = item.attempt
        held = event.reason == "held by its reader"
        entry.due = FOREVER if held else self.deadline(sub.topic, item.attempt, now)
        entry.state = State.HANDED_OVER if at_most_once else State.HELD
        sub.deliveries += 1

    def _check_order(self, sub: ModelSubscription, entry: Entry) -> None:
        """A message is passed for the first time only after all earlier ones were."""
        before = sub.by_delivery(entry.delivery - 1)
        assert before is None or before.state is not State.PENDING, "out of order"

    def _check_copies(self, sub: ModelSubscription, event: EventPart, entries: list[Entry], copies: Batch) -> None:
        assert copies.topic == dead_topic(sub.topic)
        assert copies.count == len(entries)
        for index, entry in enumerate(entries):
            copy = copies.message(index)
            headers = dict(copy.headers)
            assert copy.value == entry.message.value
            assert headers["headrace-origin-topic"] == sub.topic.encode()
            assert int(headers["headrace-origin-offset"]) == entry.message.offset
            assert int(headers["headrace-origin-subscription"]) == sub.id
            assert int(headers["headrace-attempts"]) == entry.attempt
            assert headers["headrace-reason"] == event.reason.encode()
