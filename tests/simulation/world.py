"""Broker, log and model in one small world. Every operation checks that broker and model agree about it."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from headrace.broker import Broker, BrokerSettings, RetryPolicy, Status, TopicSettings
from headrace.broker.writers import Chunk, Progress, WriterKey
from headrace.model.batch import Batch, build_batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event
from headrace.model.requests import Start
from tests.simulation.memory_log import MemoryLog, Record
from tests.simulation.model import FOREVER, LIVE, STATUS, Model, ModelSubscription, State

OWNER = "owner"
STRANGER = "stranger"
TAIL = "tail"
SETTINGS = BrokerSettings(
    retry=RetryPolicy(max_attempts=3, backoff_ms=100, ack_wait_ms=20),
    topics={
        "short": TopicSettings(ttl_s=2, max_attempts=2),
        "late": TopicSettings(delay_ms=300, backoff_ms=50),
    },
    subscription_expiry_s=60,
    qos0_pending_max=25,
    inflight_max=60,
)
TOPICS = ("plain", "short", "late", "$dead.plain")


@dataclass(frozen=True)
class Saved:
    """A snapshot: batches not yet visible and events not yet drained when it was taken are still to be applied."""

    batches_from: int
    events_from: int
    state: bytes


class World:
    """A broker with a log it can lose the end of, and a model that knows better."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.log = MemoryLog()
        self.model = Model(SETTINGS)
        self.broker = Broker(self.log, SETTINGS)
        self.holders: dict[tuple[int, int], Hashable] = {}
        self.waiting: dict[Hashable, set[int]] = {}
        self.used: dict[int, int] = {}
        self.unclaimed: list[int] = []
        self.saved: Saved | None = None
        self._unsaved: Saved | None = None
        self._retired: list[tuple[int, int]] = []
        self._undo: list[tuple[WriterKey, Progress]] = []
        self._published = 0

    # Operations

    def publish(
        self, topic: str, count: int, *, qos: int = 1, delay_us: int = 0, ttl_us: int = 0, max_attempts: int = 0
    ) -> None:
        """Append a batch; nobody sees it before the next sync."""
        values = [b"message %d" % (self._published + index) for index in range(count)]
        self._published += count
        part = build_batch(
            topic,
            values,
            timestamp_us=self.now,
            qos=qos,
            due_us=self.now + delay_us if delay_us else 0,
            expires_us=self.now + ttl_us if ttl_us else 0,
            max_attempts=max_attempts,
        )
        self._append(part)

    def sync(self) -> None:
        """Make everything appended durable and visible."""
        for batch in self.log.sync():
            self.broker.on_published(batch, self.now)
        self.saved = self._unsaved or self.saved
        self._unsaved = None
        self._undo.clear()
        self._commit()

    def subscribe(self, topic: str, qos: int, *, name: str = "", earliest: bool = False) -> int:
        """Subscribe, and check that the right one is found again."""
        expected = self._expected_subscription(topic, qos, name)
        start = Start.EARLIEST if earliest else Start.LATEST
        identity = self.broker.subscribe(
            topic,
            qos=qos,
            owner=OWNER,
            name=name,
            start=start,
            tail=name == TAIL,
            at=self.log.next_offset,
            now=self.now,
        )
        assert expected is None or identity == expected
        assert expected is not None or identity not in self.model.subscriptions
        self._commit()
        self._use(identity)
        return identity

    def report(self, reader: str, offset: int | None) -> None:
        """A reader outside the broker says how far it is, or is removed."""
        if offset is None:
            self.broker.readers.remove(OWNER, reader, self.now)
        else:
            self.broker.readers.report(OWNER, reader, None, offset, self.now)
        self._commit()

    def transact(self, writer: str, chunks: int) -> None:
        """The next record of a transaction: of the one that is open, or of a new one of so many chunks."""
        progress = self.broker.writers.progress((OWNER, writer))
        batch, number = (progress.batch or 0) + 1, 0
        if progress.open_batch is not None:
            batch, number = progress.open_batch, progress.chunks_done
            chunks = max(chunks, number + 1)
        chunk = Chunk(owner=OWNER, writer=writer, batch=batch, chunk=number, chunks=chunks)
        self._commit()
        self._undo.append((chunk.key, progress))
        self._append(
            build_batch(TOPICS[0], [b"row"], timestamp_us=self.now) + chunk.event(self.now).encode(), publish=True
        )
        self.broker.writers.committed(chunk, self.now)

    def unsubscribe(self, identity: int) -> None:
        self.broker.unsubscribe(identity, "asked", self.now)
        self._commit()
        assert identity not in self.model.subscriptions

    def take(self, identity: int, limit: int, consumer: Hashable | None = None, *, timed: bool = True) -> list[int]:
        """Take, and return the delivery ids."""
        sub = self.model.subscriptions[identity]
        assert self.broker.take(identity, limit, owner=STRANGER, consumer=consumer, now=self.now) == []
        expected = self.model.expected_take(sub, limit, self.now, self.log.durable_offset)
        portions = self.broker.take(identity, limit, owner=OWNER, consumer=consumer, timed=timed, now=self.now)
        recorded = self._commit()[identity]
        ids = self._check_portions(sub, portions, recorded, consumer)
        assert expected is None or len(ids) == expected
        self._use(identity)
        return ids

    def exchange(self, identity: int, limit: int, consumer: Hashable | None = None) -> None:
        """Several steps in quick succession, recorded together."""
        sub = self.model.subscriptions[identity]
        portions: list[Portion] = []
        for _ in range(3):
            taken = self.broker.take(identity, limit, owner=OWNER, consumer=consumer, now=self.now)
            portions += taken
            self.now += 1000
            for portion in taken:
                if sub.qos and portion.batch.qos and portion.count > 2:
                    first = portion.first_delivery
                    self.broker.ack(identity, [(first, 1), (first + 2, portion.count - 2)], owner=OWNER, now=self.now)
                    self.broker.nack(identity, [(first + 1, 1)], owner=OWNER, reason="no", now=self.now)
        recorded = self._commit()[identity]
        self._check_portions(sub, portions, recorded, consumer)
        self._use(identity)

    def settle(self, identity: int, ids: list[int], *, negatively: bool = False) -> bool:
        """Ack or nack; whether it was accepted must be what the model says."""
        sub = self.model.subscriptions[identity]
        entries = [sub.by_delivery(each) for each in ids]
        lawful = len(set(ids)) == len(ids) and all(e is not None and e.state is State.HELD for e in entries)
        ranges = _as_ranges(ids)
        if not lawful:
            before = self.state()
            for owner in (OWNER, STRANGER):
                with pytest.raises(BrokerError) as refused:
                    self._settle(identity, ranges, owner, negatively)
                assert refused.value.code is Code.UNKNOWN
            assert self.broker.drain() == []
            assert self.state() == before
            return False
        self._settle(identity, ranges, OWNER, negatively)
        self._commit()
        for entry in entries:
            assert entry is not None
            assert entry.state in ((State.NACKED, State.DEAD) if negatively else (State.ACKED,))
        self._use(identity)
        return True

    def release(self, consumer: Hashable) -> None:
        """A consumer goes away: nothing stays with it."""
        self.broker.release(consumer, self.now)
        self._commit()
        for (identity, offset), holder in list(self.holders.items()):
            sub = self.model.subscriptions.get(identity)
            if holder == consumer and sub is not None:
                entry = sub.entries[offset]
                assert entry.state is not State.HELD or entry.due <= self.now
        self.holders = {key: holder for key, holder in self.holders.items() if holder != consumer}
        self.waiting.pop(consumer, None)

    def wait(self, identity: int, consumer: Hashable) -> None:
        """Take one message or wait for it."""
        if not self.take(identity, 1, consumer):
            self.broker.wait(identity, consumer)
            self.waiting.setdefault(consumer, set()).add(identity)

    def serve_called(self) -> None:
        """Let everybody who was called take."""
        for consumer in self.broker.drain_ready():
            for identity in sorted(self.waiting.pop(consumer, set()) & set(self.model.subscriptions)):
                self.wait(identity, consumer)

    def tick(self) -> None:
        """Let time do its work: nothing due is left, nobody waits in vain."""
        for identity in self.model.subscriptions:
            self.used.setdefault(identity, self.now)
        self.broker.tick(self.now)
        self._commit()
        self.serve_called()
        due = self.broker.next_deadline()
        assert due is None or due > self.now
        for sub in self.model.subscriptions.values():
            assert sub.name or self.now < self.used[sub.id] + 60_000_000, "an abandoned subscription is removed"
            info = self.broker.subscription(sub.id)
            assert info is not None
            if info.waiting_consumers:
                assert not self.model.expected_take(sub, 1, self.now, self.log.durable_offset)
            for entry in sub.order:
                overdue = entry.state is State.HELD and entry.due <= self.now
                assert not overdue or self.model.attempts_left(sub.topic, entry)

    def save(self) -> None:
        """Take a snapshot; it is written with the next sync."""
        self._unsaved = Saved(self.log.synced, len(self.log.records), self.broker.snapshot())

    def retire(self, share: float) -> None:
        """Delete the oldest part of the log, needed or not."""
        self.save()
        self.sync()
        index = int(len(self.log.records) * share)
        offset = self.log.records[index].base if index < len(self.log.records) else 0
        if offset <= self.log.first_offset:
            return
        self.broker.forget_before(offset, self.now)
        self._commit()
        self.save()
        self.sync()
        self.log.delete_before(offset)
        self.model.retire(offset)
        self._retired.append((len(self.log.records), offset))
        for sub in self.model.subscriptions.values():
            assert not [e for e in sub.order if e.state in LIVE and e.message.offset < offset]

    def restart(self) -> None:
        """Stop and start again: every way of recovery leads to the state before."""
        self.sync()
        before = self.state()
        self._recover()
        assert self.state() == before
        self._begin()

    def crash(self, kept: int) -> None:
        """Lose power, and with it the end of what was not synced."""
        self.log.crash(kept)
        self._undo.clear()
        self._relearn()
        self._recover()
        self._begin()

    def refuse(self) -> None:
        """A write fails: what was published since the last sync is refused, what happened is kept."""
        self.log.refuse()
        while self._undo:
            self.broker.writers.restore(*self._undo.pop())
        self._relearn()
        self.broker.rewound(self.log.next_offset)
        self.check_messages()

    # Checks

    def state(self) -> dict[str, Any]:
        """The broker's snapshot as comparable values, neighbouring runs of one fate joined."""
        return normalised(self.broker.snapshot(), self.log)

    def check(self) -> None:
        """The broker counts what the model counts."""
        infos = self.broker.subscriptions()
        lowest = self.broker.needed_from()
        visible = self.log.durable_offset
        assert {info.id for info in infos} == set(self.model.subscriptions)
        assert {reader.reader: reader.offset for reader in self.broker.readers.all()} == self.model.readers
        assert lowest <= min(self.model.readers.values(), default=FOREVER)
        known = {name: (p.batch, p.open_batch, p.chunks_done) for (_, name), p in self.broker.writers.items()}
        assert known == self.model.writers
        for info in infos:
            sub = self.model.subscriptions[info.id]
            states = sub.states()
            on_its_way = sum(e.message.offset >= visible for e in sub.order)
            assert info.pending == states[State.PENDING] - on_its_way
            assert info.in_flight == states[State.HELD] + states[State.NACKED]
            assert info.deferred == states[State.DEFERRED]
            assert info.acked == states[State.ACKED]
            assert info.expired == states[State.EXPIRED]
            assert info.dead == states[State.DEAD]
            assert info.dropped == states[State.DROPPED]
            assert info.nacked == sub.nacks
            assert info.delivered == sub.deliveries
            needed = next((e.message.offset for e in sub.order if e.state in LIVE), FOREVER)
            assert needed >= visible or lowest <= needed

    def check_messages(self) -> None:
        """Every message stands where the model says, in every subscription."""
        self.check()
        for sub in self.model.subscriptions.values():
            for offset, entry in sub.entries.items():
                status = self.broker.status_of(sub.id, offset)
                if entry.state is State.HELD:
                    assert status is Status.IN_FLIGHT or (status is Status.WAITING and entry.due <= self.now)
                else:
                    assert status is STATUS.get(entry.state, Status.SETTLED)

    # How the above is done

    def _append(self, payload: bytes, *, publish: bool = False) -> Record:
        record = self.log.append(payload, publish=publish)
        self.model.apply(record)
        return record

    def _commit(self) -> dict[int, Counter[tuple[int, int]]]:
        """Append what the broker has to say; returns the deliveries in it: (offset, attempt) by subscription."""
        delivered: dict[int, Counter[tuple[int, int]]] = {identity: Counter() for identity in self.model.subscriptions}
        for payload in self.broker.drain():
            for part in self._append(payload).parts():
                if not isinstance(part, Batch) and part[1].event == Event.DELIVERED:
                    delivered[part[1].subscription].update(
                        (first + index, attempt) for first, count, attempt in part[1].ranges for index in range(count)
                    )
        return delivered

    def _check_portions(
        self,
        sub: ModelSubscription,
        portions: list[Portion],
        recorded: Counter[tuple[int, int]],
        consumer: Hashable | None,
    ) -> list[int]:
        ids = []
        for batch, index, count, first, attempt, qos in portions:
            assert qos == sub.qos
            for step in range(count):
                offset = batch.base + index + step
                entry = sub.entries[offset]
                assert entry.delivery == first + step
                assert entry.message.value == batch.value(index + step)
                recorded[offset, attempt] -= 1
                ids.append(first + step)
                self.holders[sub.id, offset] = consumer
        assert not +recorded, "recorded but not delivered"
        assert not -recorded, "delivered but not recorded"
        return ids

    def _settle(self, identity: int, ranges: list[tuple[int, int]], owner: str, negatively: bool) -> None:
        if negatively:
            self.broker.nack(identity, ranges, owner=owner, reason="no", now=self.now)
        else:
            self.broker.ack(identity, ranges, owner=owner, now=self.now)

    def _expected_subscription(self, topic: str, qos: int, name: str) -> int | None:
        for sub in self.model.subscriptions.values():
            if name and (sub.topic, sub.name) == (topic, name):
                return sub.id
            if not name and sub.id in self.unclaimed and (sub.topic, sub.qos, sub.name) == (topic, qos, ""):
                return sub.id
        return None

    def _use(self, identity: int) -> None:
        self.used[identity] = self.now
        if identity in self.unclaimed:
            self.unclaimed.remove(identity)

    def _relearn(self) -> None:
        """Make the model anew from what is left of the log; a snapshot not written yet is void."""
        self._unsaved = None
        self.model = Model(SETTINGS)
        retired = dict(self._retired)
        for index in range(len(self.log.records) + 1):
            if index in retired:
                self.model.retire(retired[index])
            if index < len(self.log.records):
                self.model.apply(self.log.records[index])

    def _recover(self) -> None:
        """Continue with a broker made from the log, by each way there is."""
        if self.saved is None:
            self.broker = Broker(self.log, SETTINGS)
            replay(self.broker, self.log.records)
        else:
            self.broker = Broker.restore(self.saved.state, self.log, SETTINGS)
            replay(self.broker, self.log.records, self.saved.batches_from, self.saved.events_from)
        if not self._retired:
            whole = Broker(self.log, SETTINGS)
            replay(whole, self.log.records)
            assert normalised(whole.snapshot(), self.log) == self.state()
        self.holders.clear()
        self.waiting.clear()
        self.used.clear()
        self.unclaimed = sorted(sub.id for sub in self.model.subscriptions.values() if not sub.name)

    def _begin(self) -> None:
        """The recovered broker begins to work, without the readers of before."""
        self.broker.recovered(self.now)
        self._commit()
        self.check_messages()


def replay(broker: Broker, records: list[Record], batches_from: int = 0, events_from: int = 0) -> None:
    """Fold records into a broker as recovery does."""
    for index, record in enumerate(records):
        for part in record.parts():
            if isinstance(part, Batch):
                if index >= batches_from:
                    broker.apply_batch(part)
            elif index >= events_from:
                broker.apply_event(part[1], part[0])


def normalised(state: bytes, log: MemoryLog) -> dict[str, Any]:
    """A snapshot as values in which equal states are equal; a cursor becomes the number of messages behind it.

    What a parked run waits for is left out: read again from the log it is the end of what had been appended.
    """
    saved: dict[str, Any] = msgspec.msgpack.decode(state)
    saved["topics"] = sorted(topic for topic in saved["topics"] if topic[1])
    for known in ("writers", "readers"):
        saved[known].sort(key=str)
    for sub in saved["subscriptions"]:
        topic = sub[1]["topic"]
        sub[1]["cursor"] = log.count_from(topic, sub[1]["cursor"])
        sub[2] = log.count_from(topic, sub[2])
        joined: list[list[int]] = []
        sub.pop()
        for first, count, offset, attempt, due, awaited in sub[-1]:
            if joined and joined[-1][3:] == [attempt, due, awaited]:
                last = joined[-1]
                if (last[0] + last[1], last[2] + last[1]) == (first, offset):
                    last[1] += count
                    continue
            joined.append([first, count, offset, attempt, due, awaited])
        sub[-1] = joined
    saved["subscriptions"].sort()
    return saved


def _as_ranges(ids: list[int]) -> list[tuple[int, int]]:
    """Ids as ranges in the order given, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for each in ids:
        if ranges and ranges[-1][0] + ranges[-1][1] == each:
            ranges[-1] = ranges[-1][0], ranges[-1][1] + 1
        else:
            ranges.append((each, 1))
    return ranges
