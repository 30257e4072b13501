"""Fills a range of the log into a table afterwards: what is missing is added, what is there stays as it is.

A table's query owns everything from its position on, so only what lies before is filled in; a table whose query never
ran is filled under the lock that keeps queries from starting. Rows of append tables are known by their offsets: those
the table has are left out. Rows of upsert tables replace themselves. So a range can be filled any number of times.
"""

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from headrace.feed.client import FeedClient, Part
from headrace.feed.nearby import nearby
from headrace.feed.ticket import Ticket
from headrace.feed.whereabouts import Whereabouts
from headrace.spark.lake.commit import commit, last_commit
from headrace.spark.lake.compaction import MAINTENANCE_LOCK
from headrace.spark.lake.disk import locked, make_folder
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.sink import FORMAT
from headrace.spark.lake.staging import stage
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import DataFile, StagedFile, TableSpec
from headrace.spark.patience import is_here, spare_cores, stand_back
from headrace.spark.pipeline.definition import PipelineTable, as_they_are
from headrace.spark.pipeline.positions import position
from headrace.spark.pipeline.queries import register, sink_options
from headrace.spark.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pc: Any = pyarrow.compute
ROWS_PER_TASK = 2_000_000
_STAGED = "path string, partition string, name string, rows long, bytes long, newest_us long"


@dataclass(frozen=True)
class Backfilled:
    """What was done: the range looked at, the rows added or replaced, and how long it took."""

    start: int
    end: int
    rows: int
    seconds: float


def backfill(spark: "SparkSession", table: PipelineTable, settings: Settings, start: int, end: int) -> Backfilled:
    """Have the table hold everything of the log from `start` up to, not including, `end`.

    Raises LakeError while somebody else is at work on the table.
    """
    register(spark)
    began = time.monotonic()
    control = Layout(settings.lake).control(table.name)
    make_folder(control)
    reached = position(settings.lake, table.name)
    if reached is not None and not table.aggregate:
        end = min(end, reached)
    alone = locked(Layout(settings.lake).run_lock, timeout_s=0.0) if reached is None else nullcontext()
    with alone, locked(control / MAINTENANCE_LOCK, timeout_s=0.0):
        span = settings.client().span()
        start, end = max(start, span.earliest), min(end, span.latest)
        if start >= end:
            return Backfilled(start, max(start, end), 0, time.monotonic() - began)
        if table.aggregate:
            rows = _recount(spark, table, settings, start, end)
        elif table.rows is as_they_are:
            rows = _copy(spark, table, settings, start, end)
        else:
            rows = _derive(spark, table, settings, start, end)
    return Backfilled(start, end, rows, time.monotonic() - began)


class _Known(NamedTuple):
    """A file of the table, and the offsets of its rows."""

    path: str
    first: int | None
    last: int | None


@dataclass(frozen=True)
class Copy:
    """A task: the rows of its part that the table lacks, from the log or the feed into staged files."""

    client: FeedClient
    place: Whereabouts | None
    ticket: Ticket
    parts: Sequence[Part]
    known: Sequence[_Known]
    spec: TableSpec
    folder: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(1, initializer=self._stand_back) as patient:
            for batch in batches:
                indices: list[Any] = batch.column(0).to_pylist()
                for index in indices:
                    files = patient.submit(self._staged, self.parts[index]).result()
                    if files:
                        yield pa.RecordBatch.from_pylist([file._asdict() for file in files])

    def _stand_back(self) -> None:
        """A backfill is in no hurry: its threads let a broker on the same machine go first."""
        stand_back(spared=spare_cores() if is_here(self.place) else None)

    def _staged(self, part: Part) -> list[StagedFile]:
        return stage(self._rows(part), self.spec, self.folder)

    def _rows(self, part: Part) -> Iterator[pa.RecordBatch]:
        present = self._present(part)
        for batch in self._read(replace(self.ticket, start=part.start, end=part.end)):
            fresh = batch if present is None else batch.filter(pc.invert(pc.is_in(batch.column("offset"), present)))
            if fresh.num_rows:
                yield fresh

    def _read(self, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        """From the log itself as far as it is near, the rest from the feed."""
        rest = ticket if self.place is None else (yield from nearby(self.place, ticket))
        if rest is not None:
            yield from self.client.read(rest)

    def _present(self, part: Part) -> Any:
        """The offsets of this part that the table has; None for none."""
        near = [each.path for each in self.known if _reaches(each.first, each.last, part.start, part.end)]
        columns = [pq.ParquetFile(path).read(columns=["offset"]).column(0) for path in near]
        return pc.unique(pa.chunked_array([c for column in columns for c in column.chunks])) if columns else None


def _copy(spark: "SparkSession", table: PipelineTable, settings: Settings, start: int, end: int) -> int:
    """Rows that need nothing done to them go into files without passing through the JVM."""
    store = open_store(settings.lake, settings.form, table.spec)
    ticket = Ticket.of({"stream": table.source.get("stream", "messages"), "start": start, "end": end})
    client = settings.client(retry_s=60.0)
    parts = client.split(ticket, _tasks(spark, start, end))
    present = [file for file in store.files() if _reaches(file.first, file.last, start, end)]
    known = [_Known(str(file.path), file.first, file.last) for file in present]
    task = Copy(client, client.whereabouts(), ticket, parts, known, table.spec, store.staging)
    done = spark.range(0, len(parts), 1, len(parts)).mapInArrow(task, _STAGED).toArrow().to_pylist()
    staged = [StagedFile(**row) for row in done]
    commit(store, f"backfill-{uuid.uuid4().hex}", 0, staged)
    return sum(file.rows for file in staged)


def _derive(spark: "SparkSession", table: PipelineTable, settings: Settings, start: int, end: int) -> int:
    """Rows that are made by Spark are made again, and those the table lacks are added."""
    rows = table.rows(_read(spark, table, settings, start, end), settings)
    store = open_store(settings.lake, settings.form, table.spec)
    writer = f"backfill-{uuid.uuid4().hex}"
    if not table.spec.keys:
        rows = _missing(spark, rows, store.files(), start, end)
    rows.write.format(FORMAT).mode("append").options(**sink_options(table, settings), writer=writer).save()
    last = last_commit(Layout(settings.lake).control(table.name))
    return last.rows if last is not None and last.writer == writer else 0


def _missing(spark: "SparkSession", rows: "DataFrame", files: Sequence[DataFile], start: int, end: int) -> "DataFrame":
    """The rows whose offset the table does not have, and whose message id neither where there are such ids."""
    near = [str(file.path) for file in files if _reaches(file.first, file.last, start, end)]
    if near:
        rows = rows.join(spark.read.parquet(*near).select("offset").distinct(), "offset", "left_anti")
    keys = ["topic", "message_id"]
    if files and "service" in rows.columns:
        known = spark.read.parquet(*(str(file.path) for file in files)).select(*keys).distinct()
        rows = rows.join(known, keys, "left_anti")
    return rows


def _recount(spark: "SparkSession", table: PipelineTable, settings: Settings, start: int, end: int) -> int:
    """Whole minutes are counted again: a part of one would replace the count of all of it."""
    from pyspark.sql import functions as f

    times = _read(spark, table, settings, start, end).agg(f.min("timestamp"), f.max("timestamp")).toArrow()
    first, last = (column[0].cast(pa.int64()).as_py() for column in times.columns)
    if first is None:
        return 0
    minute_us = 60_000_000
    first_us, end_us = first // minute_us * minute_us, (last // minute_us + 1) * minute_us
    client = settings.client()
    whole = _read(spark, table, settings, client.offset_at(first_us), client.offset_at(end_us))
    rows = table.rows(whole, settings).toArrow()
    store = open_store(settings.lake, settings.form, table.spec)
    commit(store, f"backfill-{uuid.uuid4().hex}", 0, stage(rows.to_batches(), table.spec, store.staging))
    return rows.num_rows


def _read(spark: "SparkSession", table: PipelineTable, settings: Settings, start: int, end: int) -> "DataFrame":
    """The table's source as a batch."""
    source = spark.read.format("headrace").options(**settings.connection(), **table.source)
    return source.option("startingOffsets", str(start)).option("endingOffsets", str(end)).load()


def _tasks(spark: "SparkSession", start: int, end: int) -> int:
    remote = type(spark).__module__.startswith("pyspark.sql.connect")
    cores = os.cpu_count() or 1 if remote else spark.sparkContext.defaultParallelism
    return max(cores, -(-(end - start) // ROWS_PER_TASK))


def _reaches(first: int | None, last: int | None, start: int, end: int) -> bool:
    """Whether a file with these offsets may hold some of the range; one that does not say may hold anything."""
    return first is None or last is None or (first < end and last >= start)
