"""What a person sees while the benchmark runs: a bar in a terminal, plain lines elsewhere, a table at the end."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bench.plan import Figure
from bench.results import Goal, Results, rate_text

LOG_WIDTH = 140
console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)


class Steps(Protocol):
    """Tells of each step when it begins and when it ended."""

    def begin(self, what: str) -> None:
        """A step begins."""

    def end(self, what: str, outcome: str) -> None:
        """A step ended."""


class _Lines:
    """One line for each step, for logs."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def begin(self, what: str) -> None:
        """Says nothing: the line comes with the outcome."""

    def end(self, what: str, outcome: str) -> None:
        """Print the step's line."""
        self._done += 1
        print(f"[{self._done}/{self._total}] {what}: {outcome}", flush=True)


class _Bar:
    """A bar with the last outcomes above it."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=total)

    def begin(self, what: str) -> None:
        """Show what is running."""
        self._progress.update(self._task, description=what)

    def end(self, what: str, outcome: str) -> None:
        """Leave the outcome above the bar and move it."""
        self._progress.console.print(f"[dim]{what:<42}[/dim] {outcome}", highlight=False)
        self._progress.advance(self._task)


@contextmanager
def steps(total: int) -> Iterator[Steps]:
    """Progress over so many steps, as the output allows."""
    if not console.is_terminal:
        yield _Lines(total)
        return
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, total)


def summary(results: Results) -> None:
    """The figures with their ratios, then the goals."""
    table = Table("scenario", "broker", "best", "headrace is", "broker CPU", title="Best of all runs")
    for name, variants in results.samples.items():
        scenario = results.scenarios[name]
        for variant in variants:
            sample = results.best(name, variant)
            assert sample is not None
            value = sample.value(scenario.figure)
            latency = scenario.figure is Figure.LATENCY
            ratio = results.ratio(name, variant, "headrace") if latency else results.ratio(name, "headrace", variant)
            table.add_row(
                scenario.title,
                results.titles.get(variant, variant),
                f"p99 {value / 1e3:.2f} ms" if latency else rate_text(value),
                "" if ratio is None or variant == "headrace" else f"{ratio:.1f} ×",
                f"{sample.broker_cpu_ns:.0f} ns",
            )
        table.add_section()
    console.print(table)
    goals(results.goals(), results.failures)


def goals(reached: Sequence[Goal], failures: Sequence[str]) -> None:
    """The goals, met or missed, and what gave no figures."""
    table = Table("goal", "measured", "target", "", title="Goals")
    for goal in reached:
        table.add_row(goal.title, goal.measured, goal.target, "[green]met[/]" if goal.met else "[red]missed[/]")
    console.print(table)
    for failure in failures:
        console.print(f"[red]no figures:[/] {failure}", highlight=False)
