"""What makes a table of the pipeline: where its rows come from, what is done to them, how they are kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.spark.lake.table import TableSpec
from headrace.spark.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWN_TOPICS_LEFT_OUT = "[^$].*"
"""A pattern for all topics but the broker's own, those of dead letters and of redrives."""

Rows = Callable[["DataFrame", Settings], "DataFrame"]


def as_they_are(frame: "DataFrame", settings: Settings) -> "DataFrame":
    """Nothing is done to the rows."""
    return frame


@dataclass(frozen=True, kw_only=True)
class PipelineTable:
    """One table: the source's options, the way from its rows to the table's, and how the lake keeps them.

    `rows` is given a stream or, when a range is filled in later, a batch. A table that is `prompt` is written as fast
    as Spark can, the others now and then. The rows of an `aggregate` replace earlier ones with the same key. What a
    table with `large_state` has to remember grows with the traffic and is kept on disk.
    """

    spec: TableSpec
    source: Mapping[str, str]
    rows: Rows = as_they_are
    prompt: bool = False
    aggregate: bool = False
    large_state: bool = False

    @property
    def name(self) -> str:
        """The table's name."""
        return self.spec.name
