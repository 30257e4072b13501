"""Data directories with everything in them, and what a broker would answer from one.

Built through a real broker on a real disk; answered without one, so that thousands of copies can be asked.
"""

import asyncio
import hashlib
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.broker import Broker
from headrace.config import load
from headrace.kernels.identities import ENTRY_SIZE
from headrace.log import Log, OsDisk, Report
from headrace.model.batch import Protocol, build_batch, iter_messages
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish, Start
from headrace.server.node import Node
from headrace.server.recovery import recover_broker
from headrace.server.walk import batches_from
from headrace.testing import broker
from tests.harness.clock import StillClock
from tests.harness.drivers import Office
from tests.harness.eventually import eventually

OWNER = "tester"
TOPICS = ("orders", "payments", "stock", "rare")
DOORS = (Protocol.BLIPMQ, Protocol.SSPQ, Protocol.FUJIN, Protocol.GRPCQ)
LOG: dict[str, object] = {
    "segment_bytes": 4096, "snapshot_bytes": 6000, "tail_cache_bytes": 0, "fill_bytes": 600, "retention_s": 60,
    "scrub_bytes_s": 0,
}  # fmt: skip
RETRY = {"max_attempts": 2, "backoff_ms": 0, "ack_wait_ms": 0}
RECORD_BYTES = 600
CONFIG = load(None, {}, {"log": LOG, "retry": RETRY, "auth": {"api_keys": ["k"]}})
LATER_S = 3600


@dataclass
class Answers:
    """What a directory says: every message of every topic, and the broker's state; `report` is what start-up found."""

    messages: dict[str, list[tuple[Any, ...]]]
    state: dict[str, Any]
    ids: dict[str, set[bytes]]
    report: Report
    damage: list[Any] = field(default_factory=list)

    def same(self, other: "Answers") -> bool:
        """Whether nobody could tell them apart. Remembering more ids of messages that are there is no difference."""
        alike = self.messages == other.messages and self.state == other.state
        return alike and all(known <= self.ids.get(topic, set()) for topic, known in other.ids.items())


class _Deaf:
    def publish_refused(self, request: Publish, cause: object) -> None:
        raise AssertionError(cause)

    def settled(self) -> None:
        """Nobody asks."""


class Builder:
    """Fills one directory through a running broker."""

    def __init__(self, node: Node, clock: StillClock, directory: Path, chance: random.Random) -> None:
        self.engine = node.engine
        self.clock = clock
        self.chance = chance
        self.office = Office(self.engine, directory / "staging", OsDisk(), RECORD_BYTES)
        self.subscriptions: list[tuple[int, str]] = []
        self.published: set[tuple[str, bytes]] = set()
        self._batch = 0
        self._number = 0

    async def some_of_everything(self, rounds: int) -> None:
        """A few rounds of everything a broker remembers."""
        for _ in range(rounds):
            self.subscribe()
            for _ in range(6):
                await self.publish()
                self.work()
            await self.transact(self.chance.choice((2, 30)))
            self.report()
            self.clock.turn(0.5)
            self.engine.broker.tick(self.clock.now())
            self.engine.journal()
            await self.engine.drained(10)

    def subscribe(self) -> None:
        topic = self.chance.choice(TOPICS[:3])
        name = self.chance.choice(("", "workers", "others"))
        start = self.chance.choice((Start.EARLIEST, Start.LATEST))
        engine, now = self.engine, self.clock.now()
        at = engine.log.next_offset
        made = engine.broker.subscribe(topic, qos=1, owner=OWNER, name=name, start=start, at=at, now=now)
        self.subscriptions.append((made, topic))
        engine.journal()

    async def publish(self) -> None:
        topic = self.chance.choice(TOPICS[:3]) if self.chance.random() < 0.95 else TOPICS[3]
        count = self.chance.randint(1, 6)
        values = [self._value() for _ in range(count)]
        self.published |= {(topic, value) for value in values}
        columns: dict[str, Any] = {}
        if self.chance.random() < 0.5:
            columns["keys"] = [b"key %d" % n for n in range(count)]
            columns["headers"] = [[("name", b"v%d" % n)] for n in range(count)]
            columns["message_ids"] = [f"id-{self._number}-{n}" for n in range(count)]
        door = self.chance.choice(DOORS)
        part = build_batch(topic, values, timestamp_us=self.clock.now(), protocol=door, **columns)
        self.engine.publish(Publish(topic, 1, count, bytearray(RECORD_HEADER_SIZE) + part, b""), _Deaf())
        await self.engine.drained(10)

    def work(self) -> None:
        """Take something and settle some of it."""
        if not self.subscriptions:
            return
        subscription, _ = self.chance.choice(self.subscriptions)
        engine, now = self.engine, self.clock.now()
        for portion in engine.broker.take(subscription, 8, owner=OWNER, now=now):
            for delivery in range(portion.first_delivery, portion.first_delivery + portion.count):
                fate = self.chance.random()
                if fate < 0.5:
                    engine.broker.ack(subscription, [(delivery, 1)], owner=OWNER, now=now)
                elif fate < 0.7:
                    dead = self.chance.random() < 0.5
                    engine.broker.nack(subscription, [(delivery, 1)], owner=OWNER, reason="no", dead=dead, now=now)
        engine.journal()

    async def transact(self, count: int) -> None:
        rows = [self._value() for _ in range(count)]
        receipts = [self.office.stage(self._batch, rows[at : at + 5], part=f"{at}") for at in range(0, count, 5)]
        await self.office.commit(self._batch, *receipts)
        self.published |= {("out", value) for value in rows}
        self._batch += 1

    async def leave_unfinished(self) -> None:
        """Staged rows that nobody commits, and a transaction that is decided and half written."""
        self.office.stage(self._batch + 5, [b"never committed"])
        receipts = [self.office.stage(self._batch, [self._value() for _ in range(5)], part=f"{n}") for n in range(40)]
        committing = asyncio.ensure_future(self.office.commit(self._batch, *receipts))
        await eventually(lambda: self.engine.broker.writers.progress(("spark", "query")).chunks_done)
        await self.office.transactions.drained(10)
        await asyncio.gather(committing, return_exceptions=True)
        await self.engine.drained(10)

    def report(self) -> None:
        readers, now = self.engine.broker.readers, self.clock.now()
        readers.report(OWNER, "lake", None, self.engine.log.durable_offset, now)
        self.engine.journal()

    async def let_go(self) -> None:
        """Drop what holds the oldest segments, and have retention take them."""
        for subscription, _ in self.subscriptions[: len(self.subscriptions) // 2]:
            self.engine.broker.unsubscribe(subscription, "done", self.clock.now())
        self.subscriptions = self.subscriptions[len(self.subscriptions) // 2 :]
        for subscription, _ in self.subscriptions:
            while portions := self.engine.broker.take(subscription, 100, owner=OWNER, now=self.clock.now()):
                ranges = [(portion.first_delivery, portion.count) for portion in portions]
                self.engine.broker.ack(subscription, ranges, owner=OWNER, now=self.clock.now())
        self.engine.journal()
        await self.engine.drained(10)
        self.clock.turn(LATER_S)
        for _ in range(4):
            await self.publish()
        self.report()
        self.engine.retire()
        await self.engine.drained(10)

    def _value(self) -> bytes:
        self._number += 1
        return b"value %d " % self._number + self.chance.randbytes(self.chance.randint(0, 200))


@dataclass
class Directory:
    """A directory as it was left, an earlier copy of it, and another broker's: what damage is made from."""

    path: Path
    earlier: Path
    foreign: Path
    answers: Answers
    published: set[tuple[str, bytes]]


def built(scratch: Path, seed: int, *, clean: bool, retention: bool, repaired: bool = False) -> Directory:
    """A directory with everything in it; `clean`: shut down, else killed."""
    foreign, _ = asyncio.run(_fill(scratch, "foreign", seed + 1, clean=True, retention=False, repaired=False))
    path, published = asyncio.run(_fill(scratch, "data", seed, clean=clean, retention=retention, repaired=repaired))
    return Directory(path, scratch / "data-earlier", foreign, answers_of(copied(path, scratch / "asked")), published)


async def _fill(
    scratch: Path, name: str, seed: int, *, clean: bool, retention: bool, repaired: bool
) -> tuple[Path, set[tuple[str, bytes]]]:
    chance, clock = random.Random(seed), StillClock()
    data, kept, earlier = scratch / name, scratch / f"{name}-kept", scratch / f"{name}-earlier"
    published: set[tuple[str, bytes]] = set()
    async with broker(data, clock=clock, log=LOG, retry=RETRY) as node:
        builder = Builder(node, clock, data, chance)
        await builder.some_of_everything(3)
        copied(data, earlier)
        if retention:
            await builder.let_go()
        published |= builder.published
        if repaired:
            path = min((data / "log").glob("*.seg"))
    if repaired:
        content = bytearray(path.read_bytes())
        content[200] ^= 1
        path.write_bytes(content)
        log = Log.open(data / "log", OsDisk(), CONFIG.log_settings(), accept_damage=True, full_scan=True)
        log.close()
    async with broker(data, clock=clock, log=LOG, retry=RETRY) as node:
        builder = Builder(node, clock, data, chance)
        builder._batch = 100
        await builder.some_of_everything(2)
        await builder.leave_unfinished()
        published |= builder.published
        if not clean:
            copied(data, kept)
    if clean:
        copied(data, kept)
    shutil.rmtree(data)
    return kept, published


def copied(source: Path, target: Path) -> Path:
    """A copy in place of what was there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def answers_of(directory: Path, *, accept_damage: bool = False) -> Answers:
    """Open a directory and ask it for everything. Raises what a start would."""
    log = Log.open(directory / "log", OsDisk(), CONFIG.log_settings(), accept_damage=accept_damage)
    try:
        state = recover_broker(log, CONFIG.broker_settings(), 0)
        messages = {topic: _messages(log, topic) for topic in log.topics()}
        scrub = log.begin_scrub()
        while not scrub.is_over:
            scrub.step(1 << 20)
            for found in scrub.take_damage():
                log.note_damage(found)
        saved, ids = _state(state)
        return Answers({t: m for t, m in messages.items() if m}, saved, ids, log.report, list(log.damage))
    finally:
        log.close()


def _messages(log: Log, topic: str) -> list[tuple[Any, ...]]:
    found = iter_messages(batches_from(log, topic, 0))
    return [(m.offset, m.value, m.key, repr(m.headers), m.message_id, m.protocol, m.timestamp_us) for m in found]


def _state(state: Broker) -> tuple[dict[str, Any], dict[str, set[bytes]]]:
    """Everything a broker remembers, by name, and the ids of messages each topic knows.

    Left out is for whose share a topic counts, which is bookkeeping of quotas that only snapshots keep.
    """
    saved = msgspec.msgpack.decode(state.snapshot())
    assert isinstance(saved, dict)
    saved["topics"] = [topic[:3] for topic in saved["topics"]]
    recent, *counted = saved.pop("identities")
    ids = {
        topic: {entries[at : at + ENTRY_SIZE] for at in range(0, len(entries), ENTRY_SIZE)} for topic, entries in recent
    }
    return saved | {"counted ids": counted}, ids


def digest(answers: Answers) -> str:
    """The same answers in a few letters."""
    return hashlib.sha256(repr((answers.messages, answers.state)).encode()).hexdigest()[:12]
