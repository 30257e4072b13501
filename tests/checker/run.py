"""One run: load, faults, drain, judgement. Everything that is drawn by lot comes from the seed."""

import asyncio
import errno
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from headrace.broker.deadletters import ORIGIN_SUBSCRIPTION
from headrace.feed.client import FeedClient
from headrace.feed.ticket import Ticket
from headrace.protocols.blipmq.client import BlipmqClient
from tests.checker.broker import Broker, build_faults
from tests.checker.clients import (
    QUEUE,
    TOPICS,
    Bench,
    BlipmqConsumer,
    BlipmqPublisher,
    FujinConsumer,
    FujinPublisher,
    GrpcqConsumer,
    GrpcqPublisher,
    Lane,
    SspqConsumer,
    SspqPublisher,
)
from tests.checker.history import Fault, Final, History, Outcome, value_in
from tests.checker.rules import ATTEMPTS_MAX, violations

SETTINGS = {
    "RETRY__MAX_ATTEMPTS": str(ATTEMPTS_MAX),
    "RETRY__BACKOFF_MS": "50",
    "RETRY__ACK_WAIT_MS": "1000",
    "GRPCQ__MAX_ATTEMPTS": str(ATTEMPTS_MAX),
    "GRPCQ__ACK_WAIT_MS": "1000",
    "LOG__SEGMENT_BYTES": "262144",
    "LOG__SNAPSHOT_BYTES": "131072",
}
SILENCE_S = 4.0
DRAIN_S = 120.0
HOUR_US = 3_600_000_000


@dataclass
class Verdict:
    """How a run went. `counts` are operations by kind and outcome."""

    seed: int
    seconds: float
    faults: dict[str, int]
    counts: dict[str, int]
    failed_calls: int
    stored: int
    dead: int
    violations: list[str]


class Nemesis:
    """Does one fault after the other, each with some peace behind it."""

    def __init__(self, broker: Broker, history: History, seed: int, names: Sequence[str]) -> None:
        self._broker = broker
        self._history = history
        self._chance = random.Random(f"{seed}-nemesis")
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "kill-in-haste": self._kill_in_haste,
            "stop": self._stop,
            "disk-full": self._disk(write=errno.ENOSPC),
            "disk-eio-write": self._disk(write=errno.EIO),
            "disk-eio-sync": self._disk(sync=errno.EIO),
            "disk-eio-read": self._disk(read=errno.EIO),
            "disk-slow": self._slow,
            "disk-full-and-kill": self._full_and_kill,
            "clock": self._clock,
        }
        self._names = tuple(names or self._faults)

    async def run(self, seconds: float) -> None:
        """Do faults until the time is up; every kind comes before any comes again."""
        until = monotonic() + seconds
        while monotonic() < until:
            for name in self._chance.sample(self._names, len(self._names)):
                await rest(self._chance.uniform(0.3, 2.0))
                if monotonic() >= until:
                    break
                fault = Fault(name, monotonic(), float("inf"))
                self._history.faults.append(fault)
                await self._faults[name]()
                fault.ended = monotonic()

    async def _kill(self) -> None:
        self._broker.kill()
        await asyncio.to_thread(self._broker.start)

    async def _kill_in_haste(self) -> None:
        """Again while it may still be recovering, or has just begun to serve."""
        for _ in range(3):
            self._broker.kill()
            starting = asyncio.create_task(asyncio.to_thread(self._broker.start))
            await rest(self._chance.uniform(0.05, 1.2))
            if not starting.done():
                self._broker.signal(signal.SIGKILL)
                with suppress(AssertionError):
                    await starting
        await self._kill()

    async def _stop(self) -> None:
        self._broker.signal(signal.SIGSTOP)
        await rest(self._chance.uniform(0.2, 4.0))
        self._broker.signal(signal.SIGCONT)

    def _disk(self, **causes: int) -> Callable[[], Awaitable[None]]:
        async def fail() -> None:
            self._broker.rule.set(**causes)
            await rest(self._chance.uniform(0.1, 2.0))
            await self._mend()

        return fail

    async def _slow(self) -> None:
        self._broker.rule.set(delay_us=self._chance.randint(5_000, 80_000))
        await rest(self._chance.uniform(1.0, 4.0))
        await self._mend()

    async def _full_and_kill(self) -> None:
        self._broker.rule.set(write=errno.ENOSPC)
        await rest(self._chance.uniform(0.1, 1.0))
        self._broker.kill()
        self._broker.rule.set()
        await asyncio.to_thread(self._broker.start)

    async def _clock(self) -> None:
        """The wall clock jumps while the broker runs, and is wrong when it starts; then it is right again."""
        self._broker.rule.set(clock_us=self._chance.choice((-24, -1, 1)) * HOUR_US + self._chance.randint(0, HOUR_US))
        await rest(self._chance.uniform(0.2, 1.0))
        await self._kill()
        await rest(self._chance.uniform(0.5, 2.0))
        self._broker.rule.set()

    async def _mend(self) -> None:
        """The disk is well again; a broker that gave up is started anew."""
        self._broker.rule.set()
        await rest(0.3)
        if not self._broker.running:
            await self._kill()


async def rest(seconds: float) -> None:
    """Let so much time pass: this is a load, not a test of an order of events."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


async def check(folder: Path, seed: int, seconds: float, faults: Sequence[str] = ()) -> Verdict:
    """Run load and faults for so long, drain, and judge; the history stays in `folder` when something is wrong."""
    broker = Broker(folder, build_faults(folder), SETTINGS)
    await asyncio.to_thread(broker.start)
    try:
        bench = Bench(broker.endpoints, broker.data_dir, History(), seed)
        lanes = await _lanes(bench)
        tasks = [asyncio.create_task(lane.run()) for lane in lanes]
        await Nemesis(broker, bench.history, seed, faults).run(seconds)
        bench.publishing.set()
        bench.draining = True
        await _drained(bench)
        bench.consuming.set()
        await asyncio.gather(*tasks)
        final = await asyncio.to_thread(_final, broker, lanes)
    finally:
        broker.kill()
    found = violations(bench.history, final)
    if found:
        bench.history.write(folder / "history.jsonl")
    return _verdict(bench, final, broker, seconds, found)


async def _lanes(bench: Bench) -> list[Lane]:
    async with await BlipmqClient.connect(bench.endpoints["blipmq"], "dev-key") as client:
        numbers = {topic: (await client.subscribe(topic)).id for topic in TOPICS}
        await client.fence()
    return [
        BlipmqPublisher(bench, "bp"),
        SspqPublisher(bench, "sp"),
        FujinPublisher(bench, "fp"),
        GrpcqPublisher(bench, "gp"),
        *(BlipmqConsumer(bench, f"blipmq{n}", topic, number) for topic, number in numbers.items() for n in range(2)),
        *(FujinConsumer(bench, f"fujin{n}", topic) for topic in TOPICS for n in range(2)),
        *(GrpcqConsumer(bench, f"grpcq{n}", topic) for topic in TOPICS for n in range(2)),
        *(SspqConsumer(bench, f"sspq{n}", QUEUE) for n in range(2)),
    ]


async def _drained(bench: Bench) -> None:
    """Return once nothing has come for longer than any retry takes."""
    began = bench.delivered_at = monotonic()
    while (now := monotonic()) < began + DRAIN_S and now < bench.delivered_at + SILENCE_S:
        await rest(0.2)


def _final(broker: Broker, lanes: Sequence[Lane]) -> Final:
    """What is stored and dead, as the feed and the API tell it."""
    final = Final()
    owners: dict[int, str] = {}
    known = {lane.subscription: lane for lane in lanes if hasattr(lane, "subscription")}
    for each in broker.api("/api/subscriptions?limit=500")["subscriptions"]:
        door = next((name for name in ("sspq", "fujin", "grpcq") if str(each["name"] or "").startswith(name)), "blipmq")
        if f"{door}-{each['topic']}" in known:
            owners[each["id"]] = f"{door}-{each['topic']}"
    final.followed = {name: name.partition("-")[2] for name in owners.values()}
    assert final.followed.keys() == known.keys(), f"subscriptions {sorted(final.followed)} instead of {sorted(known)}"
    with FeedClient(broker.endpoints["flight"], key="dev-key") as client:
        for topic in (*TOPICS, QUEUE):
            final.stored[topic] = []
            for rows in client.read(Ticket(topics=(topic,), columns=("value",))):
                final.stored[topic] += [value_in(value or b"") for value in rows.column("value").to_pylist()]
            for rows in client.read(Ticket(topics=(f"$dead.{topic}",), columns=("value", "headers"))):
                for value, headers in zip(*(rows.column(i).to_pylist() for i in range(2)), strict=True):
                    told = {each["key"]: each["value"] for each in headers}
                    final.dead.setdefault(owners[int(told[ORIGIN_SUBSCRIPTION])], []).append(value_in(value))
    return final


def _verdict(bench: Bench, final: Final, broker: Broker, seconds: float, found: list[str]) -> Verdict:
    faults: dict[str, int] = {}
    for fault in bench.history.faults:
        faults[fault.name] = faults.get(fault.name, 0) + 1
    counts: dict[str, int] = {}
    for op in bench.history.ops:
        name = f"{op.kind} {op.outcome}"
        counts[name] = counts.get(name, 0) + len(op.values)
    stored, dead = (sum(map(len, each.values())) for each in (final.stored, final.dead))
    return Verdict(bench.seed, seconds, faults, counts, broker.rule.failed, stored, dead, found)


def confirmed(verdict: Verdict) -> int:
    """How many values were confirmed as stored."""
    return sum(verdict.counts.get(f"{kind} {Outcome.OK}", 0) for kind in ("publish", "transact"))
