"""A micro-batch into a table, once: the same few steps whatever the format. Knows no Spark."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.spark.lake.disk import make_folder
from headrace.spark.lake.merge import buckets, merged
from headrace.spark.lake.staging import STAGED_SUFFIX, discard, newest_us, write_file
from headrace.spark.lake.store import Store
from headrace.spark.lake.table import DataFile, StagedFile, file_name

LAST = "last.json"


@dataclass(frozen=True, kw_only=True)
class Last:
    """What the newest commit of a table was: for those who watch, nothing depends on it."""

    writer: str
    batch: int
    rows: int
    newest_us: int
    committed_us: int


def commit(store: Store, writer: str, batch: int, staged: Sequence[StagedFile]) -> bool:
    """Have the table hold the rows of this batch, once.

    False when they were there already: a replay, whose files are dropped.
    """
    with store.locked():
        before = store.committed(writer)
        if before is not None and batch <= before:
            discard(staged)
            return False
        if store.spec.keys:
            added, removed = _upserted(store, staged)
            store.publish(writer, batch, added, removed)
            discard(staged)
        else:
            store.publish(writer, batch, staged, [])
    return True


def note_last(control: Path, writer: str, batch: int, staged: Sequence[StagedFile]) -> None:
    """Leave word of the commit for those who watch."""
    now_us = time.time_ns() // 1000
    last = Last(
        writer=writer, batch=batch, rows=sum(file.rows for file in staged), committed_us=now_us,
        newest_us=max((file.newest_us for file in staged), default=0),
    )  # fmt: skip
    make_folder(control)
    fresh = control / f"{LAST}.tmp"
    fresh.write_text(json.dumps(asdict(last)))
    fresh.replace(control / LAST)


def last_commit(control: Path) -> Last | None:
    """The newest commit of a table, as far as anybody left word."""
    try:
        return Last(**json.loads((control / LAST).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _upserted(store: Store, staged: Sequence[StagedFile]) -> tuple[list[StagedFile], list[DataFile]]:
    """The files that hold old and new rows together, and the files they take the place of."""
    if not staged:
        return [], []
    new = pa.concat_tables([pq.ParquetFile(file.path).read() for file in staged], promote_options="default")
    present: dict[str, list[DataFile]] = {}
    for file in store.files():
        present.setdefault(file.bucket, []).append(file)
    added: list[StagedFile] = []
    removed: list[DataFile] = []
    for bucket, rows in buckets(new, store.spec):
        replaced = present.get(bucket, [])
        tables = [pq.ParquetFile(file.path).read() for file in replaced]
        old = pa.concat_tables(tables, promote_options="default") if tables else None
        added.append(_bucket_file(store, bucket, merged(old, rows, store.spec)))
        removed += replaced
    return added, removed


def _bucket_file(store: Store, bucket: str, rows: pa.Table) -> StagedFile:
    partition, _, name = bucket.rpartition("/")
    path = store.staging / file_name(0, 0, rows.num_rows).replace(".parquet", STAGED_SUFFIX)
    make_folder(store.staging)
    size = write_file(rows, path)
    return StagedFile(str(path), partition, f"{name}.parquet", rows.num_rows, size, newest_us(rows, store.spec))
