"""`dead_letters`: what the broker gave up delivering, from where and why, and whether it was sent back since.

A row for each dead letter by its own offset. The broker marks letters as redriven by messages of `$redriven` whose
value is their offsets; such a mark changes the letter's row.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.model.names import REDRIVEN_TOPIC
from headrace.spark.lake.table import TableSpec
from headrace.spark.marks import letters_in
from headrace.spark.pipeline.definition import PipelineTable
from headrace.spark.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

pc: Any = pyarrow.compute
UNFOLDED = (
    "offset long, timestamp timestamp, topic string, protocol string, message_id string, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, redriven boolean, redriven_at timestamp"
)
_ORIGIN = {
    "origin_topic": ("headrace-origin-topic", "string"),
    "origin_offset": ("headrace-origin-offset", "long"),
    "subscription": ("headrace-origin-subscription", "string"),
    "attempts": ("headrace-attempts", "int"),
    "reason": ("headrace-reason", "string"),
}
_ORIGIN_HEADERS = [name for name, _ in _ORIGIN.values()]


def unfolded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Dead letters as they are; instead of each mark, a row for each letter it is about, otherwise empty."""
    for batch in batches:
        is_mark = pc.equal(batch.column("topic"), REDRIVEN_TOPIC)
        letters = batch.filter(pc.invert(is_mark))
        marks = batch.filter(is_mark)
        yield _shaped(letters, {name: letters.column(name) for name in letters.schema.names}, letters.num_rows)
        if marks.num_rows:
            named, rows = letters_in(marks)
            when = marks.column("timestamp").take(pa.array(rows))
            columns = {"offset": pa.array(named), "redriven": pa.repeat(True, len(named)), "redriven_at": when}
            yield _shaped(marks, columns, len(named))


def dead_letters(frame: "DataFrame", settings: Settings) -> "DataFrame":
    """Letters with their origin as columns, and marks."""
    from pyspark.sql import functions as f

    def _header(name: str, kind: str) -> "Column":
        found = f.filter("headers", lambda header: header["key"] == name)
        return f.element_at(f.transform(found, lambda header: header["value"].cast("string")), -1).try_cast(kind)

    return frame.mapInArrow(unfolded, UNFOLDED).select(
        "offset", "timestamp", "topic",
        *(_header(*header).alias(column) for column, header in _ORIGIN.items()),
        "protocol", "message_id", "key", "value",
        f.filter("headers", lambda header: ~header["key"].isin(_ORIGIN_HEADERS)).alias("headers"),
        "redriven", "redriven_at",
    )  # fmt: skip


def _shaped(batch: pa.RecordBatch, columns: dict[str, Any], rows: int) -> pa.RecordBatch:
    """The source's columns, then the two about redriving; those that are missing are null."""
    kinds: dict[str, Any] = {each.name: each.type for each in batch.schema}
    kinds |= {"redriven": pa.bool_(), "redriven_at": kinds["timestamp"]}
    return pa.record_batch({name: columns.get(name, pa.nulls(rows, kind)) for name, kind in kinds.items()})


TABLE = PipelineTable(
    spec=TableSpec(
        name="dead_letters", time=None, keys=("offset",), defaults={"redriven": False}, required="topic"
    ),
    source={
        "subscribePattern": r"\$dead\..*|\$redriven",
        "columns": "offset,timestamp,topic,protocol,message_id,key,value,headers",
    },
    rows=dead_letters,
)  # fmt: skip
