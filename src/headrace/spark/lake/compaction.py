"""Many small files into few: which ones, and how they are joined. The same rows, in the order of their offsets."""

import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.spark.lake.disk import locked, make_folder, sync_file, sync_folder
from headrace.spark.lake.staging import FILE_BYTES, ROW_GROUP_ROWS, STAGED_SUFFIX, file_writer
from headrace.spark.lake.store import Store
from headrace.spark.lake.table import DataFile, StagedFile, file_name

SMALL_BYTES = 64 << 20
FILES_MIN = 8
MAINTENANCE_LOCK = "maintenance.lock"
"""Held by whoever rewrites files of a table or fills in rows: one at a time."""
GRACE_S = 600.0
"""How long replaced files are kept for readers that are just listing them."""


@dataclass(frozen=True)
class Compacted:
    """What a compaction did: so many files became so many."""

    before: int = 0
    after: int = 0


def groups(files: Sequence[DataFile], files_min: int = FILES_MIN) -> list[list[DataFile]]:
    """The files worth joining: small ones of one folder, in the order of their offsets, up to one file's size each."""
    by_folder: dict[str, list[DataFile]] = {}
    for file in files:
        if file.bytes < SMALL_BYTES and file.first is not None and file.rows is not None:
            by_folder.setdefault(file.partition, []).append(file)
    found: list[list[DataFile]] = []
    for folder in sorted(by_folder):
        group: list[DataFile] = []
        size = 0
        for file in sorted(by_folder[folder], key=lambda each: (each.first or 0, each.path)):
            if group and size + file.bytes > FILE_BYTES:
                found.append(group)
                group, size = [], 0
            group.append(file)
            size += file.bytes
        found.append(group)
    return [group for group in found if len(group) >= files_min]


def compact(store: Store, *, files_min: int = FILES_MIN, grace_s: float = GRACE_S) -> Compacted:
    """Join the table's small files, and delete what earlier compactions left behind `grace_s` ago.

    Files are read and written without holding up the table's writers; only the exchange does. Upsert tables have one
    file a bucket and are only tidied. Raises LakeError when another process is at work on the table.
    """
    make_folder(store.staging)
    before = after = 0
    with locked(store.staging.parent / MAINTENANCE_LOCK, timeout_s=0.0):
        chosen = [] if store.spec.keys else groups(store.files(), files_min)
        for group in chosen:
            staged = joined(group, store.staging)
            with store.locked():
                store.swap([staged], group)
            before += len(group)
            after += 1
        with store.locked():
            store.tidy(time.time() - grace_s)
    return Compacted(before, after)


def joined(group: Sequence[DataFile], folder: Path) -> StagedFile:
    """One file with the rows of all of these, row group by row group, with every column any of them has."""
    schema = pa.unify_schemas([pq.read_schema(file.path) for file in group], promote_options="default")
    path = folder / f"{uuid.uuid4().hex}{STAGED_SUFFIX}"
    try:
        with file_writer(path, schema) as writer:
            _copy(group, writer, schema)
        sync_file(path)
        sync_folder(folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        raise
    rows = sum(file.rows or 0 for file in group)
    first = min(file.first or 0 for file in group)
    last = max(file.last or 0 for file in group)
    return StagedFile(str(path), group[0].partition, file_name(first, last, rows), rows, path.stat().st_size, 0)


def _copy(group: Sequence[DataFile], writer: pq.ParquetWriter, schema: pa.Schema) -> None:
    waiting: list[pa.Table] = []
    rows = 0
    for file in group:
        source = pq.ParquetFile(file.path)
        for index in range(source.num_row_groups):
            waiting.append(_shaped(source.read_row_group(index, use_threads=False), schema))
            rows += waiting[-1].num_rows
            if rows >= ROW_GROUP_ROWS:
                writer.write_table(pa.concat_tables(waiting))
                waiting, rows = [], 0
    if waiting:
        writer.write_table(pa.concat_tables(waiting))


def _shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in this schema; columns they lack are null."""
    columns = [
        table.column(each.name).cast(each.type)
        if each.name in table.schema.names
        else pa.nulls(table.num_rows, each.type)
        for each in schema
    ]
    return pa.table(columns, schema=schema)
