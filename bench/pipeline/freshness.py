"""How old rows are when they become visible in `messages`, while `headrace pipeline run` keeps all tables.

A file counts as visible when somebody who lists the table's folder sees it. Which rows it holds and when they were
published is read from the table afterwards; only files that a micro-batch brought count, not those compaction made.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from bench.measure import RunError
from bench.pipeline.figures import Freshness
from bench.pipeline.stand import Meter, Stand

LOOK_S = 0.005
STEP_S = 0.05
STEPS = 60
WARM_UP_S = 30.0
START_TIMEOUT_S = 300.0
CATCH_UP_S = 60.0
_FILE = re.compile(r"(\d{20})-(\d{20})-(\d+)-[0-9a-f]+\.parquet")


class Watch:
    """Sees files of a table come: the offsets they hold by their names, and when they were first listed."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._known: set[str] = set()
        self._rows: dict[int, tuple[int, int, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watch")
        self._reached = 0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def rows(self) -> int:
        """How many rows are visible."""
        return sum(count for _, count, _ in list(self._rows.values()))

    @property
    def files(self) -> list[tuple[int, int, float]]:
        """First and last offset of each file that brought new rows, and when it was seen, in the order of offsets."""
        return sorted((first, last, seen) for first, (last, _, seen) in self._rows.items())

    def _work(self) -> None:
        while not self._ended.wait(LOOK_S):
            for day in self._days():
                for entry in os.scandir(day):
                    if entry.name not in self._known and (found := _FILE.fullmatch(entry.name)):
                        self._see(entry.name, *map(int, found.groups()))

    def _days(self) -> list[str]:
        try:
            return [entry.path for entry in os.scandir(self._table) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def _see(self, name: str, first: int, last: int, rows: int) -> None:
        self._known.add(name)
        self._rows.setdefault(first, (last, rows, time.time()))


def freshness(stand: Stand, rate: int, seconds: float) -> Freshness:
    """Publish at this rate for WARM_UP_S and then so many seconds, and look at the table. Raises RunError."""
    lake = stand.directory / "lake"
    with Watch(lake / "messages") as watch, _pipeline(stand, lake) as pipeline:
        stand.load("--scenario", "publish", "--qos", "1", "--rate", str(rate), "--count", str(rate))
        _wait_for_rows(watch, rate, START_TIMEOUT_S)
        meter = Meter(broker=stand.server.process.pid, feed=stand.feed_pid, spark=pipeline.pid)
        began = time.time()
        duration = WARM_UP_S + seconds
        loaded = stand.load("--scenario", "publish", "--qos", "1", "--rate", str(rate), "--seconds", str(duration))
        elapsed = time.time() - began
        cores = {name: used / elapsed for name, used in meter.read().items()}
        published = rate + loaded["published"]
        _wait_for_rows(watch, published, CATCH_UP_S)
        files = watch.files
    ages, moments = _ages(lake / "messages", files)
    if len(ages) != published:
        raise RunError(f"{published} messages were published, the table has {len(ages)}")
    counted = moments >= began + WARM_UP_S
    return _figures(rate, published, files, ages[counted], moments[counted] - began, cores, loaded)


@contextmanager
def _pipeline(stand: Stand, lake: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """`headrace pipeline run` with everything as it is by default."""
    command = [sys.executable, "-m", "headrace", "pipeline", "run", "--json"]
    command += ["--data-dir", str(stand.data_dir), "--lake", str(lake)]
    log = stand.directory / "pipeline.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    if code:
        raise RunError(f"the pipeline ended with {code}: {_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("{")]
    return " / ".join(lines[-3:])


def _wait_for_rows(watch: Watch, rows: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while watch.rows < rows:
        if time.monotonic() > deadline:
            raise RunError(f"the table has {watch.rows} of {rows} rows after {timeout_s:.0f} s")
        time.sleep(0.05)


def _ages(table: Path, files: list[tuple[int, int, float]]) -> tuple[Any, Any]:
    """Of every row how old it was when it became visible, and when it was published, both in seconds."""
    rows = ds.dataset(table, partitioning="hive").to_table(columns=["offset", "timestamp"]).combine_chunks()
    offsets = rows["offset"].to_numpy()
    moments = rows["timestamp"].cast(pa.int64()).to_numpy() / 1e6
    firsts, lasts, seen = (np.array(column) for column in zip(*files, strict=True))
    places = np.searchsorted(firsts, offsets, side="right") - 1
    if not bool((lasts[places] >= offsets).all()):
        raise RunError("the table has rows that no file brought")
    return seen[places] - moments, moments


def _figures(
    rate: int, published: int, files: list[tuple[int, int, float]], ages: Any, since: Any,
    cores: dict[str, float], loaded: dict[str, Any],
) -> Freshness:  # fmt: skip
    p50, p90, p99 = (float(value) for value in np.percentile(ages, [50, 90, 99]))
    counts, _ = np.histogram(np.minimum(ages, STEP_S * STEPS - 1e-9), bins=STEPS, range=(0.0, STEP_S * STEPS))
    lines = []
    for second in np.unique(since.astype(int)):
        chosen = ages[since.astype(int) == second]
        low, high = np.percentile(chosen, [50, 99])
        lines.append((int(second), len(chosen), round(float(low), 4), round(float(high), 4)))
    return Freshness(
        rate=rate,
        rows=len(ages),
        published=published,
        p50_s=p50,
        p90_s=p90,
        p99_s=p99,
        max_s=float(ages.max()),
        files=len(files),
        step_s=STEP_S,
        histogram=[int(count) for count in counts],
        seconds=lines,
        cores={name: round(value, 3) for name, value in cores.items()},
        confirm_p99_ms=loaded["confirm_us"]["p99"] / 1e3,
    )
