"""`latency`: how long messages took from publish to ack, by minute of the ack, topic and subscription."""

from typing import TYPE_CHECKING

from headrace.spark.lake.table import TableSpec
from headrace.spark.pipeline.definition import PipelineTable
from headrace.spark.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
_ACCURACY = 1000


def by_minute(frame: "DataFrame", settings: Settings) -> "DataFrame":
    """Quantiles (within a thousandth of the rank), mean and maximum of the latency in milliseconds."""
    from pyspark.sql import functions as f

    quantiles = f.percentile_approx("latency_ms", list(QUANTILES.values()), _ACCURACY)
    return (
        frame.where("latency_ms IS NOT NULL")
        .withColumns({name: f.coalesce(name, f.lit("")) for name in ("topic", "subscription")})
        .withWatermark("timestamp", settings.late_by)
        .groupBy(f.window("timestamp", "1 minute"), "topic", "subscription")
        .agg(
            f.count("*").alias("acked"), quantiles.alias("quantiles"),
            f.avg("latency_ms").alias("mean_ms"), f.max("latency_ms").alias("max_ms"),
        )
        .select(
            f.col("window.start").alias("minute"), "topic", "subscription", "acked",
            *(f.col("quantiles")[at].alias(name) for at, name in enumerate(QUANTILES)),
            "mean_ms", "max_ms",
        )
    )  # fmt: skip


TABLE = PipelineTable(
    spec=TableSpec(name="latency", time="minute", position=None, keys=("minute", "topic", "subscription")),
    source={"stream": "events", "events": "acked", "columns": "timestamp,topic,subscription,latency_ms"},
    rows=by_minute,
    aggregate=True,
)
