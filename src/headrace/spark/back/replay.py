"""Replay: rows of a table, chosen and edited by SQL, published to a topic again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.back.journey import Choice
from headrace.spark.back.plan import Wish
from headrace.spark.back.query import BadQuery, edited, matching, parse_edit, read_table
from headrace.spark.back.shape import REPLAYED_FROM, messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "replay"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Rows of `table` for which `where` holds go to the topic `to`, with `edits` (column = expression) applied."""

    table: str
    where: str
    to: str
    edits: Sequence[str] = ()

    @property
    def wish(self) -> Wish:
        """What is kept of it in the lake."""
        return Wish(kind=KIND, table=self.table, where=self.where, edits=tuple(self.edits), to=self.to)

    def choose(self, spark: "SparkSession", lake: Path) -> Choice:
        """The rows and the messages they become.

        Raises BadQuery for SQL that Spark does not take and for a table that has no messages, LakeError.
        """
        from pyspark.sql import functions as f

        table = read_table(spark, lake, self.table)
        rows = matching(table, self.where)
        changed = edited(rows, [parse_edit(text) for text in self.edits])
        missing = [name for name in ("offset", "value") if name not in changed.columns]
        if missing:
            raise BadQuery(
                f"rows of {self.table} are no messages: there is no column {' or '.join(missing)}. "
                f"The columns are {', '.join(table.columns)}."
            )
        if "topic" not in rows.columns:
            rows = rows.withColumn("topic", f.lit(self.table))
        return Choice(table=table, rows=rows, messages=messages(changed, f.lit(self.to), REPLAYED_FROM))
