"""The figures as a picture: bench/pipeline/results.png. Knows drawing only."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.pipeline.figures import FRESH_P50_GOAL_S, FRESH_P99_GOAL_S, Figures, Freshness, fastest
from bench.results import rate_text

OURS, SPARK, GOAL = "#0b5fa5", "#d98880", "#444444"


def draw(figures: Figures, path: Path) -> None:
    """Freshness over time, its distribution, and the batch jobs."""
    figure, (over_time, spread, rates) = plt.subplots(1, 3, figsize=(18, 4.6), layout="constrained")
    fresh = figures.freshest
    if fresh is None:
        over_time.axis("off")
        spread.axis("off")
    else:
        _over_time(fresh, over_time)
        _distribution(fresh, spread)
    _rates(figures, rates)
    machine = figures.machine
    figure.suptitle(f"The pipeline on one machine: {machine['processor']}, {machine['date']}", fontsize=13)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _over_time(run: Freshness, axes: Axes) -> None:
    seconds = [line[0] for line in run.seconds]
    axes.plot(seconds, [line[2] for line in run.seconds], color=OURS, label="p50")
    axes.plot(seconds, [line[3] for line in run.seconds], color=OURS, alpha=0.45, label="p99")
    _goals(axes.axhline)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    _finish(axes, f"Publish to row visible, {rate_text(run.rate)}, second by second", "s since publishing began", "s")


def _distribution(run: Freshness, axes: Axes) -> None:
    edges = [index * run.step_s for index in range(len(run.histogram))]
    share = [100 * count / run.rows for count in run.histogram]
    last = max((index for index, count in enumerate(run.histogram) if count), default=0)
    limit = max(edges[last] + 2 * run.step_s, FRESH_P99_GOAL_S + run.step_s)
    axes.bar(edges, share, width=run.step_s, align="edge", color=OURS)
    _goals(axes.axvline)
    axes.set_xlim(0, limit)
    title = f"Its distribution: p50 {run.p50_s:.2f} s, p99 {run.p99_s:.2f} s, max {run.max_s:.2f} s"
    _finish(axes, title, "age of a row when it becomes visible, s", "% of rows")


def _goals(line: Callable[..., object]) -> None:
    for goal, style, name in ((FRESH_P50_GOAL_S, ":", "p50"), (FRESH_P99_GOAL_S, "--", "p99")):
        line(goal, color=GOAL, linestyle=style, linewidth=1, label=f"goal for {name}")


def _rates(figures: Figures, axes: Axes) -> None:
    jobs = {
        "writer": figures.writer,
        "backfill": figures.backfill,
        "data source": figures.scan,
        "Spark's Parquet scan": figures.parquet,
    }
    rates = {name: fastest(runs).rate for name, runs in jobs.items() if runs}
    bars = axes.barh(list(rates), list(rates.values()), color=[SPARK if "Spark" in name else OURS for name in rates])
    axes.bar_label(bars, labels=[rate_text(rate) for rate in rates.values()], padding=3, fontsize=9)
    axes.set_xlim(0, max(rates.values(), default=1.0) * 1.2)
    _finish(axes, "Batch jobs, 100 B", "rows a second", "")


def _finish(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel(up, fontsize=9)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
