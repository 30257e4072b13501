"""Redrive: dead letters, chosen by SQL over the lake's table of them, sent back where they came from.

The broker marks a letter in the record that holds its copy, and leaves out copies of letters that are marked, so none
is sent twice, whoever redrives. Letters known to be marked are left out here already.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.model.names import REDRIVEN_TOPIC, dead_topic
from headrace.spark.back.journey import Choice
from headrace.spark.back.plan import Wish
from headrace.spark.back.query import edited, matching, parse_edit, read_table
from headrace.spark.back.shape import ORIGIN_HEADERS, REDRIVEN_FROM, messages
from headrace.spark.marks import COLUMNS, letters_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND = "redrive"
TABLE = "dead_letters"


@dataclass(frozen=True, kw_only=True)
class Redrive:
    """Dead letters of one topic, or of all, for which `where` holds go to `to`, or back where they came from."""

    where: str | None = None
    topic: str | None = None
    to: str | None = None
    edits: Sequence[str] = ()

    @property
    def condition(self) -> str:
        """Which letters, as one condition."""
        parts = [f"({self.where}\n)"] if self.where else []
        if self.topic is not None:
            parts.append(f"topic = {quoted(dead_topic(self.topic))}")
        return " AND ".join(parts) or "true"

    @property
    def wish(self) -> Wish:
        """What is kept of it in the lake."""
        return Wish(kind=KIND, table=TABLE, where=self.condition, edits=tuple(self.edits), to=self.to)

    def choose(self, spark: "SparkSession", lake: Path, options: Mapping[str, str], earliest: int) -> Choice:
        """The letters that can be sent back, and the messages they become.

        Letters below offset `earliest`, which the log has no more, cannot be marked; nor can those be sent that do not
        say where they came from, unless a topic is named. Raises BadQuery and LakeError.
        """
        from pyspark.sql import functions as f

        table = read_table(spark, lake, TABLE)
        found = matching(table, self.condition)
        waiting = found.where((f.col("offset") >= earliest) & ~f.coalesce("redriven", f.lit(False)))
        rows = waiting.join(marked(spark, options, earliest), "offset", "left_anti")
        target = f.lit(self.to) if self.to is not None else f.col("origin_topic")
        if self.to is None:
            rows = rows.where(f.coalesce("origin_topic", f.lit("")) != "")
        changed = edited(rows, [parse_edit(text) for text in self.edits])
        sent = messages(changed, target, REDRIVEN_FROM, ORIGIN_HEADERS)
        return Choice(table=table, rows=rows, messages=sent.withColumn("redriven_from", f.col("offset")))


def marked(spark: "SparkSession", options: Mapping[str, str], earliest: int) -> "DataFrame":
    """The offsets of the dead letters that were redriven, as the log tells."""
    marks = (
        spark.read.format("headrace")
        .options(**options, subscribe=REDRIVEN_TOPIC, columns=",".join(COLUMNS), startingOffsets=str(earliest))
        .option("failOnDataLoss", "false")
        .load()
    )
    return marks.mapInArrow(offsets_in, "offset long")


def offsets_in(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The offsets of the dead letters that marks name."""
    for batch in batches:
        letters, _ = letters_in(batch)
        yield pa.record_batch({"offset": pa.array(letters)})


def quoted(text: str) -> str:
    """The text as a literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
