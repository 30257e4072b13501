"""A Spark driver in a process of its own that does one job after another for a test.

A job is a line of JSON on its standard input, `["read", {...}]`; so is what came of it, on its standard output.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.spark.shipping import archive
from headrace.spark.source.source import HeadraceSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Options = dict[str, str]


def _finds_headrace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whether this process finds the package, and the process it was forked from: each executor has one."""
    for _ in batches:
        found, parent = pa.array([find_spec("headrace") is not None]), pa.array([os.getppid()])
        yield pa.record_batch([found, parent], names=["found", "parent"])


class Jobs:
    """What a test may ask for."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    def found(self) -> dict[str, Any]:
        """Whether executors find headrace, and how many were asked."""
        looked = self._spark.range(0, 8, 1, 8).mapInArrow(_finds_headrace, "found boolean, parent long").collect()
        return {"found": sorted({row.found for row in looked}), "executors": len({row.parent for row in looked})}

    def add_py_file(self, folder: str) -> None:
        """Give executors of a cluster the data source, and nothing more of headrace."""
        self._spark.sparkContext.addPyFile(str(archive(folder)))

    def add_artifacts(self, folder: str) -> None:
        """Give the server behind Spark Connect the data source, and nothing more of headrace."""
        self._spark.addArtifacts(str(archive(folder)), pyfile=True)
        self._spark.dataSource.register(HeadraceSource)

    def read(self, options: Options) -> dict[str, int]:
        """How many rows a topic has, how many different ones, and in how many partitions they came."""
        from pyspark.sql import functions as f

        rows = self._spark.read.format("headrace").options(**options).load().select("value")
        placed = rows.withColumn("place", f.spark_partition_id())
        counted = placed.agg(f.count("*"), f.count_distinct("value"), f.count_distinct("place")).first()
        assert counted is not None
        return dict(zip(("rows", "distinct", "partitions"), counted, strict=True))

    def write(self, options: Options, rows: int) -> None:
        """Write numbers into a topic."""
        numbers = self._spark.range(0, rows, 1, 4).selectExpr("CAST(id AS STRING) AS value")
        numbers.write.format("headrace").options(**options).mode("append").save()

    def copy(self, source: Options, sink: Options) -> int:
        """Follow a topic until it is read, writing each micro-batch into another; how many rows the query saw."""
        rows = self._spark.readStream.format("headrace").options(**source).load().select("value")
        query = rows.writeStream.format("headrace").options(**sink).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(each.numInputRows for each in query.recentProgress)


def main(master: str, *conf: str) -> None:
    """Do what standard input asks for, until it ends; `conf` are settings of Spark, as in spark-submit.

    The session is one that knows nothing of headrace.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master) if master.startswith("sc://") else SparkSession.builder.master(master)
    for setting in conf:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    jobs = Jobs(spark)
    _answer("ready")
    for line in sys.stdin:
        name, arguments = json.loads(line)
        job: Callable[..., Any] = getattr(jobs, name)
        _answer(job(**arguments))
    spark.stop()


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
