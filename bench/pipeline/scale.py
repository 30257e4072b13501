"""The arithmetic of docs/scale.md, from what was measured: one block of the page, written and checked by machines."""

import json
from collections.abc import Sequence
from pathlib import Path

from bench.pipeline.figures import Figures, Run, fastest
from bench.report import table
from bench.results import rate_text

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "scale.md"
FIGURES = Path(__file__).with_name("results.json")
BROKER_FIGURES = ROOT / "bench" / "results.json"
BEGIN, END = "<!-- figures: written by make bench, do not edit -->", "<!-- end of figures -->"
TARGET = 1_000_000
DAY_S = 86_400
TERABYTE = 1e12
PAST_THE_FEED_NS = 10
"""A job that takes less of the feed's time for a row did not go through it."""


def update(page: Path = PAGE) -> None:
    """Put the figures of the last full run into the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{block(Figures.read_json(FIGURES), broker_ns(BROKER_FIGURES))}{END}{after}")


def block(figures: Figures, broker_cpu_ns: float) -> str:
    """What the page says in figures; `broker_cpu_ns` is the broker's time for one published message."""
    parts = [_measured(figures), _cores(figures, broker_cpu_ns), _limits(figures, broker_cpu_ns), _storage(figures)]
    return "\n" + "\n".join(parts) + "\n"


def broker_ns(path: Path) -> float:
    """The broker's processor time for one durable message of 100 B, from its own benchmark."""
    runs = json.loads(path.read_text())["scenarios"]["publish-100"]["variants"]["headrace"]
    return float(min(run["broker_cpu_ns"] for run in runs))


def _measured(figures: Figures) -> str:
    jobs = _jobs(figures)
    rows = [[title, rate_text(fastest(runs).rate), *_cpu(_leanest(runs))] for title, runs in jobs.items()]
    machine = figures.machine
    lead = f"Measured on {machine['processor']}, {machine['date']}, commit {machine['commit']}; messages of 100 B.\n\n"
    head = ["job", "rows/s, all cores", "rows/s for each core", "Spark's time a row", "the feed's", "the broker's"]
    text = lead + table(head, rows)
    if (fresh := figures.freshest) is not None:
        cores = ", ".join(f"{name} {value:.2f}" for name, value in fresh.cores.items())
        text += (
            f"\nAll tables kept up to date at {rate_text(fresh.rate)}: rows visible after {fresh.p50_s:.2f} s (p50) "
            f"and {fresh.p99_s:.2f} s (p99); cores used: {cores}.\n"
        )
    return text


def _cores(figures: Figures, broker_cpu_ns: float) -> str:
    """Cores for TARGET messages a second."""
    rows = [["broker: publish, durable", _of_target(broker_cpu_ns)]]
    for title, runs in _jobs(figures).items():
        run = _leanest(runs)
        rows.append([f"{title}: Spark", _of_target(_ns(run.spark_cpu_s, run))])
        rows.append([f"{title}: feed and broker", _of_target(_ns(run.feed_cpu_s + run.broker_cpu_s, run))])
    return f"Cores for {rate_text(TARGET)}, each job by itself:\n\n" + table(["work", "cores"], rows)


def _limits(figures: Figures, broker_cpu_ns: float) -> str:
    """What one core of each part can do, the narrowest first."""
    limits = {"broker, publishing (one process)": 1e9 / broker_cpu_ns}
    for title, runs in _jobs(figures).items():
        run = _leanest(runs)
        limits[f"Spark, {title}"] = run.rows / run.spark_cpu_s
        if _ns(run.feed_cpu_s, run) >= PAST_THE_FEED_NS:
            limits[f"feed, {title}"] = run.rows / run.feed_cpu_s
    ordered = sorted(limits.items(), key=lambda item: item[1])
    return "What one core of each part can do, the narrowest first:\n\n" + table(
        ["part", "messages/s"], [[name, rate_text(rate)] for name, rate in ordered]
    )


def _storage(figures: Figures) -> str:
    if figures.stored is None:
        return ""
    stored = {"log": figures.stored.log_bytes, "lake, table `messages`": figures.stored.lake_bytes}
    rows = [
        [place, f"{size:.0f} B", f"{size * TARGET / 1e6:.0f} MB/s", f"{size * TARGET * DAY_S / TERABYTE:.1f} TB"]
        for place, size in stored.items()
    ]
    head = ["where", "a message", f"at {rate_text(TARGET)}", "a day"]
    return "Storage, values that cannot be compressed:\n\n" + table(head, rows)


def _jobs(figures: Figures) -> dict[str, list[Run]]:
    jobs = {
        "read": figures.scan,
        "read from elsewhere": figures.fed,
        "backfill": figures.backfill,
        "write": figures.writer,
    }
    return {title: runs for title, runs in jobs.items() if runs}


def _leanest(runs: Sequence[Run]) -> Run:
    """The run that took the least processor time a row."""
    return max(runs, key=lambda run: run.rate_per_core)


def _cpu(run: Run) -> list[str]:
    times = [f"{_ns(seconds, run):.0f} ns" for seconds in (run.spark_cpu_s, run.feed_cpu_s, run.broker_cpu_s)]
    return [rate_text(run.rate_per_core), *times]


def _ns(seconds: float, run: Run) -> float:
    return seconds / run.rows * 1e9


def _of_target(ns: float) -> str:
    return f"{ns * TARGET / 1e9:.2f}"


if __name__ == "__main__":
    update()
