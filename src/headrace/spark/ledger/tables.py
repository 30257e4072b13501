"""A table of the lake against the log: the same rows, each once, with the same content.

Both sides are counted and hashed by stretches of offsets first. Where a stretch differs, and only there, rows are
compared one by one, so a table in order costs one pass over either side and no join of the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.feed.schema import STREAMS
from headrace.spark.back.query import read_table, stored_files
from headrace.spark.lake.table import LakeError
from headrace.spark.ledger.log import Log, outside, stretch_of
from headrace.spark.ledger.offsets import STRETCH, Run
from headrace.spark.ledger.rules import Fault
from headrace.spark.pipeline.positions import position

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLES = ("messages", "events")
DERIVED = {"messages": frozenset[str](), "events": frozenset({"topic", "subscription", "latency_ms"})}
"""Columns the feed makes from other records, which may be gone by now: they are not compared."""

BEHIND = -1
"""In place of a stretch's number: what the table has not come to."""


class _Count(NamedTuple):
    expected: int
    found: int
    same: bool


@dataclass(frozen=True, kw_only=True)
class TableCheck:
    """What came out for one table.

    `expected` and `found` are the rows of the log and of the table up to where the table has come, `behind` those of
    the log it has not come to. `saved` are rows of offsets that the log lost, `kept` rows the log forgot by retention.
    """

    table: str
    expected: int
    found: int
    behind: int
    saved: int
    kept: int
    faults: dict[Fault, int] = field(default_factory=dict)
    misfits: "DataFrame | None" = None

    @property
    def balanced(self) -> bool:
        """Whether the table holds what the log holds."""
        return not self.faults


def require_tables(lake: Path) -> None:
    """Raises LakeError unless every table that is compared is in the lake, or about to be."""
    for name in TABLES:
        if position(lake, name) is None:
            stored_files(lake, name)


def check_table(log: Log, lake: Path, name: str, run: Run, lost: Sequence[Run]) -> TableCheck:
    """Compare a table's rows with the log's, for the offsets in the run.

    Where the table's query has come to is asked first; its rows up to there were in the table before.
    """
    reached = position(lake, name)
    try:
        stored = read_table(log.spark, lake, name)
    except LakeError:
        if reached is None:
            raise
        stored = _nothing(log.spark, name)
    if reached is None:
        reached = _end(stored)
    part = Run(run.start, max(run.start, min(run.end, reached)))
    columns = [column for column in STREAMS[name].names if column in stored.columns and column not in DERIVED[name]]
    ours = _hashed(_stream(log, name, run, columns), columns)
    theirs = _hashed(outside(_within(stored, part), "offset", lost), columns)
    counts = _compared(ours, theirs, part.end)
    differing = sorted(number for number, count in counts.items() if not count.same and number != BEHIND)
    misfits = _one_by_one(log.spark, _within(ours, part), theirs, differing).persist() if differing else None
    return TableCheck(
        table=name,
        expected=sum(count.expected for number, count in counts.items() if number != BEHIND),
        found=sum(count.found for count in counts.values()),
        behind=counts[BEHIND].expected if BEHIND in counts else 0,
        saved=sum(_within(stored, each).count() for each in lost),
        kept=stored.where(stored["offset"] < log.span.start).count() if run.start == log.span.start > 0 else 0,
        faults=_counted(misfits),
        misfits=misfits,
    )


def _stream(log: Log, name: str, run: Run, columns: Sequence[str]) -> "DataFrame":
    return log.messages(run, columns) if name == "messages" else log.events(run, columns)


def _nothing(spark: "SparkSession", name: str) -> "DataFrame":
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame([], from_arrow_schema(STREAMS[name]))


def _end(stored: "DataFrame") -> int:
    from pyspark.sql import functions as f

    row = stored.agg(f.max("offset")).head()
    return 0 if row is None or row[0] is None else int(row[0]) + 1


def _within(rows: "DataFrame", run: Run) -> "DataFrame":
    return rows.where((rows["offset"] >= run.start) & (rows["offset"] < run.end))


def _hashed(rows: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """The rows' offsets, each with a hash of the whole row."""
    from pyspark.sql import functions as f

    content = [f.coalesce(f.hash(f.col(name).isNull()), f.lit(0)) for name in columns if name != "offset"]
    return rows.select("offset", f.xxhash64(*columns, *content).alias("hash"))


def _summed(rows: "DataFrame", by: "Column") -> "DataFrame":
    """How many rows there are, and one number for all of their hashes in any order."""
    from pyspark.sql import functions as f

    return rows.groupBy(by).agg(
        f.count("*").alias("rows"),
        f.bit_xor("hash").alias("mixed"),
        f.sum(f.col("hash").bitwiseAND(f.lit(0xFFFFFFFF))).alias("summed"),
    )


def _compared(ours: "DataFrame", theirs: "DataFrame", reached: int) -> dict[int, _Count]:
    """How many rows either side has in each stretch below an offset, and whether they are the same; BEHIND it, ours."""
    from pyspark.sql import functions as f

    below = f.when(f.col("offset") < reached, stretch_of("offset")).otherwise(f.lit(BEHIND))
    left = _summed(ours, below.alias("stretch")).alias("l")
    right = _summed(theirs, stretch_of("offset").alias("stretch")).alias("r")
    same = f.lit(True)
    for name in ("rows", "mixed", "summed"):
        same = same & f.col(f"l.{name}").eqNullSafe(f.col(f"r.{name}"))
    both = left.join(right, "stretch", "full_outer").select(
        "stretch", f.coalesce("l.rows", f.lit(0)), f.coalesce("r.rows", f.lit(0)), same
    )
    return {row[0]: _Count(*row[1:]) for row in both.collect()}


def _one_by_one(spark: "SparkSession", ours: "DataFrame", theirs: "DataFrame", stretches: Sequence[int]) -> "DataFrame":
    """Every offset of these stretches whose rows are not the same on both sides, and why."""
    from pyspark.sql import functions as f

    chosen = f.broadcast(spark.createDataFrame([(number,) for number in stretches], "stretch long"))
    run = Run(stretches[0] * STRETCH, (stretches[-1] + 1) * STRETCH)

    def _part(rows: "DataFrame", name: str) -> "DataFrame":
        part = _within(rows, run).withColumn("stretch", stretch_of("offset")).join(chosen, "stretch", "left_semi")
        return _summed(part, f.col("offset")).alias(name)

    both = _part(ours, "l").join(_part(theirs, "r"), "offset", "full_outer")
    expected, found = f.coalesce("l.rows", f.lit(0)), f.coalesce("r.rows", f.lit(0))
    differs = ~(f.col("l.mixed").eqNullSafe(f.col("r.mixed")) & f.col("l.summed").eqNullSafe(f.col("r.summed")))
    fault = (
        f.when(expected == 0, Fault.FOREIGN)
        .when(found < expected, Fault.MISSING)
        .when(found > expected, Fault.TWICE)
        .when(differs, Fault.DIFFERS)
    )
    return both.select("offset", fault.alias("fault")).where("fault IS NOT NULL")


def _counted(misfits: "DataFrame | None") -> dict[Fault, int]:
    if misfits is None:
        return {}
    return {Fault(row["fault"]): row["count"] for row in misfits.groupBy("fault").count().collect()}
