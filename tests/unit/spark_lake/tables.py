"""Tables, rows and readers for the tests of the lake."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.spark.lake.commit import commit
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.staging import stage
from headrace.spark.lake.store import Step, unwatched
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import StagedFile, TableSpec

APPEND = TableSpec(name="messages")
UPSERT = TableSpec(name="traffic", time="minute", position=None, keys=("minute", "topic"))
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
FIELDS: dict[str, Any] = {"offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "value": pa.binary()}
SCHEMA = pa.schema(FIELDS)


def rows(first: int, count: int, when: datetime = NOON) -> pa.RecordBatch:
    """Messages with these offsets."""
    offsets = range(first, first + count)
    columns: list[Any] = [list(offsets), [when] * count, [b"%d" % each for each in offsets]]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def minutes(counts: dict[tuple[int, str], int]) -> pa.RecordBatch:
    """Counts by minute after noon and topic."""
    columns: dict[str, Any] = {
        "minute": pa.array([NOON + timedelta(minutes=m) for m, _ in counts], pa.timestamp("us", "UTC")),
        "topic": pa.array([topic for _, topic in counts]),
        "messages": pa.array(list(counts.values()), pa.int64()),
    }
    return pa.record_batch(columns)


def staged(lake: Path, spec: TableSpec, *batches: pa.RecordBatch) -> list[StagedFile]:
    """What one task would stage."""
    return stage(batches, spec, Layout(lake).control(spec.name) / "staged")


def write(
    lake: Path,
    form: str,
    spec: TableSpec,
    batch: int,
    *batches: pa.RecordBatch,
    writer: str = "w",
    step: Step = unwatched,
) -> bool:
    """One micro-batch of one task, from rows to commit."""
    return commit(open_store(lake, form, spec, step), writer, batch, staged(lake, spec, *batches))


def read(lake: Path, form: str, spec: TableSpec) -> list[dict[str, Any]]:
    """The table as a reader of that format sees it."""
    if form == "parquet":
        folder = lake / spec.name
        found = sorted(map(str, folder.glob("**/*.parquet")))
        if not found:
            return []
        return list(ds.dataset(found, schema=_schema(found)).to_table().to_pylist())
    if form == "delta":
        from deltalake import DeltaTable

        return list(DeltaTable(lake / spec.name).to_pyarrow_table().to_pylist())
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("headrace", uri=f"sqlite:///{Layout(lake).catalog}", warehouse=f"file://{lake}")
    return list(catalog.load_table(("lake", spec.name)).scan().to_arrow().to_pylist())


def offsets(lake: Path, form: str, spec: TableSpec = APPEND) -> Sequence[int]:
    """The offsets a reader sees, sorted."""
    return sorted(row["offset"] for row in read(lake, form, spec))


def _schema(paths: list[str]) -> pa.Schema:
    return pa.unify_schemas([ds.dataset(path).schema for path in paths])
