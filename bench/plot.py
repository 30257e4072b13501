"""The results as a picture: bench/results.png, one panel for each question. Knows drawing only."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from bench.plan import Figure
from bench.results import Results, rate_text

COLOURS = {
    "headrace": "#0b5fa5",
    "headrace-pure": "#6fa8d6",
    "headrace-nosync": "#7fb685",
    "sspq": "#0b5fa5",
    "sspq-pure": "#6fa8d6",
    "grpcq": "#0b5fa5",
    "grpcq-pure": "#6fa8d6",
    "grpcq-unary": "#7fb685",
    "redis-always": "#c0392b",
    "redis-everysec": "#d98880",
    "redis-none": "#e6b8b2",
    "jetstream": "#7d3c98",
    "nats-core": "#bb8fce",
}
COLUMNS = 2
PANEL_SIZE = (8.0, 3.1)
_PERCENTILES = ("p50", "p99", "p999")


def draw(results: Results, path: Path) -> None:
    """One panel per scenario with several variants, bars longest first, a log scale since brokers differ tenfold."""
    names = [name for name, variants in results.samples.items() if len(variants) > 1]
    if not names:
        return
    rows = -(-len(names) // COLUMNS)
    size = (PANEL_SIZE[0] * COLUMNS, PANEL_SIZE[1] * rows + 0.6)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=size, squeeze=False, layout="constrained")
    panels = list(grid.flat)
    for name, axes in zip(names, panels, strict=False):
        if results.scenarios[name].figure is Figure.LATENCY:
            _latency_panel(results, name, axes)
        else:
            _rate_panel(results, name, axes)
    for axes in panels[len(names) :]:
        axes.axis("off")
    machine = results.machine
    figure.suptitle(f"headrace and its peers on one machine: {machine['processor']}, {machine['date']}", fontsize=13)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _rate_panel(results: Results, name: str, axes: Axes) -> None:
    values = {variant: results.value(name, variant) or 0.0 for variant in results.samples[name]}
    order = sorted(values, key=lambda variant: values[variant])
    bars = axes.barh(
        [_title(results, variant) for variant in order],
        [values[variant] for variant in order],
        color=[COLOURS.get(variant, "#888888") for variant in order],
    )
    axes.bar_label(bars, labels=[rate_text(values[variant]) for variant in order], padding=3, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(min(values.values()) / 3, max(values.values()) * 4)
    scenario = results.scenarios[name]
    _finish(axes, scenario.title, f"{scenario.figure.value} (log scale)")


def _latency_panel(results: Results, name: str, axes: Axes) -> None:
    variants = list(results.samples[name])
    height = 0.8 / len(_PERCENTILES)
    for index, percentile in enumerate(_PERCENTILES):
        values = [_latency(results, name, variant, percentile) for variant in variants]
        places = [row + (index - 1) * height for row in range(len(variants))]
        bars = axes.barh(
            places, values, height=height, color=[COLOURS.get(variant, "#888888") for variant in variants],
            alpha=1.0 - 0.3 * index,
        )  # fmt: skip
        label = percentile.replace("p999", "p99.9")
        axes.bar_label(bars, labels=[f"{label} {value:.2f} ms" for value in values], padding=3, fontsize=7)
    disk = results.disk.paced.quantile(0.99) / 1e3
    if disk:
        axes.axvline(disk, color="#444444", linestyle="--", linewidth=1, label=f"disk sync p99 {disk:.2f} ms")
        axes.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1.0, 1.16), frameon=False)
    axes.set_yticks(range(len(variants)), [_title(results, variant) for variant in variants])
    axes.invert_yaxis()
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * 4)
    _finish(axes, results.scenarios[name].title, "ms from due to delivered (log scale)")


def _latency(results: Results, name: str, variant: str, percentile: str) -> float:
    sample = results.best(name, variant)
    return sample.latency_us[percentile] / 1e3 if sample else 0.0


def _title(results: Results, variant: str) -> str:
    return results.titles.get(variant, variant).replace("¹", "")


def _finish(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(labelsize=9)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
