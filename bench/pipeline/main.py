"""Runs the pipeline's scenarios and writes bench/pipeline/results.{md,json,png}."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from bench import show
from bench.machine import describe
from bench.measure import RunError
from bench.pipeline import scale
from bench.pipeline.batch import Batches, session
from bench.pipeline.figures import Figures, Freshness, Interference, Run
from bench.pipeline.freshness import freshness
from bench.pipeline.interference import interference
from bench.pipeline.page import write_page
from bench.pipeline.picture import draw
from bench.pipeline.stand import Stand, stand
from bench.process import StartError
from bench.results import rate_text
from headrace.spark.session import give_way

OUTPUT = Path(__file__).resolve().parent
NAMES = ("freshness", "backfill", "scan", "writer", "interference")
PREFIX = "pipeline-"
RATE = 20_000
_ABSENT = ("packages", "Redis", "NATS")
"""Lines about the machine that concern other benchmarks."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured, how often and how long."""

    names: tuple[str, ...] = NAMES
    rows: int = 5_000_000
    written_rows: int = 2_000_000
    repeats: int = 3
    fresh_s: float = 60.0
    busy_s: float = 4.0

    @property
    def steps(self) -> int:
        """How many measurements that makes."""
        return sum(
            {"freshness": 1, "scan": 2 * self.scans + self.repeats}.get(name, self.repeats) for name in self.names
        )

    @property
    def scans(self) -> int:
        """Twice as many as of other jobs: the JVM compiles for longer what has many columns."""
        return 2 * self.repeats


FULL = Plan()
QUICK = Plan(rows=1_000_000, written_rows=500_000, repeats=2, fresh_s=15.0, busy_s=2.0)


def chosen(only: Sequence[str] | None) -> tuple[str, ...]:
    """The scenarios that names on the command line mean: all without any, else those that begin so."""
    return tuple(name for name in NAMES if not only or f"{PREFIX}{name}".startswith(tuple(only)))


class Bench:
    """One invocation: runs the plan, keeps the figures."""

    def __init__(self, plan: Plan, program: Path, scratch: Path, steps: show.Steps) -> None:
        self._plan, self._program, self._scratch, self._steps = plan, program, scratch, steps
        machine = {name: text for name, text in describe(scratch).items() if name not in _ABSENT}
        self.figures = Figures(machine=machine | {"Spark": f"{version('pyspark')}, pyarrow {version('pyarrow')}"})

    def run(self) -> None:
        """Measure everything; a scenario that fails is reported and the rest goes on."""
        try:
            if "freshness" in self._plan.names:
                with stand(self._program, self._scratch) as broker:
                    self._freshness(broker)
            if set(self._plan.names) - {"freshness"}:
                with stand(self._program, self._scratch) as broker, session(self._scratch) as spark:
                    count = str(self._plan.rows)
                    rows = broker.load("--scenario", "publish", "--qos", "1", "--count", count)["published"]
                    self._batches(Batches(spark, broker, rows))
                    self._interference(spark, broker, rows)
        except (RunError, StartError) as error:
            self.figures.failures.append(str(error))

    def _freshness(self, broker: Stand) -> None:
        run = self._step("freshness", lambda: freshness(broker, RATE, self._plan.fresh_s))
        if run is not None:
            self.figures.freshness.append(run)

    def _batches(self, batches: Batches) -> None:
        figures, plan = self.figures, self._plan
        if "backfill" in plan.names:
            for turn in range(plan.repeats):
                self._timed(figures.backfill, f"backfill {turn + 1}", batches.backfill)
            figures.stored = batches.stored(plan.written_rows // 4)
        if "scan" in plan.names:
            with batches.parquet() as parquet:
                for turn in range(plan.scans):
                    self._timed(figures.scan, f"scan {turn + 1}, data source", batches.scan)
                    self._timed(figures.parquet, f"scan {turn + 1}, Parquet", parquet)
            for turn in range(plan.repeats):
                self._timed(figures.fed, f"scan {turn + 1}, through the feed", lambda: batches.scan(near=False))
        if "writer" in plan.names:
            for turn in range(plan.repeats):
                self._timed(figures.writer, f"writer {turn + 1}", lambda: batches.write(plan.written_rows))

    def _interference(self, spark: Any, broker: Stand, rows: int) -> None:
        if "interference" not in self._plan.names:
            return
        give_way(spark, broker_here=True)
        for turn in range(self._plan.repeats):
            job = lambda: interference(spark, broker, rows, self._plan.busy_s)  # noqa: E731
            run = self._step(f"interference {turn + 1}", job)
            if run is not None:
                self.figures.interference.append(run)

    def _timed(self, kept: list[Run], what: str, job: Callable[[], Run]) -> None:
        run = self._step(what, job)
        if run is not None:
            kept.append(run)

    def _step(self, what: str, job: Callable[[], T]) -> T | None:
        self._steps.begin(what)
        try:
            done = job()
        except (RunError, AssertionError) as error:
            self.figures.failures.append(f"{what}: {error}")
            self._steps.end(what, f"failed: {error}")
            return None
        self._steps.end(what, _outcome(done))
        return done


def _outcome(done: object) -> str:
    match done:
        case Run():
            return rate_text(done.rate)
        case Freshness():
            return f"p50 {done.p50_s:.2f} s, p99 {done.p99_s:.2f} s"
        case Interference():
            return f"{done.share:.0%} of the rate, {done.slowdown:.1f} × the p99"
        case _:
            return ""


def run_pipeline(plan: Plan, program: Path, data_dir: Path, output: Path = OUTPUT) -> bool:
    """Measure and write everything; whether every scenario gave figures."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir) as scratch, show.steps(plan.steps) as steps:
        bench = Bench(plan, program, Path(scratch), steps)
        bench.run()
    figures = bench.figures
    show.goals(figures.goals(), figures.failures)
    output.mkdir(parents=True, exist_ok=True)
    figures.write_json(output / "results.json")
    draw(figures, output / "results.png")
    write_page(figures, output / "results.md")
    print(f"written: {output}/results.md, results.json, results.png")
    if output == OUTPUT:
        scale.update()
    return not figures.failures


def planned(*, quick: bool, only: Sequence[str] | None, repeats: int | None) -> Plan:
    """The plan the command line asks for; without names when it asks for other benchmarks."""
    plan = replace(QUICK if quick else FULL, names=chosen(only))
    return replace(plan, repeats=repeats) if repeats else plan
