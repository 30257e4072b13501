"""The demo from beginning to end: orders through four doors, kill -9, restart, a dead letter, the books, the tables."""

import asyncio
import json
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from headrace.cli.demo import picture
from headrace.cli.demo.analysts import Analysts, Findings, until
from headrace.cli.demo.books import LABELS, ORDERS, PAYMENTS, Books, Proof
from headrace.cli.demo.readers import Dashboard, LabelPrinter
from headrace.cli.demo.screen import Screen, screen_for, totals
from headrace.cli.demo.shop import BAD_ORDER, PaymentDesk, Shop, send_nonsense
from headrace.cli.demo.summary import conclude
from headrace.cli.failure import Failure
from headrace.cli.process import BrokerProcess
from headrace.cli.render import duration, number
from headrace.cli.spark_session import has_spark

T = TypeVar("T")

LISTEN = ("blipmq", "sspq", "fujin", "grpc", "http")
FEED = "flight"
PICTURES = Path("headrace-demo")
TABLES = ("messages", "events", "envelopes", "quarantine", "dead_letters", "traffic", "latency")
FIRST_ACT_S = 4.0
HURRY_S = 0.2
MOMENTS = 500
UNDER_WAY = 3
SECOND_ACT_S = 3.0
DRAIN_TIMEOUT_S = 150.0
TABLES_TIMEOUT_S = 100.0
LOOK_EVERY_S = 0.1
SETTINGS = f"""
[retry]
max_attempts = 3
ack_wait_ms = 2000
backoff_ms = 1500
[grpcq]
max_attempts = 3
[sspq]
topic = "{LABELS}"
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened, as counted. `lives` are those of the order that failed, its redriven copy, payment and label."""

    proof: Proof
    start_s: float
    recovery_s: float
    settled_at_kill: int
    cut_off: int
    cut_off_kept: int
    revenue: int
    turns: list[dict[str, Any]]
    same_subscription: bool
    drained: bool
    dead_letter: dict[str, Any] | None
    lives: list[dict[str, Any]]
    findings: Findings | None
    pictures: list[Path]

    @property
    def kept(self) -> bool:
        """Whether every promise was kept and the story came to its end."""
        told = self.drained and self.same_subscription and self.dead_letter is not None
        proven = self.findings is None or (self.findings.ledger.balanced and len(self.findings.quarantined) == 1)
        return told and proven and self.proof.kept


def tell() -> bool:
    """Run the demo and print what came of it; whether the broker kept its word."""
    logging.getLogger("headrace").addHandler(logging.NullHandler())
    books = Books()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as directory, screen_for(books) as screen:
        outcome = asyncio.run(Story(Path(directory), books, screen).run())
    conclude(outcome, books)
    return outcome.kept


def _turn(event: str) -> dict[str, Any]:
    """A turn of the story as a step in the life of a message."""
    return {"event": event, "timestamp_us": time.time_ns() // 1000}


class Story:
    """One run of the demo in a directory of its own."""

    def __init__(self, directory: Path, books: Books, screen: Screen) -> None:
        self._analysts = Analysts(directory) if has_spark() else None
        self._broker = BrokerProcess(directory, SETTINGS, LISTEN if self._analysts is None else (*LISTEN, FEED))
        self._books = books
        self._screen = screen
        self._shop = Shop(books)
        self._desk = PaymentDesk(books)
        self._dashboard = Dashboard(books)
        self._printer = LabelPrinter(books)

    async def run(self) -> Outcome:
        """Everything in order; the broker is gone when it returns."""
        watching = asyncio.create_task(self._watch())
        try:
            return await self._acts()
        finally:
            watching.cancel()
            if self._analysts is not None:
                await asyncio.to_thread(self._analysts.close)
            await self._broker.kill()

    async def _acts(self) -> Outcome:
        await self._broker.start()
        start_s = self._broker.ready_s
        self._screen.say(f"broker ready after {duration(start_s)}, in an empty directory, with four doors open")
        await self._call_analysts()
        turns = await self._first_act()
        settled_at_kill = sum(ledger.settled for ledger in self._books.ledgers.values())
        before = self._dashboard.subscription
        await self._broker.start()
        turns.append(_turn("restarted"))
        cut_off, kept = self._books.found(await asyncio.to_thread(self._stored_payments))
        self._screen.say(
            f"restarted: ready after {duration(self._broker.ready_s)}; the desk asks the log about {number(cut_off)} "
            f"unanswered transactions, {number(kept)} are stored"
        )
        letter, drained = await self._second_act()
        lives = await asyncio.to_thread(self._lives, letter) if letter is not None else []
        findings, pictures = await asyncio.to_thread(self._third_act, turns[0])
        return Outcome(
            proof=self._books.proof(),
            start_s=start_s,
            recovery_s=self._broker.ready_s,
            settled_at_kill=settled_at_kill,
            cut_off=cut_off,
            cut_off_kept=kept,
            revenue=self._dashboard.revenue,
            turns=turns,
            same_subscription=before == self._dashboard.subscription,
            drained=drained,
            dead_letter=letter,
            lives=lives,
            findings=findings,
            pictures=pictures,
        )

    async def _call_analysts(self) -> None:
        """Have the tables filled from now on, beside everything else."""
        if self._analysts is None:
            self._screen.say("no tables this time: Spark is not installed (pip install 'headrace[spark]')")
            return
        self._broker.keep_port(FEED)
        self._analysts.start(self._broker.target)
        self._screen.say("analysts start Spark beside it: seven tables, filled from the log as it grows")
        await asyncio.to_thread(until, self._is_followed, TABLES_TIMEOUT_S)

    async def _first_act(self) -> list[dict[str, Any]]:
        """Traffic through every door, and kill -9 in the middle of it."""
        async with self._traffic():
            self._screen.say(
                "a shop sends orders over grpcq; a worker charges each: one Fujin transaction, payment and"
            )
            self._screen.say("label; a dashboard reads payments over BlipMQ, an old printer takes labels over SSPQ")
            await asyncio.sleep(FIRST_ACT_S)
            self._shop.hurried = True
            await asyncio.sleep(HURRY_S)
            await self._in_the_middle()
            await self._broker.kill()
            turns = [_turn("kill -9")]
        counts = totals(self._books)
        unanswered = counts["published"] - counts["durable"]
        self._screen.say(
            f"kill -9 with {number(unanswered)} publishes unanswered and {number(counts['in_flight'])} in flight"
        )
        return turns

    async def _in_the_middle(self) -> None:
        """Wait for a moment at which transactions are under way, a second at most."""
        for _ in range(MOMENTS):
            if len(self._books.payments.unanswered) >= UNDER_WAY:
                return
            await asyncio.sleep(1 / MOMENTS)

    async def _second_act(self) -> tuple[dict[str, Any] | None, bool]:
        """More traffic; the order that fails dies and is sent back; then nothing new until the broker has nothing left.

        The dead letter, and whether it came to that end.
        """
        letter = None
        async with self._traffic() as shop:
            enough = asyncio.create_task(asyncio.sleep(SECOND_ACT_S))
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    letter = await self._redriven()
                    await enough
                    self._shop.stopping = True
                    await asyncio.wait([shop])
                    self._screen.say("the shop is closed; everybody goes on until the broker has nothing left")
                    await self._until(self._is_empty)
            except TimeoutError:
                return letter, False
            finally:
                enough.cancel()
        return letter, True

    async def _redriven(self) -> dict[str, Any]:
        """The letter of the order that failed once too often, sent back after a word with its bank."""
        letter = (await self._until(self._dead_letters))[0]
        self._books.orders.mark_dead(BAD_ORDER)
        self._screen.say(f"order {BAD_ORDER} failed {letter['attempts']} times, now a dead letter: {letter['reason']}")
        self._desk.bank_agrees = True
        self._books.orders.mark_redriven(BAD_ORDER)
        await asyncio.to_thread(self._redrive, letter)
        how = "" if self._analysts is None else ", by a query over the table of dead letters"
        self._screen.say(f"a word with the bank, and order {BAD_ORDER} is redriven{how}")
        await send_nonsense(self._broker.target)
        self._screen.say("a partner sends something over Fujin that claims to be an order, and is none")
        return letter

    def _third_act(self, killed: dict[str, Any]) -> tuple[Findings | None, list[Path]]:
        """The tables catch up, the ledger is balanced, a picture is drawn."""
        analysts = self._analysts
        if analysts is None:
            return None, []
        until(lambda: analysts.behind() == 0 and analysts.rows("quarantine") > 0, TABLES_TIMEOUT_S)
        self._screen.say("the tables have caught up; Spark balances the books of log, subscriptions and tables")
        findings = analysts.conclude(self._broker.target)
        published, acked = analysts.ask(picture.traffic), analysts.ask(picture.latency)
        moment = datetime.fromtimestamp(killed["timestamp_us"] / 1e6, UTC).replace(tzinfo=None)
        return findings, picture.draw(published, acked, moment, findings.rows, PICTURES)

    @asynccontextmanager
    async def _traffic(self) -> AsyncIterator[asyncio.Task[None]]:
        """Everybody at work; yields the shop. Raises what one of them failed with while the broker ran."""
        target = self._broker.target
        self._shop.hurried = False
        subscribed = asyncio.Event()
        tasks = [
            asyncio.create_task(self._dashboard.run(target, subscribed)),
            asyncio.create_task(self._printer.run(target)),
            asyncio.create_task(self._desk.run(target)),
        ]
        waiting = asyncio.create_task(subscribed.wait())
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        shop = asyncio.create_task(self._shop.run(target))
        tasks.append(shop)
        try:
            yield shop
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        if not self._broker.is_running:
            return
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure

    async def _until(self, asked: Callable[[], T]) -> T:
        """Ask the broker, not our books, until it says something."""
        while True:
            if found := await asyncio.to_thread(asked):
                return found
            await asyncio.sleep(LOOK_EVERY_S)

    async def _watch(self) -> None:
        while True:
            self._screen.refresh()
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_empty(self) -> bool:
        """Whether the broker has nothing left to deliver or to hear of."""
        with self._broker.target.api() as api:
            found = api.get("/api/subscriptions")["subscriptions"]
        return not any(item["pending"] + item["deferred"] + item["in_flight"] for item in found)

    def _is_followed(self) -> bool:
        """Whether the broker has heard of every table's query."""
        with self._broker.target.api() as api:
            return len(api.get("/api/subscriptions")["readers"]) == len(TABLES)

    def _stored_payments(self) -> set[int]:
        """The transactions the log holds, looked at without consuming any."""
        with self._broker.target.api() as api:
            found = api.pages(f"/api/topics/{PAYMENTS}/messages", "messages", {}, limit=None)
            return {json.loads(message["text"])["n"] for message in found}

    def _dead_letters(self) -> list[dict[str, Any]]:
        with self._broker.target.api() as api:
            found: list[dict[str, Any]] = api.get("/api/dead-letters", {"topic": ORDERS})["dead_letters"]
        return found

    def _redrive(self, letter: dict[str, Any]) -> None:
        """Send it back: by a query over the table of dead letters, or without Spark by asking the broker."""
        if self._analysts is not None:
            analysts = self._analysts
            until(lambda: analysts.has_letter(letter["offset"]), TABLES_TIMEOUT_S)
            redriven = analysts.redrive(f"origin_topic = '{ORDERS}' AND reason = '{letter['reason']}'")
        else:
            with self._broker.target.api() as api:
                body = {"offsets": [letter["offset"]], "to": None}
                redriven = api.request("POST", "/api/dead-letters/redrive", body)["redriven"]
        if redriven != 1:
            raise Failure(f"the dead letter at offset {letter['offset']} was not redriven")

    def _lives(self, letter: dict[str, Any]) -> list[dict[str, Any]]:
        """The lives of the order that failed, of its redriven copy, and of the payment and label it led to."""
        with self._broker.target.api() as api:
            found = [api.get(f"/api/trace/{letter['origin_offset']}")]
            offsets = [step["copy_offset"] for step in found[0]["events"] if step["event"] == "redriven"]
            for topic in (PAYMENTS, LABELS):
                messages = api.pages(
                    f"/api/topics/{topic}/messages", "messages", {"from": letter["offset"]}, limit=None
                )
                offsets += [item["offset"] for item in messages if json.loads(item["text"])["order"] == BAD_ORDER]
            return found + [api.get(f"/api/trace/{offset}") for offset in offsets]
