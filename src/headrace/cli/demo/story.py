"""The demo from beginning to end: start, traffic, kill -9, restart, more traffic, and what the books say then."""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.demo.ledger import Balance, Ledger
from headrace.cli.demo.screen import Screen, screen_for, totals
from headrace.cli.demo.summary import conclude
from headrace.cli.demo.traffic import Lane
from headrace.cli.process import BrokerProcess
from headrace.cli.render import duration, number

TOPICS = ("orders", "payments", "sensors")
POISONED = "orders"
POISON = 777
FIRST_ACT_S = 5.0
HURRY_S = 0.2
SECOND_ACT_S = 4.0
DRAIN_TIMEOUT_S = 20.0
LOOK_EVERY_S = 0.1
SETTINGS = """
[retry]
max_attempts = 3
ack_wait_ms = 2000
backoff_ms = 500
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened, as counted."""

    balances: dict[str, Balance]
    start_s: float
    recovery_s: float
    settled_at_kill: int
    turns: list[dict[str, Any]]
    same_subscriptions: bool
    drained: bool
    dead_letter: dict[str, Any] | None
    trace: dict[str, Any] | None

    @property
    def kept(self) -> bool:
        """Whether every promise was kept and the story came to its end."""
        told = self.drained and self.same_subscriptions and self.dead_letter is not None
        return told and all(balance.kept and balance.reconciles for balance in self.balances.values())


def tell() -> bool:
    """Run the demo and print what came of it; whether the broker kept its word."""
    books = {topic: Ledger() for topic in TOPICS}
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as directory, screen_for(books) as screen:
        outcome = asyncio.run(Story(Path(directory), books, screen).run())
    conclude(outcome, books)
    return outcome.kept


def _turn(event: str) -> dict[str, Any]:
    """A turn of the story as a step in the life of a message."""
    return {"event": event, "timestamp_us": time.time_ns() // 1000}


class Story:
    """One run of the demo in a directory of its own."""

    def __init__(self, directory: Path, books: dict[str, Ledger], screen: Screen) -> None:
        self._broker = BrokerProcess(directory, SETTINGS)
        self._books = books
        self._screen = screen
        self._lanes = [Lane(topic, books[topic], POISON if topic == POISONED else None) for topic in books]

    async def run(self) -> Outcome:
        """Everything in order; the broker is gone when it returns."""
        watching = asyncio.create_task(self._watch())
        try:
            return await self._acts()
        finally:
            watching.cancel()
            await self._broker.kill()

    async def _acts(self) -> Outcome:
        await self._broker.start()
        start_s = self._broker.ready_s
        self._screen.say(f"broker ready after {duration(start_s)}, in an empty directory")
        async with self._traffic():
            self._screen.say(f"{len(self._lanes)} topics, a publisher and a consumer each, every batch synced to disk")
            await asyncio.sleep(FIRST_ACT_S)
            for lane in self._lanes:
                lane.hurried = True
            await asyncio.sleep(HURRY_S)
            await self._broker.kill()
            turns = [_turn("kill -9")]
        settled_at_kill = sum(ledger.settled for ledger in self._books.values())
        counts = totals(self._books)
        unanswered = counts["published"] - counts["durable"]
        self._screen.say(
            f"kill -9 with {number(unanswered)} publishes unanswered and {number(counts['in_flight'])} in flight"
        )
        before = [lane.subscription for lane in self._lanes]
        await self._broker.start()
        turns.append(_turn("restarted"))
        self._screen.say(f"restarted: ready after {duration(self._broker.ready_s)}, log recovered")
        drained = await self._second_act()
        letters = await asyncio.to_thread(self._dead_letters)
        return Outcome(
            balances={topic: ledger.balance() for topic, ledger in self._books.items()},
            start_s=start_s,
            recovery_s=self._broker.ready_s,
            settled_at_kill=settled_at_kill,
            turns=turns,
            same_subscriptions=before == [lane.subscription for lane in self._lanes],
            drained=drained,
            dead_letter=letters[0] if letters else None,
            trace=await asyncio.to_thread(self._trace, letters[0]["origin_offset"]) if letters else None,
        )

    async def _second_act(self) -> bool:
        """More traffic, then none, until the broker has nothing left to deliver; whether it came to that."""
        async with self._traffic() as publishing:
            await asyncio.sleep(SECOND_ACT_S)
            for lane in self._lanes:
                lane.stopping = True
            await asyncio.wait(publishing)
            self._screen.say("publishers stopped; consumers go on until the broker has nothing left")
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await self._drained()
            except TimeoutError:
                return False
        return True

    async def _drained(self) -> None:
        """Ask the broker, not our books, until it has nothing left to deliver."""
        while True:
            if not await asyncio.to_thread(self._left_over):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    @asynccontextmanager
    async def _traffic(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Publishers and consumers at work; yields the publishers. Raises what one of them failed with."""
        target = self._broker.target
        ready = [asyncio.Event() for _ in self._lanes]
        tasks = []
        for lane, subscribed in zip(self._lanes, ready, strict=True):
            lane.hurried = False
            tasks.append(asyncio.create_task(lane.consume(target, subscribed)))
        subscribed_all = asyncio.ensure_future(asyncio.gather(*(event.wait() for event in ready)))
        waited: list[asyncio.Future[Any]] = [subscribed_all, *tasks]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        subscribed_all.cancel()
        publishing = [asyncio.create_task(lane.publish(target)) for lane in self._lanes]
        tasks += publishing
        try:
            yield publishing
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure

    async def _watch(self) -> None:
        while True:
            self._screen.refresh()
            await asyncio.sleep(LOOK_EVERY_S)

    def _left_over(self) -> int:
        """How much the broker has still to deliver or to hear of."""
        with self._broker.target.api() as api:
            found = api.get("/api/subscriptions")["subscriptions"]
        return sum(item["pending"] + item["deferred"] + item["in_flight"] for item in found)

    def _dead_letters(self) -> list[dict[str, Any]]:
        with self._broker.target.api() as api:
            letters = list(api.pages("/api/dead-letters", "dead_letters", {}, limit=None))
        for letter in letters:
            self._books[letter["origin_topic"]].mark_dead(json.loads(letter["text"])["n"])
        return letters

    def _trace(self, offset: int) -> dict[str, Any]:
        with self._broker.target.api() as api:
            found: dict[str, Any] = api.get(f"/api/trace/{offset}")
        return found
