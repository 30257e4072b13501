"""What publishers feel while backfills run one after the other on the same cores."""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.pipeline.batch import fill
from bench.pipeline.figures import Interference
from bench.pipeline.stand import Stand

RATE = 20_000
"""Of the load under which latency is taken."""


def interference(spark: Any, stand: Stand, rows: int, seconds: float) -> Interference:
    """Rate and p99 idle, then with the log's first `rows` messages being filled in again and again."""
    idle_p99_ms, idle_rate = _p99_ms(stand, seconds), _publish_rate(stand, seconds)
    with _backfilling(spark, stand, rows) as done:
        busy_p99_ms, busy_rate = _p99_ms(stand, seconds), _publish_rate(stand, seconds)
    return Interference(
        idle_rate=idle_rate,
        busy_rate=busy_rate,
        idle_p99_ms=idle_p99_ms,
        busy_p99_ms=busy_p99_ms,
        backfilled_rate=done.rate,
    )


@dataclass
class _Progress:
    rows: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Rows a second of the backfills that ended."""
        return self.rows / self.seconds if self.seconds else 0.0


@contextmanager
def _backfilling(spark: Any, stand: Stand, rows: int) -> Iterator[_Progress]:
    """Backfills one after the other until this is left; the first has moved rows when it is entered."""
    progress, stopping, failures = _Progress(), threading.Event(), []
    begun = threading.Event()

    def _work() -> None:
        try:
            while not stopping.is_set():
                lake = Path(tempfile.mkdtemp(prefix="lake-", dir=stand.directory))
                began = time.perf_counter()
                begun.set()
                progress.rows += fill(spark, stand, lake, rows)
                progress.seconds += time.perf_counter() - began
                shutil.rmtree(lake, ignore_errors=True)
        except Exception as error:
            failures.append(error)
            begun.set()

    worker = threading.Thread(target=_work, name="backfills")
    worker.start()
    begun.wait()
    try:
        yield progress
    finally:
        stopping.set()
        worker.join()
    if failures:
        raise failures[0]


def _publish_rate(stand: Stand, seconds: float) -> float:
    printed = stand.load("--scenario", "publish", "--qos", "1", "--seconds", str(seconds))
    return float(printed["published"] / printed["publish_s"])


def _p99_ms(stand: Stand, seconds: float) -> float:
    """Taken once what others wrote before is on disk."""
    os.sync()
    printed = stand.load("--scenario", "latency", "--qos", "1", "--rate", str(RATE), "--seconds", str(seconds))
    return float(printed["latency_us"]["p99"] / 1e3)
