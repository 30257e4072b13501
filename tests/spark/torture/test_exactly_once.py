"""Drivers, workers and the broker killed with -9 at random moments: afterwards every row is there, once.

HEADRACE_DRIVER_KILLS says how often (`make torture`: 20), HEADRACE_SEED replays a run's moments.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from headrace.feed.client import FeedClient
from headrace.feed.ticket import Ticket
from headrace.protocols.blipmq.client import BlipmqClient
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from tests.harness.lakeside import Lakeside

KILLS = int(os.environ.get("HEADRACE_DRIVER_KILLS", "5"))
SEED = int(os.environ.get("HEADRACE_SEED", "0")) or random.randrange(1, 1 << 31)
START_TIMEOUT_S = 180.0
BATCHES_MAX = 40
BATCH = 20

DRIVER = Path(__file__).with_name("driver.py")


class Customers:
    """Publishes orders and calls without an end, through whatever happens to the broker, and acks what it reads."""

    def __init__(self, broker: Lakeside) -> None:
        self._broker = broker
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._moved = threading.Condition()
        self._n = 0

    def __enter__(self) -> "Customers":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopping.set()
        self._thread.join()

    def serve(self, batches: int) -> None:
        """Return when so many more batches were published: a moment that nobody planned."""
        with self._moved:
            until = self._n + batches * BATCH
            assert self._moved.wait_for(lambda: self._n >= until, START_TIMEOUT_S)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(Exception):
                await self._shop()
            await self._pause(0.05)

    async def _pause(self, seconds: float) -> None:
        """Let Spark have the cores for a while."""
        await asyncio.to_thread(self._stopping.wait, seconds)

    async def _shop(self) -> None:
        served = self._broker.served
        async with (
            await BlipmqClient.connect(served.endpoints["blipmq"], self._broker.key) as blipmq,
            GrpcqClient(served.endpoints["grpc"], self._broker.key, timeout_s=2.0) as grpcq,
        ):
            orders = await blipmq.subscribe("orders")
            while not self._stopping.is_set():
                numbers = range(self._n, self._n + BATCH)
                with self._moved:
                    self._n += BATCH
                    self._moved.notify_all()
                await asyncio.wait_for(blipmq.publish_many("orders", [b"order %d" % n for n in numbers]), 2.0)
                await grpcq.publish("calls", [call(n) for n in numbers])
                for _ in numbers:
                    delivery = await asyncio.wait_for(anext(orders), 2.0)
                    await delivery.ack()
                await self._pause(0.1)


def call(number: int) -> Message:
    return Message(topic="shop.Orders", action="Place", payload=b"%d" % number, message_id=f"call-{number}")


@contextmanager
def driven(broker: Lakeside, lake: Path, how: str) -> "Iterator[subprocess.Popen[str]]":
    """The driver as a process with its JVM and workers; whatever is left of them ends with -9 at the same moment."""
    command = [sys.executable, str(DRIVER), broker.endpoint, broker.key, str(lake), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        for pid, _ in descendants(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until(process: "subprocess.Popen[str]", word: str) -> None:
    """Wait for the driver to say it."""
    assert process.stdout is not None
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        assert any(line.strip() == word for line in process.stdout), f"the driver ended before it was {word}"
    finally:
        timer.cancel()


def descendants(pid: int) -> list[tuple[int, str]]:
    """The processes below one, and all of the sessions those began, with their command lines."""
    below: dict[int, list[int]] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                _, parent, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                for above in {int(parent), int(session)}:
                    below.setdefault(above, []).append(int(entry.name))
                lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        children = [child for child in below.get(waiting.pop(), []) if child != pid and child not in found]
        waiting += children
        found |= {child: lines.get(child, "") for child in children}
    return list(found.items())


def kill_a_worker(process: "subprocess.Popen[str]", chance: random.Random) -> None:
    """End one of Spark's Python processes: a worker, one that plans, or what they are forked from."""
    workers = [pid for pid, line in descendants(process.pid) if "headrace.spark" in line and "java" not in line]
    if workers:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)


@pytest.mark.slow
def test_every_row_once_after_kills_of_everything(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"HEADRACE_SEED={SEED}")  # noqa: T201 - shown when the test fails
    broker, lake = Lakeside(tmp_path / "data"), tmp_path / "lake"
    broker.start()
    try:
        with Customers(broker) as customers:
            for number in range(KILLS):
                with driven(broker, lake, "forever") as driver:
                    until(driver, "begun" if number % 4 in (0, 3) and number else "running")
                    print(f"driver {number + 1} of {KILLS} runs")  # noqa: T201 - shown when the test fails
                    customers.serve(chance.randrange(BATCHES_MAX))
                    if number % 4 == 1:
                        kill_a_worker(driver, chance)
                        customers.serve(chance.randrange(BATCHES_MAX))
                    if number % 4 == 2:
                        broker.kill()
                        broker.start()
        with driven(broker, lake, "once") as driver:
            assert driver.wait(START_TIMEOUT_S) == 0
        with FeedClient(broker.endpoint, key=broker.key) as feed:
            check(feed, lake)
    finally:
        broker.close()


def check(feed: FeedClient, lake: Path) -> None:
    """Every table against the log, and the copies against the orders."""
    log = rows(feed, Ticket(columns=("offset", "topic", "value", "message_id")))
    orders, copies = ([r["value"] for r in log if r["topic"] == topic] for topic in ("orders", "copies"))
    assert copies == orders
    assert len(orders) >= BATCH * KILLS, "something was going on"
    messages = table(lake, "messages")
    end = max(row["offset"] for row in messages) + 1
    assert_same([row["offset"] for row in log if row["offset"] < end], [row["offset"] for row in messages])
    values = {row["offset"]: row["value"] for row in log}
    assert all(row["value"] == values[row["offset"]] for row in messages)
    assert orders[-1] in {row["value"] for row in messages}, "the table has caught up"
    check_events(feed, lake)
    calls = [row["message_id"] for row in log if row["topic"] == "calls"]
    assert_same(sorted(set(calls)), sorted(row["message_id"] for row in table(lake, "envelopes")))
    counted = Counter({row["topic"]: 0 for row in table(lake, "traffic")})
    for row in table(lake, "traffic"):
        counted[row["topic"]] += row["messages"]
    assert counted["orders"] == len(orders)
    assert counted["calls"] == len(calls)


def check_events(feed: FeedClient, lake: Path) -> None:
    """Events up to where the table has come."""
    events = [(row["offset"], row["message_offset"]) for row in table(lake, "events")]
    end = max(offset for offset, _ in events) + 1
    known = rows(feed, Ticket(stream="events", end=end, columns=("offset", "message_offset")))
    assert_same([(row["offset"], row["message_offset"]) for row in known], events)


def assert_same(expected: Sequence[Any], found: Sequence[Any]) -> None:
    """The same things, each as often."""
    missing, foreign = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    assert not missing, f"{missing.total()} missing, first {json.dumps(next(iter(missing)))}"
    assert not foreign, f"{foreign.total()} twice or unknown, first {json.dumps(next(iter(foreign)))}"


def rows(feed: FeedClient, ticket: Ticket) -> list[dict[str, Any]]:
    """All rows of a ticket."""
    found: list[dict[str, Any]] = pa.Table.from_batches(feed.read(ticket), feed.schema(ticket)).to_pylist()
    return found


def table(lake: Path, name: str) -> list[dict[str, Any]]:
    """A table as any reader of Parquet files sees it."""
    found: list[dict[str, Any]] = ds.dataset(lake / name, format="parquet", partitioning="hive").to_table().to_pylist()
    return found
