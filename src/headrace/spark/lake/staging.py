"""Arrow batches into Parquet files that nobody sees yet, split by day. Runs on executors; knows no table format."""

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.lake.disk import make_folder, sync_file, sync_folder
from headrace.spark.lake.table import StagedFile, TableSpec, file_name

STAGED_SUFFIX = ".staged"
ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 1 << 17
FILE_BYTES = 256 << 20
STALE_S = 86_400.0
TIMESTAMP = pa.timestamp("us", tz="UTC")

_COMPRESSION = "zstd"
_PLAIN_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_timestamp, pa.types.is_integer)


def stage(batches: Iterable[pa.RecordBatch], spec: TableSpec, folder: Path) -> list[StagedFile]:
    """The rows as files in `folder`, synced; at least one for each day they are of, none for no rows."""
    make_folder(folder)
    open_files: dict[str, _File] = {}
    done: list[StagedFile] = []
    try:
        for batch in batches:
            for partition, rows in by_day(canonical(batch), spec):
                file = open_files.get(partition)
                if file is None:
                    file = open_files[partition] = _File(folder, spec, partition, rows.schema)
                file.add(rows)
                if file.bytes >= FILE_BYTES:
                    done.append(open_files.pop(partition).close())
        done += [open_files.pop(partition).close() for partition in list(open_files)]
    except BaseException:
        discard(done)
        for file in open_files.values():
            file.abandon()
        raise
    if done:
        sync_folder(folder)
    return done


def discard(staged: Iterable[StagedFile]) -> None:
    """Delete staged files that will never be needed; those already gone are fine."""
    for file in staged:
        Path(file.path).unlink(missing_ok=True)


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as every file has it: times are microseconds in UTC, whatever the session's time zone."""
    schema = canonical_schema(batch.schema)
    return batch if schema.equals(batch.schema) else batch.cast(schema)


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which rows of this one are kept."""
    fields = [
        pa.field(each.name, TIMESTAMP if pa.types.is_timestamp(each.type) else each.type, nullable=True)
        for each in schema
    ]
    return pa.schema(fields)


def by_day(batch: pa.RecordBatch, spec: TableSpec) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by the folder they belong into; nearly always that is a single one."""
    if not batch.num_rows:
        return
    if spec.time is None:
        yield "", batch
        return
    days: Any = pc.fill_null(batch.column(spec.time).cast(pa.date32(), safe=False), pa.scalar(0, pa.date32()))
    limits: Any = pc.min_max(days).as_py()
    if limits["min"] == limits["max"]:
        yield f"date={limits['min'].isoformat()}", batch
        return
    for day in pc.unique(days).sort():
        yield f"date={day.as_py().isoformat()}", batch.filter(pc.equal(days, day))


def write_file(table: pa.Table, path: Path) -> int:
    """One Parquet file in our way of writing them, synced; returns its size."""
    with pq.ParquetWriter(path, table.schema, **_writing(table.schema)) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    sync_file(path)
    return path.stat().st_size


def file_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of one Parquet file in our way of writing them; sync the file when it is closed."""
    return pq.ParquetWriter(path, schema, **_writing(schema))


def newest_us(batch: pa.RecordBatch | pa.Table, spec: TableSpec) -> int:
    """The newest time among the rows in microseconds; 0 when there is none."""
    if spec.time is None or not batch.num_rows:
        return 0
    newest = pc.max(batch.column(spec.time)).cast(pa.int64()).as_py()
    return int(newest or 0)


class _File:
    """One file being written: rows are collected until they make a row group."""

    def __init__(self, folder: Path, spec: TableSpec, partition: str, schema: pa.Schema) -> None:
        self._spec = spec
        self._partition = partition
        self._path = folder / f"{uuid.uuid4().hex}{STAGED_SUFFIX}"
        self._writer = file_writer(self._path, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._first: int | None = None
        self._last = 0
        self._newest_us = 0
        self.bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Some more rows."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.get_total_buffer_size()
        self._rows += rows.num_rows
        self._newest_us = max(self._newest_us, newest_us(rows, self._spec))
        if self._spec.position is not None:
            limits: Any = pc.min_max(rows.column(self._spec.position)).as_py()
            self._first = limits["min"] if self._first is None else min(self._first, limits["min"])
            self._last = max(self._last, limits["max"])
        if self._waiting_bytes >= ROW_GROUP_BYTES or self._waiting_rows >= ROW_GROUP_ROWS:
            self._write()

    def close(self) -> StagedFile:
        """Write and sync what is left."""
        self._write()
        self._writer.close()
        sync_file(self._path)
        return StagedFile(
            str(self._path), self._partition, file_name(self._first or 0, self._last, self._rows), self._rows,
            self._path.stat().st_size, self._newest_us,
        )  # fmt: skip

    def abandon(self) -> None:
        """Leave no file behind."""
        self._writer.close()
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._waiting_rows)
            self.bytes += self._waiting_bytes
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def _writing(schema: pa.Schema) -> dict[str, Any]:
    """Dictionaries for texts that repeat; no limits of values that nobody filters by."""
    texts = [each.name for each in schema if not any(test(each.type) for test in _PLAIN_TYPES)]
    return {
        "compression": _COMPRESSION,
        "compression_level": 1,
        "use_dictionary": [name for name in texts if not pa.types.is_nested(schema.field(name).type)],
        "write_statistics": [
            each.name for each in schema if not pa.types.is_nested(each.type) and each.name != "value"
        ],
        "store_schema": True,
    }


def staged_folder(control: Path) -> Path:
    """Where executors put the files of a table before it has them."""
    return control / "staged"


def drop_stale(folder: Path, before_s: float) -> None:
    """Delete staged files that were last touched a day before this time: their tasks died long ago."""
    for path in folder.glob(f"*{STAGED_SUFFIX}"):
        if path.stat().st_mtime < before_s - STALE_S:
            path.unlink(missing_ok=True)


def is_regular(entry: "os.DirEntry[str]") -> bool:
    """Whether a name in a folder is a file of rows."""
    return entry.name.endswith(".parquet") and not entry.name.startswith((".", "_")) and entry.is_file()
