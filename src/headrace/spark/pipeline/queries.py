"""One streaming query for one table: from the broker's log into the lake."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.lake.commit import commit, note_last
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.sink import FORMAT, LakeSink
from headrace.spark.lake.staging import stage
from headrace.spark.lake.stores import open_store
from headrace.spark.pipeline.definition import PipelineTable
from headrace.spark.pipeline.envelopes import SOURCE
from headrace.spark.pipeline.handlers import NAME as HANDLERS
from headrace.spark.pipeline.handlers import Call, Handler, handled
from headrace.spark.pipeline.positions import position
from headrace.spark.pipeline.settings import READER_PREFIX, Settings
from headrace.spark.source.source import HeadraceSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


STAGGER = 0.07
STATE_ON_DISK: Mapping[str, str] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Message ids of ten minutes at 20,000 a second are 12 million: too many for a driver's heap."""


def register(spark: "SparkSession") -> None:
    """Make the lake's sink known to a session."""
    spark.dataSource.register(LakeSink)


def start_query(
    spark: "SparkSession", table: PipelineTable, settings: Settings, *, once: bool, place: int = 0
) -> "StreamingQuery":
    """Start filling the table from where its checkpoint is; `once` ends when it has caught up.

    Spark begins batches at multiples of their interval. `place` makes the interval a little longer, so that tables do
    not all begin at the same moments.
    """
    checkpoint = Layout(settings.lake).checkpoint(table.name)
    _own_pool(spark, table.name)
    writer = (
        table.rows(followed(spark, table, settings), settings)
        .writeStream.queryName(table.name)
        .option("checkpointLocation", str(checkpoint))
    )
    if table.aggregate:
        writer = writer.outputMode("update").foreachBatch(_replacing(table, settings, checkpoint))
    else:
        writer = writer.format(FORMAT).options(**sink_options(table, settings))
    pause_s = settings.prompt_every_s if table.prompt else settings.every_s * (1 + STAGGER * place)
    return _started(spark, writer, None if once else pause_s, STATE_ON_DISK if table.large_state else {})


def followed(spark: "SparkSession", table: PipelineTable, settings: Settings) -> "DataFrame":
    """The table's source as a stream."""
    options = {
        **settings.connection(),
        **table.source,
        **_pace(table.name, settings),
        "startingOffsets": starting(table, settings),
    }
    return _stream(spark, options)


def _stream(spark: "SparkSession", options: Mapping[str, str]) -> "DataFrame":
    """The log as a stream, by a data source that is this query's alone.

    When a stream starts, Spark writes into the environment that belongs to its source. Streams of one source that start
    at the same moment spoil it for each other, and from then on none of their tasks can be serialized ("Illegal size 5
    of collection, expected 6").
    """
    spark.dataSource.register(HeadraceSource)
    return spark.readStream.format("headrace").options(**options).load()


def starting(table: PipelineTable, settings: Settings) -> str:
    """Where a query without a checkpoint begins: behind the rows the table has, else with the oldest message kept.

    So a lake whose checkpoints were lost goes on without a row twice.
    """
    if position(settings.lake, table.name) is not None or table.spec.keys:
        return "earliest"
    files = open_store(settings.lake, settings.form, table.spec).files()
    ends = [file.last for file in files if file.last is not None]
    return str(max(ends) + 1) if ends else "earliest"


def start_handlers(
    spark: "SparkSession", handlers: Mapping[Call, Handler], settings: Settings, *, once: bool
) -> "StreamingQuery":
    """Start running handlers over the envelopes, from the oldest message kept or where they were."""
    options = {**settings.connection(), **SOURCE, **_pace(HANDLERS, settings), "startingOffsets": "earliest"}
    _own_pool(spark, HANDLERS)
    writer = (
        handled(_stream(spark, options), settings, handlers)
        .writeStream.queryName(HANDLERS)
        .option("checkpointLocation", str(Layout(settings.lake).checkpoint(HANDLERS)))
        .format("headrace")
        .options(**settings.connection())
    )
    return _started(spark, writer, None if once else settings.prompt_every_s, STATE_ON_DISK)


def sink_options(table: PipelineTable, settings: Settings) -> dict[str, str]:
    """The options of the lake's sink for a table."""
    return {"path": str(settings.lake), "tableformat": settings.form, "table": table.spec.encode()}


def _pace(name: str, settings: Settings) -> dict[str, str]:
    """How a query is known to the broker, how much it takes at once, and whether it may miss something."""
    return {
        "reader": READER_PREFIX + name,
        "maxOffsetsPerTrigger": str(settings.offsets_max),
        "failOnDataLoss": str(not settings.lossy).lower(),
    }


def _started(
    spark: "SparkSession", writer: "DataStreamWriter", pause_s: float | None, conf: Mapping[str, str]
) -> "StreamingQuery":
    """The query, begun again every `pause_s` (None: until it has caught up) under settings that are its alone.

    Spark copies the session's settings into a query when it starts.
    """
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        if pause_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(pause_s * 1000)} milliseconds").start()
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _own_pool(spark: "SparkSession", name: str) -> None:
    """Have the query that this thread starts next share the cores fairly with the others; Connect has no such thing."""
    if hasattr(spark, "sparkContext") and not type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)


def _replacing(table: PipelineTable, settings: Settings, checkpoint: Path) -> "Callable[[DataFrame, int], None]":
    """Takes the changed rows of an aggregate into the table.

    They are few, so the driver does it by itself; Spark's sinks in Python take no updates.
    """

    def _replace(rows: "DataFrame", batch: int) -> None:
        writer = json.loads((checkpoint / "metadata").read_text())["id"]
        store = open_store(settings.lake, settings.form, table.spec)
        staged = stage(rows.toArrow().to_batches(), table.spec, store.staging)
        if commit(store, writer, batch, staged) and staged:
            note_last(Layout(settings.lake).control(table.name), writer, batch, staged)

    return _replace
