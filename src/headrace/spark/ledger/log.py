"""The log as Spark reads it through the feed, and which of its offsets are lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.spark.ledger.offsets import STRETCH, Run, holes, incomplete, joined, stretch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ALL_TOPICS = ".*"
RUNS_IN_CONDITION_MAX = 64


@dataclass(frozen=True, kw_only=True)
class Log:
    """The log of one broker as it was when its `span` was asked for; `options` say where the broker is."""

    spark: "SparkSession"
    options: Mapping[str, str]
    span: Run

    def messages(self, run: Run, columns: Sequence[str], pattern: str = ALL_TOPICS) -> "DataFrame":
        """Rows for the messages with offsets in the run."""
        return self._read(run, columns, {"stream": "messages", "subscribePattern": pattern})

    def events(self, run: Run, columns: Sequence[str]) -> "DataFrame":
        """Rows for the events with offsets in the run, one for each message an event is about."""
        return self._read(run, columns, {"stream": "events"})

    def _read(self, run: Run, columns: Sequence[str], chosen: Mapping[str, str]) -> "DataFrame":
        reader = self.spark.read.format("headrace").options(**self.options).options(**chosen)
        return (
            reader.option("columns", ",".join(columns))
            .option("startingOffsets", str(run.start))
            .option("endingOffsets", str(run.end))
            .option("failOnDataLoss", "false")
            .load()
        )


def stretch_of(column: str) -> "Column":
    """The number of the stretch an offset is in."""
    from pyspark.sql import functions as f

    return f.floor(f.col(column) / f.lit(STRETCH)).cast("long")


def lost(log: Log, run: Run) -> list[Run]:
    """The offsets of the run that neither a message nor an event has.

    Every offset is one or the other, so a gap is a record that is gone.
    """
    from pyspark.sql import functions as f

    if not run.size:
        return []
    events = log.events(run, ["offset"]).distinct()
    offsets = log.messages(run, ["offset"]).unionAll(events)
    counted = offsets.groupBy(stretch_of("offset").alias("stretch")).agg(f.count("*").alias("filled")).collect()
    empty, holed = incomplete(run, {row["stretch"]: row["filled"] for row in counted})
    found = list(empty)
    for number in holed:
        part = stretch(number, run)
        there = log.messages(part, ["offset"]).unionAll(log.events(part, ["offset"])).distinct().orderBy("offset")
        found += holes((row[0] for row in there.collect()), part)
    return joined(found)


def outside(rows: "DataFrame", column: str, runs: Sequence[Run]) -> "DataFrame":
    """The rows whose offset is in none of the runs."""
    from pyspark.sql import functions as f

    if not runs:
        return rows
    if len(runs) <= RUNS_IN_CONDITION_MAX:
        for run in runs:
            rows = rows.where(~f.col(column).between(run.start, run.end - 1) | f.col(column).isNull())
        return rows
    spark = rows.sparkSession
    table = f.broadcast(spark.createDataFrame(list(runs), "lost_start long, lost_end long"))
    inside = (rows[column] >= table["lost_start"]) & (rows[column] < table["lost_end"])
    return rows.join(table, inside, "left_anti")
