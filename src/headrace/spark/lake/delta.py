"""Tables in Delta Lake's format, written by deltalake: no jar, no catalog.

A batch is one version of the table: its files and the writer's batch number, as Delta's app transaction, in one entry
of Delta's log. A file in the folder that no version names is invisible and is deleted by `tidy`.
"""

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from headrace.spark.lake.disk import make_folder, sync_folder
from headrace.spark.lake.ground import Ground
from headrace.spark.lake.staging import drop_stale
from headrace.spark.lake.table import DataFile, StagedFile, data_file

STEPS = ("moved", "visible")
PARTITION = "date"
_KEPT_HOURS = 24


class DeltaStore(Ground):
    """A Delta table."""

    def committed(self, writer: str) -> int | None:
        """The newest batch of this writer, from the table's app transactions."""
        found = self._open()
        return None if found is None else found.transaction_version(writer)

    def files(self) -> list[DataFile]:
        """The files of the table's newest version."""
        found = self._open()
        if found is None:
            return []
        actions: Any = pa.table(found.get_add_actions(flatten=True))
        sizes = zip(
            actions["path"].to_pylist(),
            actions["size_bytes"].to_pylist(),
            actions["num_records"].to_pylist(),
            strict=True,
        )
        return sorted(
            data_file(self._table / path, self._table, size)._replace(rows=rows) for path, size, rows in sizes
        )

    def publish(self, writer: str, batch: int, added: Sequence[StagedFile], removed: Sequence[DataFile]) -> None:
        """One version of the table with all of it."""
        self._commit(added, removed, [Transaction(writer, batch)])

    def swap(self, added: Sequence[StagedFile], removed: Sequence[DataFile]) -> None:
        """One version of the table that says it changes no data."""
        self._commit(added, removed, [], changes=False)

    def tidy(self, before_s: float) -> None:
        """Delete dead tasks' files, and files no version of the last day names."""
        drop_stale(self.staging, before_s)
        found = self._open()
        if found is not None:
            found.vacuum(retention_hours=_KEPT_HOURS, dry_run=False, enforce_retention_duration=False)
            found.create_checkpoint()
            found.cleanup_metadata()

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(str(self._table))
        except TableNotFoundError:
            return None

    def _commit(
        self, added: Sequence[StagedFile], removed: Sequence[DataFile], writers: list[Transaction], changes: bool = True
    ) -> None:
        if not added and not removed and self._open() is None:
            return
        moved = [self._moved(file) for file in added]
        self._step("moved")
        table = self._evolved(self._open(), [path for path, _ in moved])
        now_ms = int(time.time() * 1000)
        adds = [
            AddAction(
                str(path.relative_to(self._table)),
                file.bytes,
                _values(file.partition),
                now_ms,
                changes,
                _stats(path, file),
            )
            for path, file in moved
        ]
        removes = [
            RemoveAction(str(file.path.relative_to(self._table)), changes, now_ms, file.bytes, _values(file.partition))
            for file in removed
        ]
        table.create_write_transaction(
            [*adds, *removes], "append", table.schema(), partition_by=self._partitions(),
            commit_properties=CommitProperties(app_transactions=writers),
        )  # fmt: skip
        self._step("visible")

    def _moved(self, file: StagedFile) -> tuple[Path, StagedFile]:
        """The file where the table will find it, under a name that was never used."""
        name = f"{file.name.removesuffix('.parquet')}-{uuid.uuid4().hex[:12]}.parquet" if self.spec.keys else file.name
        target = self._table / file.partition / name
        make_folder(target.parent)
        Path(file.path).rename(target)
        sync_folder(target.parent)
        return target, file

    def _evolved(self, table: DeltaTable | None, paths: Sequence[Path]) -> DeltaTable:
        """The table, with all columns these files have."""
        fields: dict[str, pa.Field[Any]] = {}
        for path in paths:
            fields |= {each.name: each for each in pq.read_schema(path) if each.name not in fields}
        if table is None:
            day = [pa.field(PARTITION, pa.date32())] if self._partitions() else []
            schema = Schema.from_arrow(pa.schema([*fields.values(), *day]))
            return DeltaTable.create(str(self._table), schema, partition_by=self._partitions(), name=self.spec.name)
        known = {each.name for each in table.schema().fields}
        fresh = Schema.from_arrow(pa.schema([each for name, each in fields.items() if name not in known])).fields
        if fresh:
            table.alter.add_columns(fresh)
            table.update_incremental()
        return table

    def _partitions(self) -> list[str]:
        return [PARTITION] if self.spec.time is not None else []


def _values(partition: str) -> dict[str, str | None]:
    name, _, value = partition.partition("=")
    return {name: value} if name else {}


def _stats(path: Path, file: StagedFile) -> str:
    stats: dict[str, object] = {"numRecords": file.rows}
    named = data_file(path, path.parent, file.bytes)
    if named.first is not None:
        stats |= {"minValues": {"offset": named.first}, "maxValues": {"offset": named.last}, "nullCount": {"offset": 0}}
    return json.dumps(stats)
