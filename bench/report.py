"""The results as a page: bench/results.md. Knows formatting only."""

from pathlib import Path

from bench.machine import Times
from bench.measure import Sample
from bench.plan import Figure, Scenario
from bench.results import Goal, Results, rate_text

HOW_TO_READ = """\
Each scenario runs its variants in turn, several times over, each time on a freshly started broker with an empty
directory, and keeps the best run of each: neighbours on the machine and the disk only ever slow things down, so the
best run says most about the program and the ratios between variants of one row say most of all. The load client is a
C program with one publishing and one consuming thread, in Python for QUIC and gRPC. It counts a message when the
broker has confirmed the last publish and the last acknowledgement, and it checks that every message came once and in
order. *durable* means that the broker confirms nothing before it is synced to disk. CPU is the broker's own time for
each message, or for each delivery where one message is delivered several times. What each scenario does:
`docs/benchmarks.md`.
"""
JETSTREAM_NOTE = """\
¹ This nats-server knows no `sync_interval: always` (2.10 and later do): JetStream's confirmations here promise less
than ours, which is in its favour.
"""


def markdown(results: Results) -> str:
    """The whole page."""
    parts = [
        "# Benchmark results\n",
        "Written by `make bench`; do not edit.\n",
        table(["", ""], [[key, value] for key, value in _machine(results).items()]),
        "\n![Messages per second by scenario and broker](results.png)\n",
        "## Goals\n",
        table(["goal", "measured", "target", ""], [goal_row(goal) for goal in results.goals()]),
        "\n## How to read it\n",
        HOW_TO_READ,
    ]
    if "¹" in results.titles.get("jetstream", ""):
        parts.append(JETSTREAM_NOTE)
    for name, variants in results.samples.items():
        scenario = results.scenarios[name]
        parts.append(f"\n## {scenario.title[0].upper()}{scenario.title[1:]}\n")
        rows = [_row(results, scenario, variant) for variant in variants]
        parts.append(table(_head(scenario), rows))
    if results.storage:
        parts += ["\n## A backlog: memory, restart, drain (durable, compiled)\n", _storage_table(results)]
    if results.failures:
        parts += ["\n## Runs that gave no figures\n", *(f"- {failure}\n" for failure in results.failures)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def write_report(results: Results, path: Path) -> None:
    """Write the page."""
    path.write_text(markdown(results))


def _machine(results: Results) -> dict[str, str]:
    disk = results.disk
    probes = {
        "disk, 4 KiB append + fdatasync, one each ms": disk.paced,
        "the same, counted from when it was due": disk.waited,
        "the same, back to back": disk.hurried,
    }
    return results.machine | {name: _times(times) for name, times in probes.items() if times}


def _times(times: Times) -> str:
    return f"p50 {_ms(times.quantile(0.5))}, p99 {_ms(times.quantile(0.99))} ({len(times)} syncs)"


def goal_row(goal: Goal) -> list[str]:
    """A goal as a row."""
    return [goal.title, goal.measured, goal.target, "met" if goal.met else "**missed**"]


def _head(scenario: Scenario) -> list[str]:
    match scenario.figure:
        case Figure.LATENCY:
            return ["broker", "p50", "p90", "p99", "p99.9", "max", "publish confirmed p99", "broker CPU"]
        case Figure.PUBLISHED if scenario.publishing:
            return ["broker", "published", "alone", "share", "confirmed p99", "broker CPU", "peak memory"]
        case Figure.PUBLISHED:
            return ["broker", "messages/s", "MB/s", "headrace is", "broker CPU", "spread", "peak memory"]
        case _:
            return ["broker", "messages/s", "MB/s", "headrace is", "broker CPU", "spread", "peak memory"]


def _row(results: Results, scenario: Scenario, variant: str) -> list[str]:
    sample = results.best(scenario.name, variant)
    assert sample is not None
    title = results.titles.get(variant, variant)
    if scenario.figure is Figure.LATENCY:
        times = [_ms(sample.latency_us[key]) for key in ("p50", "p90", "p99", "p999", "max")]
        return [title, *times, _ms(sample.confirm_us["p99"]), _ns(sample.broker_cpu_ns)]
    if scenario.publishing:
        return _busy_row(title, sample)
    value = sample.value(scenario.figure)
    ratio = results.ratio(scenario.name, "headrace", variant)
    runs = results.samples[scenario.name][variant]
    return [
        title,
        rate_text(value),
        f"{value * scenario.size / 1e6:.0f}",
        "" if variant == "headrace" or ratio is None else f"{ratio:.2g} ×" if ratio < 10 else f"{ratio:.0f} ×",
        _ns(sample.broker_cpu_ns),
        " ".join(rate_text(run.value(scenario.figure)).removesuffix("/s") for run in runs),
        f"{sample.resident_peak_mib:.0f} MiB",
    ]


def _busy_row(title: str, sample: Sample) -> list[str]:
    return [
        title,
        rate_text(sample.published_rate),
        rate_text(sample.published_alone_rate),
        f"{sample.published_rate / sample.published_alone_rate:.0%}",
        _ms(sample.confirm_us["p99"]),
        _ns(sample.broker_cpu_ns),
        f"{sample.resident_peak_mib:.0f} MiB",
    ]


def _storage_table(results: Results) -> str:
    head = ["backlog", "log", "memory empty", "filled", "restarted", "peak", "start empty", "after kill -9",
            "after stop", "stop", "drained"]  # fmt: skip
    rows = [
        [
            name,
            f"{sample.log_mib:.0f} MiB",
            f"{sample.resident_empty_mib:.0f} MiB",
            f"{sample.resident_mib:.0f} MiB",
            f"{sample.resident_restarted_mib:.0f} MiB",
            f"{sample.resident_peak_mib:.0f} MiB",
            f"{sample.start_empty_s:.2f} s",
            f"{sample.start_after_kill_s:.2f} s",
            f"{sample.start_after_stop_s:.2f} s",
            f"{sample.stop_s:.2f} s",
            rate_text(sample.drained_rate),
        ]
        for name, sample in results.storage.items()
    ]
    return table(head, rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of the page."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f} ms"


def _ns(ns: float) -> str:
    return f"{ns:.0f} ns"
