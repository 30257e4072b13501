"""kill -9 of broker or feed while drivers commit, again and again on one data directory: each row is there once.

`make test` runs 8 cycles; `make torture` more (HEADRACE_KILL_CYCLES, a twelfth of them here).
"""

import os
import random
import signal
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.feed.client import FeedClient, FeedError
from headrace.feed.ticket import Ticket
from tests.e2e.test_transactions import feed_pid
from tests.harness.served import Served, served

CYCLES = int(os.environ.get("HEADRACE_KILL_CYCLES", "96")) // 12
TOPIC = "torture"
PARTS = 3
SIZES = (10, 10, 10, 2_000, 200_000)
"""Bytes of a row: with the last a batch takes several records."""
ROWS = 20


class Driver:
    """Commits one batch after the other, and after a crash whatever it has no answer for."""

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.answered = -1
        self.begun = -1

    def run(self, endpoint: str) -> None:
        """Work until the broker is gone for good."""
        chance = random.Random(self.answered)
        with FeedClient(endpoint, key="dev-key", retry_s=3.0) as client:
            try:
                last = client.committed(self.writer)
                assert last is None or self.answered <= last <= self.begun, "an answer was forgotten"
                while True:
                    self.step(client, chance)
            except FeedError as error:
                if error.code not in ("unavailable", "internal", "draining"):
                    raise

    def step(self, client: FeedClient, chance: random.Random) -> None:
        batch = self.answered if self.answered >= 0 and chance.random() < 0.2 else self.answered + 1
        self.begun = max(self.begun, batch)
        staged = [client.stage(self.writer, batch, f"{part}", TOPIC, self.rows(batch, part)) for part in range(PARTS)]
        outcome = client.commit(self.writer, batch, staged)
        assert outcome["replayed"] or batch > self.answered, "a batch was written twice"
        self.answered = max(self.answered, batch)

    def rows(self, batch: int, part: int) -> list[pa.RecordBatch]:
        size = SIZES[batch % len(SIZES)]
        columns: dict[str, list[Any]] = {
            "value": [b"." * size] * ROWS,
            "key": [f"{self.writer} {batch} {part} {row}".encode() for row in range(ROWS)],
        }
        return [pa.record_batch(columns)]

    def keys(self, batches: int) -> set[bytes]:
        """The keys of everything committed up to, not including, a batch."""
        return {
            f"{self.writer} {batch} {part} {row}".encode()
            for batch in range(batches)
            for part in range(PARTS)
            for row in range(ROWS)
        }


def stored(broker: Served) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with FeedClient(broker.endpoints["flight"], key="dev-key") as client:
        for batch in client.read(Ticket(topics=(TOPIC,), columns=("key",))):
            found.update(batch.column("key").to_pylist())  # type: ignore[arg-type]
    return found


def test_each_row_is_there_once_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(0)
    drivers = [Driver("one"), Driver("two")]
    for cycle in range(CYCLES):
        with served(tmp_path, LISTEN__FLIGHT="127.0.0.1:0") as broker, ThreadPoolExecutor() as load:
            work = [load.submit(driver.run, broker.endpoints["flight"]) for driver in drivers]
            if cycle % 3 == 2:
                wait(work, timeout=chance.uniform(0.1, 1.0), return_when=FIRST_COMPLETED)
                os.kill(feed_pid(broker), signal.SIGKILL)
            wait(work, timeout=chance.uniform(0.1, 2.0), return_when=FIRST_COMPLETED)
            broker.process.kill()
            for task in work:
                task.result()
    with served(tmp_path, LISTEN__FLIGHT="127.0.0.1:0") as broker:
        with FeedClient(broker.endpoints["flight"], key="dev-key") as client:
            last = [client.committed(driver.writer) for driver in drivers]
        ends = [0 if batch is None else batch + 1 for batch in last]
        found = stored(broker)
        assert set(found.values()) <= {1}, "a row is there twice"
        wanted = set[bytes]().union(*(driver.keys(end) for driver, end in zip(drivers, ends, strict=True)))
        assert set(found) == wanted
        assert all(driver.answered < end for driver, end in zip(drivers, ends, strict=True))
        assert list((tmp_path / "staging").glob("*.manifest")) == []
    assert all(driver.answered > 0 for driver in drivers)
