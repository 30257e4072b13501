"""What a session of ours does that Spark's own defaults do not."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def _origin(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import gc
    import sys

    yield pa.record_batch({"module": [sys.modules["__main__"].__spec__.name], "kept": [gc.get_freeze_count()]})


def test_workers_are_forked_with_what_they_need(spark: SparkSession) -> None:
    found = spark.range(1).mapInArrow(_origin, "module string, kept long").first()
    assert found is not None
    assert found["module"] == "headrace.spark.daemon"
    assert found["kept"] > 50_000, "Arrow and pandas alone are more"
