"""The figures as a page: bench/pipeline/results.md. Knows formatting only."""

from collections.abc import Sequence
from pathlib import Path

from bench.pipeline.figures import Figures, Freshness, Run, fastest
from bench.report import goal_row, table
from bench.results import rate_text

INTRODUCTION = """\
What each scenario does, and why it is measured so, is said in `docs/benchmarks.md`. Rates are the best of all runs,
which are under *spread*; a ratio compares best runs of the same invocation. *CPU* is processor time of all processes
together (JVM, Python workers, feed, broker) for each row: neighbours on the machine hardly change it, so it says most.
"""


def write_page(figures: Figures, path: Path) -> None:
    """Write the page."""
    path.write_text(page(figures))


def page(figures: Figures) -> str:
    """The whole page."""
    parts = [
        "# Pipeline results\n",
        "Written by `make bench`; do not edit.\n",
        table(["", ""], [[name, text] for name, text in figures.machine.items()]),
        "\n![Freshness over time and its distribution; rates of the batch jobs](results.png)\n",
        "## Goals\n",
        table(["goal", "measured", "target", ""], [goal_row(goal) for goal in figures.goals()]),
        "\n## How to read it\n",
        INTRODUCTION,
    ]
    if (fresh := figures.freshest) is not None:
        parts += ["\n## Freshness\n", _fresh_table(fresh)]
    if rows := _batch_rows(figures):
        parts += ["\n## Batch jobs\n", table(["job", "rows", "rows/s", "MB/s", "CPU", "spread"], rows)]
    if figures.stored is not None:
        stored = f"{figures.stored.log_bytes:.0f} B in the log, {figures.stored.lake_bytes:.0f} B in the lake"
        parts += [
            "\n## Storage\n",
            f"A message of 100 B takes {stored} (Parquet, zstd; the load client's values repeat).\n",
        ]
    if figures.interference:
        parts += ["\n## The broker while backfills run\n", _interference_table(figures)]
    if figures.failures:
        parts += ["\n## What gave no figures\n", *(f"- {failure}\n" for failure in figures.failures)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _fresh_table(run: Freshness) -> str:
    head = ["rate", "rows", "p50", "p90", "p99", "max", "files", "publish confirmed p99", *run.cores]
    times = [f"{value:.2f} s" for value in (run.p50_s, run.p90_s, run.p99_s, run.max_s)]
    cores = [f"{value:.2f} cores" for value in run.cores.values()]
    row = [f"{rate_text(run.rate)}", str(run.rows), *times, str(run.files), f"{run.confirm_p99_ms:.1f} ms", *cores]
    return table(head, [row])


def _batch_rows(figures: Figures) -> list[list[str]]:
    jobs: list[tuple[str, Sequence[Run]]] = [
        ("backfill, log to Parquet", figures.backfill),
        ("scan through the data source", figures.scan),
        ("the same through the feed, as from another machine", figures.fed),
        ("scan of the same rows in Parquet, by Spark alone", figures.parquet),
        ("writer, durable", figures.writer),
    ]
    return [_batch_row(title, runs) for title, runs in jobs if runs]


def _batch_row(title: str, runs: Sequence[Run]) -> list[str]:
    best = fastest(runs)
    cpu = min(1e9 / run.rate_per_core for run in runs)
    spread = " ".join(rate_text(run.rate).removesuffix("/s") for run in runs)
    return [title, str(best.rows), rate_text(best.rate), f"{best.rate * 100 / 1e6:.0f}", f"{cpu:.0f} ns", spread]


def _interference_table(figures: Figures) -> str:
    rows = [
        [
            rate_text(run.idle_rate), rate_text(run.busy_rate), f"{run.share:.0%}", f"{run.idle_p99_ms:.2f} ms",
            f"{run.busy_p99_ms:.2f} ms", f"{run.slowdown:.1f} ×", rate_text(run.backfilled_rate),
        ]
        for run in figures.interference
    ]  # fmt: skip
    return table(["published idle", "beside", "share", "p99 idle", "beside", "ratio", "backfilled meanwhile"], rows)
