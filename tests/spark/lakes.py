"""Lakes filled from a broker by the real pipeline, once, as far as the log goes."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.lake.layout import Layout
from headrace.spark.pipeline.run import Pipeline
from headrace.spark.pipeline.settings import Settings
from headrace.spark.pipeline.tables import chosen
from tests.harness.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("messages", "events")


def fill(
    spark: "SparkSession", broker: Lakeside, lake: Path, *, form: str = "parquet", tables: Sequence[str] = TABLES
) -> Settings:
    """Bring these tables of the lake up to date."""
    settings = Settings(
        lake=lake, form=Layout(lake).settle_format(form), endpoint=broker.endpoint, key=broker.key, every_s=0.0
    )  # fmt: skip
    for _ in Pipeline(spark, chosen(tables), settings, once=True).run(threading.Event(), look_s=0.05):
        continue
    return settings
