"""`traffic`: what was published in each minute, by topic and protocol. The running minute is in it, too."""

from typing import TYPE_CHECKING

from headrace.spark.lake.table import TableSpec
from headrace.spark.pipeline.definition import OWN_TOPICS_LEFT_OUT, PipelineTable
from headrace.spark.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def by_minute(frame: "DataFrame", settings: Settings) -> "DataFrame":
    """Messages, bytes and messages a second (averaged over the minute) of each topic and protocol."""
    from pyspark.sql import functions as f

    return (
        frame.withWatermark("timestamp", settings.late_by)
        .groupBy(f.window("timestamp", "1 minute"), "topic", "protocol")
        .agg(f.count("*").alias("messages"), f.sum("value_size").alias("bytes"))
        .select(
            f.col("window.start").alias("minute"),
            "topic",
            "protocol",
            "messages",
            "bytes",
            (f.col("messages") / 60.0).alias("messages_per_second"),
        )
    )


TABLE = PipelineTable(
    spec=TableSpec(name="traffic", time="minute", position=None, keys=("minute", "topic", "protocol")),
    source={"subscribePattern": OWN_TOPICS_LEFT_OUT, "columns": "topic,protocol,timestamp,value_size"},
    rows=by_minute,
    aggregate=True,
)
