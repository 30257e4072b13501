"""Rows on their way back into topics, as the commands show them: what would go, what goes, what went."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.cli.output import Column, Meter, Output, progress
from headrace.cli.render import clipped, duration, number, payload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.back.journey import Choice, Preview, Sent
    from headrace.spark.back.plan import Plan, Wish
    from headrace.spark.pipeline.settings import Settings

PREVIEW = 80
KEY_PREVIEW = 20
PLAIN_S = 5.0
RETRY_S = 60.0

FIRST = (
    Column(key="offset", right=True),
    Column(key="topic", title="to"),
    Column(key="key", show=lambda key: "-" if key is None else clipped(payload(bytes(key)), KEY_PREVIEW)),
    Column(key="value", show=lambda value: "-" if value is None else clipped(payload(bytes(value)), PREVIEW)),
)


def show_preview(output: Output, found: "Preview", rate: int | None) -> None:
    """What would be sent: the first rows, and how many there are of each topic."""
    if output.as_json:
        first = [
            {"offset": row["offset"], "to": row["topic"], "value": payload(bytes(row["value"] or b""))}
            for row in found.first
        ]
        topics = [{"from": source, "to": target, "rows": rows} for source, target, rows in found.topics]
        output.json({"rows": found.rows, "topics": topics, "first": first})
        return
    output.rows(FIRST, found.first, empty="No row is chosen; nothing would be sent.")
    for source, target, rows in found.topics:
        output.note(f"{number(rows)} of {source} would go to {target}")
    if found.rows:
        takes = f", in about {duration(found.rows / rate)}" if rate else ""
        output.note(f"{number(found.rows)} would be sent{takes}; nothing was done.")


def ship(
    output: Output,
    settings: "Settings",
    spark: "SparkSession",
    wish: "Wish",
    choose: "Callable[[], Choice]",
    *,
    identity: str | None,
    rate: int | None,
) -> "Sent | None":
    """Send what is wished for, with a progress bar in a terminal and lines elsewhere."""
    from headrace.spark.back.journey import travel
    from headrace.spark.back.sending import Broker

    broker = Broker(options=settings.connection(), client=settings.client(retry_s=RETRY_S))
    with _Watching(output) as watching:
        return travel(
            spark, settings.lake, wish, choose, broker,
            identity=identity, rate=rate, began=watching.began, told=watching.told,
        )  # fmt: skip


class _Watching(ExitStack):
    """Tells how a plan is coming along: a bar where somebody watches, else a line now and then."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output
        self._meter: Meter | None = None
        self._rows = 0
        self._due_s = 0.0

    def began(self, plan: "Plan", resumed: bool) -> None:
        """The plan is known."""
        self._rows = plan.rows
        self._due_s = time.monotonic() + PLAIN_S
        kind = plan.wish.kind
        again = ", begun before" if resumed else ""
        chunks = f"{number(len(plan.chunks))} {'chunk' if len(plan.chunks) == 1 else 'chunks'}"
        self._output.note(f"{kind} {plan.id}: {number(plan.rows)} rows in {chunks}{again}")
        if sys.stderr.isatty():
            self._meter = self.enter_context(progress(kind, plan.rows, unit="rows"))

    def told(self, rows: int) -> None:
        """So many rows are sent."""
        if self._meter is not None:
            self._meter(rows)
        elif time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + PLAIN_S
            self._output.note(f"{number(rows)} of {number(self._rows)} rows sent")
