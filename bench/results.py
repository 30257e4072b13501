"""Everything one invocation measured, and the goals it is held against. Knows no formatting."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.machine import DiskTimes
from bench.measure import Sample, best
from bench.plan import Scenario
from bench.storage import StorageSample

DURABLE_GOAL = 1.5e6
INTERPRETED_GOAL = 0.4e6
NOT_DURABLE_GOAL = 2.5e6
PUBLISH_GOAL = 3e6
SSPQ_PUBLISH_GOAL = 0.3e6
SSPQ_ROUND_TRIPS_GOAL = 8e3
FUJIN_QUIC_GOAL = 50e3
FUJIN_TLS_GOAL = 500e3
FUJIN_BIG_SIZE, FUJIN_BIG_MB_S_GOAL = 65535, 60
GRPCQ_PUBLISH_GOAL = 100e3
GRPCQ_STREAM_GOAL = 50e3
KIBIBYTE_MB_S_GOAL = 300
PEER_RATIO_GOAL = 10
LATENCY_RATIO_GOAL = 3
RESIDENT_GOAL_MIB = 400
SLOWDOWN_GOAL = 0.5
START_GOAL_S = 2
START_EMPTY_GOAL_S = 1
GIBIBYTE_MIB = 1000


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One target of the project: what was measured, what it had to be, whether it is."""

    title: str
    measured: str
    target: str
    met: bool


@dataclass(kw_only=True)
class Results:
    """Samples by scenario and variant, storage figures by name, and what failed."""

    machine: dict[str, str]
    disk: DiskTimes = field(default_factory=DiskTimes)
    scenarios: dict[str, Scenario] = field(default_factory=dict)
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    storage: dict[str, StorageSample] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, scenario: Scenario, variant: str, sample: Sample) -> None:
        """Keep one run."""
        self.scenarios[scenario.name] = scenario
        self.samples.setdefault(scenario.name, {}).setdefault(variant, []).append(sample)

    def best(self, scenario: str, variant: str) -> Sample | None:
        """The best run of a variant in a scenario, None when there is none."""
        found = self.samples.get(scenario, {}).get(variant)
        return best(found, self.scenarios[scenario].figure) if found else None

    def value(self, scenario: str, variant: str) -> float | None:
        """The best run's figure."""
        sample = self.best(scenario, variant)
        return sample.value(self.scenarios[scenario].figure) if sample else None

    def ratio(self, scenario: str, ours: str, theirs: str) -> float | None:
        """How many times faster `ours` is than `theirs`."""
        first, second = self.value(scenario, ours), self.value(scenario, theirs)
        return first / second if first and second else None

    def goals(self) -> list[Goal]:
        """Every target this run has figures for."""
        return [goal for check in _CHECKS for goal in check(self)]

    def write_json(self, path: Path) -> None:
        """Every sample, for scripts."""
        document = {
            "machine": self.machine,
            "disk_sync_us": {
                name: {"p50": times.quantile(0.5), "p99": times.quantile(0.99)}
                for name, times in vars(self.disk).items()
            },
            "scenarios": {
                name: {
                    "title": self.scenarios[name].title,
                    "figure": self.scenarios[name].figure.value,
                    "variants": {key: [asdict(sample) for sample in runs] for key, runs in variants.items()},
                }
                for name, variants in self.samples.items()
            },
            "storage": {name: asdict(sample) for name, sample in self.storage.items()},
            "goals": [asdict(goal) for goal in self.goals()],
            "failures": self.failures,
        }
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def rate_text(rate: float) -> str:
    """A rate as people say it: 1.62 M/s, 94 k/s."""
    return f"{rate / 1e6:.2f} M/s" if rate >= 1e6 else f"{rate / 1e3:.0f} k/s"


def _at_least(title: str, rate: float | None, target: float) -> list[Goal]:
    if rate is None:
        return []
    return [Goal(title=title, measured=rate_text(rate), target=f"≥ {rate_text(target)}", met=rate >= target)]


def _throughput(results: Results) -> list[Goal]:
    return [
        *_at_least("durable end to end, 100 B, compiled", results.value("e2e-100", "headrace"), DURABLE_GOAL),
        *_at_least(
            "durable end to end, 100 B, interpreted", results.value("e2e-100", "headrace-pure"), INTERPRETED_GOAL
        ),
        *_at_least("end to end, 100 B, sync none", results.value("e2e-100", "headrace-nosync"), NOT_DURABLE_GOAL),
        *_at_least("durable publish alone, 100 B", results.value("publish-100", "headrace"), PUBLISH_GOAL),
        *_at_least("SSPQ: durable SENDs, 100 B", results.value("sspq-publish-100", "sspq"), SSPQ_PUBLISH_GOAL),
        *_at_least(
            "SSPQ: round trips on one connection", results.value("sspq-round-trips", "sspq"), SSPQ_ROUND_TRIPS_GOAL
        ),
        *_at_least("grpcq: batched publish", results.value("grpcq-publish-100", "grpcq"), GRPCQ_PUBLISH_GOAL),
        *_at_least("grpcq: one stream with acks", results.value("grpcq-stream", "grpcq"), GRPCQ_STREAM_GOAL),
    ]


def _fujin(results: Results) -> list[Goal]:
    goals = [
        *_at_least(
            "Fujin over QUIC: durable WRITEs, 100 B", results.value("fujin-publish-100", "fujin"), FUJIN_QUIC_GOAL
        ),
        *_at_least("Fujin over QUIC: push with ACKs, 100 B", results.value("fujin-push", "fujin"), FUJIN_QUIC_GOAL),
        *_at_least(
            "Fujin over TLS: durable WRITEs, 100 B", results.value("fujin-publish-100", "fujin-tcp"), FUJIN_TLS_GOAL
        ),
    ]
    rate = results.value(f"fujin-publish-{FUJIN_BIG_SIZE}", "fujin")
    if rate is not None:
        goals.append(_mb_s("Fujin over QUIC: durable WRITEs, 64 KiB", rate * FUJIN_BIG_SIZE / 1e6, FUJIN_BIG_MB_S_GOAL))
    return goals


def _mb_s(title: str, measured: float, target: float) -> Goal:
    return Goal(title=title, measured=f"{measured:.0f} MB/s", target=f"≥ {target} MB/s", met=measured >= target)


def _kibibytes(results: Results) -> list[Goal]:
    sample = results.best("e2e-1024", "headrace")
    if sample is None:
        return []
    return [_mb_s("durable end to end, 1 KiB", sample.delivered_mb_s, KIBIBYTE_MB_S_GOAL)]


def _peers(results: Results) -> list[Goal]:
    goals = []
    for peer, least in (("redis-always", PEER_RATIO_GOAL), ("jetstream", PEER_RATIO_GOAL), ("nats-core", 1)):
        ratio = results.ratio("e2e-100", "headrace", peer)
        if ratio is not None:
            title = f"end to end, 100 B, against {results.titles.get(peer, peer)}"
            goals.append(Goal(title=title, measured=f"{ratio:.1f} ×", target=f"≥ {least} ×", met=ratio >= least))
    return goals


def _latency(results: Results) -> list[Goal]:
    measured, disk = results.value("latency-20k", "headrace"), results.disk.paced.quantile(0.99)
    if measured is None or not disk:
        return []
    hurried = measured / results.disk.hurried.quantile(0.99)
    return [
        Goal(
            title="p99 publish to deliver at 20 k/s, against the disk's own p99 sync, one each ms",
            measured=f"{measured / disk:.2f} × ({measured / 1e3:.2f} ms to {disk / 1e3:.2f} ms; "
            f"{hurried:.2f} × that of syncs back to back)",
            target=f"≤ {LATENCY_RATIO_GOAL} ×",
            met=measured <= LATENCY_RATIO_GOAL * disk,
        )
    ]


def _slowdown(results: Results) -> list[Goal]:
    sample = results.best("drain-busy", "headrace")
    if sample is None:
        return []
    share = sample.published_rate / sample.published_alone_rate
    return [
        Goal(
            title="publish rate while a backlog drains, against publishing alone",
            measured=f"{share:.0%} ({rate_text(sample.published_rate)} of {rate_text(sample.published_alone_rate)})",
            target=f"≥ {SLOWDOWN_GOAL:.0%}",
            met=share >= SLOWDOWN_GOAL,
        )
    ]


def _storage(results: Results) -> list[Goal]:
    goals = []
    for name, sample in results.storage.items():
        goals.append(
            Goal(
                title=f"resident memory, {name}, the most at any time",
                measured=f"{sample.resident_peak_mib:.0f} MiB",
                target=f"< {RESIDENT_GOAL_MIB} MiB",
                met=sample.resident_peak_mib < RESIDENT_GOAL_MIB,
            )
        )
        if sample.log_mib >= GIBIBYTE_MIB:
            slowest = max(sample.start_after_kill_s, sample.start_after_stop_s)
            goals.append(
                Goal(
                    title=f"start-up on {name}, after kill -9 or a clean stop",
                    measured=f"{slowest:.2f} s",
                    target=f"< {START_GOAL_S} s",
                    met=slowest < START_GOAL_S,
                )
            )
    if results.storage:
        quickest = min(sample.start_empty_s for sample in results.storage.values())
        goals.append(
            Goal(
                title="start-up to ready on an empty data directory",
                measured=f"{quickest:.2f} s",
                target=f"< {START_EMPTY_GOAL_S} s",
                met=quickest < START_EMPTY_GOAL_S,
            )
        )
    return goals


_CHECKS: tuple[Callable[[Results], list[Goal]], ...] = (
    _throughput,
    _fujin,
    _kibibytes,
    _peers,
    _latency,
    _slowdown,
    _storage,
)
