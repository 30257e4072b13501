"""What the pipeline's scenarios measured, and the goals they are held against. Knows no formatting of pages."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.results import Goal, rate_text

FRESH_P50_GOAL_S = 0.5
FRESH_P99_GOAL_S = 1.5
BACKFILL_GOAL = 500e3
SCAN_RATIO_GOAL = 0.6
WRITER_GOAL = 100e3
PUBLISH_SHARE_GOAL = 0.5
LATENCY_RATIO_GOAL = 5.0


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """How old rows were when they became visible in `messages`, at a fixed rate, after warming up.

    `seconds` is one line for each second of publishing: from the start, rows, p50 and p99 in seconds. `histogram`
    counts rows by steps of `step_s`. CPU is in cores, so 2.0 is all of a machine with two.
    """

    rate: int
    rows: int
    published: int
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    files: int
    step_s: float
    histogram: list[int]
    seconds: list[tuple[int, int, float, float]]
    cores: dict[str, float]
    confirm_p99_ms: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One timed run over so many rows: wall time, and the processor time of Spark and of the feed for it."""

    rows: int
    seconds: float
    spark_cpu_s: float
    feed_cpu_s: float
    broker_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def rate_per_core(self) -> float:
        """Rows a second of one core's time, all processes together."""
        return self.rows / max(self.spark_cpu_s + self.feed_cpu_s + self.broker_cpu_s, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Bytes a message takes in the log and in the table `messages`."""

    log_bytes: float
    lake_bytes: float


@dataclass(frozen=True, kw_only=True)
class Interference:
    """What publishers feel of a backfill: rate and p99 with nothing beside, and with backfills all the time."""

    idle_rate: float
    busy_rate: float
    idle_p99_ms: float
    busy_p99_ms: float
    backfilled_rate: float

    @property
    def share(self) -> float:
        """What is left of the publish rate."""
        return self.busy_rate / self.idle_rate

    @property
    def slowdown(self) -> float:
        """How many times the p99 grows."""
        return self.busy_p99_ms / self.idle_p99_ms


JOBS = ("backfill", "scan", "fed", "parquet", "writer")


@dataclass(kw_only=True)
class Figures:
    """Everything one invocation measured, all runs of it.

    `fed` are scans by tasks that do not read the log themselves: as on another machine.
    """

    machine: dict[str, str]
    freshness: list[Freshness] = field(default_factory=list)
    backfill: list[Run] = field(default_factory=list)
    scan: list[Run] = field(default_factory=list)
    fed: list[Run] = field(default_factory=list)
    parquet: list[Run] = field(default_factory=list)
    writer: list[Run] = field(default_factory=list)
    interference: list[Interference] = field(default_factory=list)
    stored: Stored | None = None
    failures: list[str] = field(default_factory=list)

    @property
    def freshest(self) -> Freshness | None:
        """The run with the lowest p99."""
        return min(self.freshness, key=lambda run: run.p99_s, default=None)

    @property
    def scan_ratio(self) -> float | None:
        """The data source's speed as a share of Spark's own Parquet scan; best run of each."""
        if not self.scan or not self.parquet:
            return None
        return fastest(self.scan).rate / fastest(self.parquet).rate

    def goals(self) -> list[Goal]:
        """Every target there are figures for."""
        return [*self._freshness_goals(), *self._rate_goals(), *self._interference_goals()]

    def write_json(self, path: Path) -> None:
        """Everything, for scripts."""
        document = {**asdict(self), "goals": [asdict(goal) for goal in self.goals()]}
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read_json(cls, path: Path) -> "Figures":
        """The inverse of `write_json`."""
        document = json.loads(path.read_text())
        stored = document["stored"]
        return cls(
            machine=document["machine"],
            freshness=[Freshness(**run) for run in document["freshness"]],
            stored=Stored(**stored) if stored else None,
            interference=[Interference(**run) for run in document["interference"]],
            failures=document["failures"],
            **{name: [Run(**run) for run in document[name]] for name in JOBS},
        )

    def _freshness_goals(self) -> list[Goal]:
        run = self.freshest
        if run is None:
            return []
        title = f"publish to row visible in `messages` at {run.rate // 1000} k messages/s"
        return [
            _at_most_s(f"{title}, p50", run.p50_s, FRESH_P50_GOAL_S),
            _at_most_s(f"{title}, p99", run.p99_s, FRESH_P99_GOAL_S),
        ]

    def _rate_goals(self) -> list[Goal]:
        goals = []
        if self.backfill:
            goals.append(_at_least("backfill from log to Parquet, 100 B", fastest(self.backfill).rate, BACKFILL_GOAL))
        if (ratio := self.scan_ratio) is not None:
            goals.append(
                Goal(
                    title="read through the data source, against Spark's own Parquet scan",
                    measured=f"{ratio:.0%} ({rate_text(fastest(self.scan).rate)} of "
                    f"{rate_text(fastest(self.parquet).rate)})",
                    target=f"≥ {SCAN_RATIO_GOAL:.0%}",
                    met=ratio >= SCAN_RATIO_GOAL,
                )
            )
        if self.writer:
            goals.append(_at_least("durable rows through the writer, 100 B", fastest(self.writer).rate, WRITER_GOAL))
        return goals

    def _interference_goals(self) -> list[Goal]:
        if not self.interference:
            return []
        fast = max(self.interference, key=lambda run: run.share)
        calm = min(self.interference, key=lambda run: run.slowdown)
        return [
            Goal(
                title="publish rate while a backfill runs, against idle",
                measured=f"{fast.share:.0%} ({rate_text(fast.busy_rate)} of {rate_text(fast.idle_rate)})",
                target=f"≥ {PUBLISH_SHARE_GOAL:.0%}",
                met=fast.share >= PUBLISH_SHARE_GOAL,
            ),
            Goal(
                title="p99 publish to deliver at 20 k/s while a backfill runs, against idle",
                measured=f"{calm.slowdown:.1f} × ({calm.busy_p99_ms:.2f} ms to {calm.idle_p99_ms:.2f} ms)",
                target=f"≤ {LATENCY_RATIO_GOAL:.0f} ×",
                met=calm.slowdown <= LATENCY_RATIO_GOAL,
            ),
        ]


def fastest(runs: Sequence[Run]) -> Run:
    """The run least disturbed by neighbours."""
    return max(runs, key=lambda run: run.rate)


def _at_least(title: str, rate: float, target: float) -> Goal:
    return Goal(title=title, measured=rate_text(rate), target=f"≥ {rate_text(target)}", met=rate >= target)


def _at_most_s(title: str, seconds: float, target_s: float) -> Goal:
    return Goal(title=title, measured=f"{seconds:.2f} s", target=f"≤ {target_s:.1f} s", met=seconds <= target_s)
