"""The demo's picture: traffic and latency second by second, drawn from the lake's tables, as PNG and in a page."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

    from headrace.spark.pipeline.settings import Settings

PNG, PAGE = "demo.png", "demo.html"
COLOURS = {"orders": "#2166ac", "payments": "#4dac26", "labels": "#b2abd2"}
OTHER = "#888888"
TEMPLATE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>headrace demo</title>
<style>body{{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}}img{{max-width:100%}}
td,th{{padding:.1rem 1rem .1rem 0;text-align:left}}td+td{{text-align:right}}</style>
<h1>headrace demo</h1>
<p>A shop's orders through four doors, as the tables of the lake tell it. The broker was killed where the line is.</p>
<img alt="messages a second by topic, and time from publish to ack" src="data:image/png;base64,{image}">
<table><tr><th>table</th><th>rows</th></tr>{rows}</table>
</html>
"""

Rows = Sequence[Mapping[str, object]]


def traffic(spark: "SparkSession", settings: "Settings") -> list[dict[str, object]]:
    """Messages of each second and topic."""
    found = spark.read.parquet(str(settings.lake / "messages")).selectExpr(
        "date_trunc('second', timestamp) AS second", "topic"
    )
    counted = found.where("NOT startswith(topic, '$')").groupBy("second", "topic").count().orderBy("second")
    return [row.asDict() for row in counted.collect()]


def latency(spark: "SparkSession", settings: "Settings") -> list[dict[str, object]]:
    """Milliseconds from publish to ack of each second, at the median and at the 99th percentile."""
    from pyspark.sql import functions as f

    acked = spark.read.parquet(str(settings.lake / "events")).where("event = 'acked' AND latency_ms IS NOT NULL")
    spread = acked.groupBy(f.date_trunc("second", "timestamp").alias("second")).agg(
        f.percentile_approx("latency_ms", 0.5).alias("p50"), f.percentile_approx("latency_ms", 0.99).alias("p99")
    )
    return [row.asDict() for row in spread.orderBy("second").collect()]


def draw(published: Rows, acked: Rows, killed: datetime, tables: Mapping[str, int], folder: Path) -> list[Path]:
    """Draw both and write them down; the files. None when matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return []
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 5.5), layout="constrained")
    began = min(_moment(row) for row in published)
    _traffic(above, published, began)
    _latency(below, acked, began)
    moment = (killed - began).total_seconds()
    for axes in (above, below):
        axes.axvline(moment, color="#b2182b", linewidth=1)
        axes.spines[["top", "right"]].set_visible(False)
    above.annotate("kill -9", (moment, above.get_ylim()[1]), ha="right", va="top", color="#b2182b")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / PNG, folder / PAGE]
    files[0].write_bytes(buffer.getvalue())
    files[1].write_text(_page(buffer.getvalue(), tables))
    return files


def _traffic(axes: "Axes", rows: Rows, began: datetime) -> None:
    topics = sorted({str(row["topic"]) for row in rows}, key=lambda topic: (topic not in COLOURS, topic))
    for topic in topics:
        own = {_second(row, began): float(str(row["count"])) for row in rows if row["topic"] == topic}
        if sum(own.values()) > 1:
            span = range(min(own), max(own) + 1)
            axes.plot(span, [own.get(second, 0.0) for second in span], color=COLOURS.get(topic, OTHER), label=topic)
    axes.set_ylabel("messages/s")
    axes.set_title("published, by topic", loc="left")
    axes.legend(frameon=False)


def _latency(axes: "Axes", rows: Rows, began: datetime) -> None:
    seconds = [_second(row, began) for row in rows]
    for name, style in (("p50", "-"), ("p99", ":")):
        axes.plot(seconds, [float(str(row[name])) for row in rows], style, color="#333333", label=name)
    axes.set_yscale("log")
    axes.set_ylabel("ms")
    axes.set_xlabel("seconds")
    axes.set_title("from publish to ack, all subscriptions", loc="left")
    axes.legend(frameon=False)


def _second(row: Mapping[str, object], began: datetime) -> int:
    return int((_moment(row) - began).total_seconds())


def _moment(row: Mapping[str, object]) -> datetime:
    second = row["second"]
    assert isinstance(second, datetime)
    return second


def _page(image: bytes, tables: Mapping[str, int]) -> str:
    rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{count:,}</td></tr>" for name, count in tables.items())
    return TEMPLATE.format(image=base64.b64encode(image).decode(), rows=rows)
