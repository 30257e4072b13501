"""Batch jobs over one log: backfill into the lake, scan against Parquet, writer. One Spark session for all of them."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.pipeline.figures import Run, Stored
from bench.pipeline.stand import KEY, SIZE, Meter, Stand, folder_bytes
from headrace.feed.client import FeedClient
from headrace.spark.pipeline.backfill import backfill
from headrace.spark.pipeline.settings import Settings
from headrace.spark.pipeline.tables import TABLES
from headrace.spark.session import new_session

TABLE = "messages"


@contextmanager
def session(scratch: Path) -> Iterator[Any]:
    """A session on all cores, as `headrace pipeline` makes it; what Spark says goes to a file."""
    conf = {"spark.sql.warehouse.dir": str(scratch / "warehouse")}
    spark = new_session("headrace bench", conf=conf, log=scratch / "spark.log")
    try:
        yield spark
    finally:
        spark.stop()


class Batches:
    """The jobs on one stand, whose log holds `rows` messages when this is made."""

    def __init__(self, spark: Any, stand: Stand, rows: int) -> None:
        self._spark = spark
        self._stand = stand
        self._rows = rows
        self._jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        self._options = {"endpoint": stand.endpoint, "key": KEY, "subscribePattern": "bench.*"}
        self._written = 0

    def backfill(self) -> Run:
        """The log into a fresh lake."""
        with self._folder("lake") as lake:
            return self.timed(self._rows, lambda: fill(self._spark, self._stand, lake, self._rows))

    def stored(self, rows: int) -> Stored:
        """What a message takes in the log, and in the lake when its value is random, so that it cannot be packed."""
        log_bytes = self._stand.log_bytes / self._rows
        client = FeedClient(self._stand.endpoint, key=KEY)
        start = client.span().latest
        digests = ", ".join(f"unhex(sha2(concat(id, '.{number}'), 256))" for number in range(4))
        self._write(self._spark.range(0, rows).selectExpr(f"substring(concat({digests}), 1, {SIZE}) AS value"))
        with self._folder("lake") as lake:
            settings = Settings(lake=lake, endpoint=self._stand.endpoint, key=KEY)
            done = backfill(self._spark, TABLES[TABLE], settings, start, client.span().latest)
            return Stored(log_bytes=log_bytes, lake_bytes=folder_bytes(lake / TABLE) / done.rows)

    def scan(self, *, near: bool = True) -> Run:
        """The log through the data source, every column, to nowhere; all of it through the feed unless `near`."""
        return self.timed(self._rows, lambda: _to_nowhere(self._read(shortCircuit=str(near).lower())))

    @contextmanager
    def parquet(self) -> Iterator[Callable[[], Run]]:
        """A job that reads the same rows from Spark's own Parquet files, uncompressed, to nowhere."""
        with self._folder("parquet") as folder:
            self._read().write.option("compression", "none").mode("overwrite").parquet(str(folder))
            assert self._spark.read.parquet(str(folder)).count() == self._rows, "the copy is not the log"
            yield lambda: self.timed(self._rows, lambda: _to_nowhere(self._spark.read.parquet(str(folder))))

    def write(self, rows: int) -> Run:
        """Rows into a topic of their own, durable when it returns."""
        values = self._spark.range(0, rows).selectExpr(
            f"CAST(lpad(CAST(id AS STRING), {SIZE}, '.') AS BINARY) AS value"
        )
        return self.timed(rows, lambda: self._write(values))

    def timed(self, rows: int, job: Callable[[], object]) -> Run:
        """Run a job over so many rows."""
        meter = Meter(spark=self._jvm, feed=self._stand.feed_pid, broker=self._stand.server.process.pid)
        began = time.perf_counter()
        job()
        seconds = time.perf_counter() - began
        used = {f"{name}_cpu_s": value for name, value in meter.read().items()}
        return Run(rows=rows, seconds=seconds, **used)

    def _write(self, values: Any) -> None:
        self._written += 1
        options = {"endpoint": self._stand.endpoint, "key": KEY, "topic": f"written.{self._written}"}
        values.write.format("headrace").options(**options).mode("append").save()

    def _read(self, **more: str) -> Any:
        until = self._options | more | {"endingOffsets": str(self._rows)}
        return self._spark.read.format("headrace").options(**until).load()

    @contextmanager
    def _folder(self, name: str) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._stand.directory))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def fill(spark: Any, stand: Stand, lake: Path, rows: int) -> int:
    """What `headrace pipeline backfill --from 0 --to ROWS --tables messages` does; how many rows it was."""
    settings = Settings(lake=lake, endpoint=stand.endpoint, key=KEY)
    done = backfill(spark, TABLES[TABLE], settings, 0, rows)
    assert done.rows == rows, f"{done.rows} of {rows} rows were filled in"
    return done.rows


def _to_nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()
