"""Tables in Iceberg's format, written by pyiceberg: no jar, the catalog a SQLite file in the lake.

A batch is one transaction of the catalog: a snapshot with its files and, as a property of the table, the writer's batch
number. A file in the folder that no snapshot names is invisible.
"""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform

from headrace.spark.lake.disk import make_folder, sync_folder
from headrace.spark.lake.ground import Ground
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.staging import drop_stale
from headrace.spark.lake.store import Step, unwatched
from headrace.spark.lake.table import DataFile, StagedFile, TableSpec, data_file

STEPS = ("moved", "visible")
NAMESPACE = "lake"
_WRITER = "headrace.writer."
_KEPT_S = 86_400
_NAME_MAPPING = "schema.name-mapping.default"
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergStore(Ground):
    """An Iceberg table; its catalog names files by their absolute paths."""

    def __init__(self, layout: Layout, spec: TableSpec, step: Step = unwatched) -> None:
        super().__init__(layout, spec, step)
        self._table = self._table.absolute()

    def committed(self, writer: str) -> int | None:
        """The newest batch of this writer, from the table's properties."""
        found = self._open()
        batch = None if found is None else found.properties.get(_WRITER + writer)
        return None if batch is None else int(batch)

    def files(self) -> list[DataFile]:
        """The files of the table's current snapshot."""
        return sorted(self._described(file) for file in self._present().values())

    def publish(self, writer: str, batch: int, added: Sequence[StagedFile], removed: Sequence[DataFile]) -> None:
        """One transaction with all of it."""
        self._commit(added, removed, {_WRITER + writer: str(batch)})

    def swap(self, added: Sequence[StagedFile], removed: Sequence[DataFile]) -> None:
        """One snapshot with other files and the same rows."""
        self._commit(added, removed, {})

    def tidy(self, before_s: float) -> None:
        """Delete dead tasks' files, and forget snapshots older than a day."""
        drop_stale(self.staging, before_s)
        found = self._open()
        if found is not None and found.current_snapshot() is not None:
            limit = datetime.fromtimestamp(before_s - _KEPT_S, UTC).replace(tzinfo=None)
            found.maintenance.expire_snapshots().older_than(limit).commit()

    def _catalog(self) -> SqlCatalog:
        make_folder(self._layout.catalog.parent)
        root = self._layout.root.absolute()
        catalog = SqlCatalog("headrace", uri=f"sqlite:///{self._layout.catalog.absolute()}", warehouse=f"file://{root}")
        try:
            catalog.create_namespace(NAMESPACE)
        except NamespaceAlreadyExistsError:
            return catalog
        return catalog

    def _open(self) -> Table | None:
        if not self._layout.catalog.exists():
            return None
        try:
            return self._catalog().load_table((NAMESPACE, self.spec.name))
        except NoSuchTableError:
            return None

    def _commit(self, added: Sequence[StagedFile], removed: Sequence[DataFile], noted: dict[str, str]) -> None:
        if not added and not removed and self._open() is None:
            return
        paths = [self._moved(file) for file in added]
        self._step("moved")
        table = self._evolved(self._open(), paths)
        present = self._present() if removed else {}
        gone = [present[file.path] for file in removed]
        with table.transaction() as change:
            if noted:
                change.set_properties(noted)
            if paths or gone:
                update = change.update_snapshot()
                with update.overwrite() if gone else update.fast_append() as snapshot:
                    for file in gone:
                        snapshot.delete_data_file(file)
                    urls = iter([f"file://{path}" for path in paths])
                    for fresh in parquet_files_to_data_files(table.io, change.table_metadata, urls):
                        snapshot.append_data_file(fresh)
        self._step("visible")

    def _moved(self, file: StagedFile) -> Path:
        """The file where the table will find it, under a name that was never used."""
        name = f"{file.name.removesuffix('.parquet')}-{uuid.uuid4().hex[:12]}.parquet" if self.spec.keys else file.name
        target = self._table / "data" / file.partition / name
        make_folder(target.parent)
        Path(file.path).rename(target)
        sync_folder(target.parent)
        return target

    def _evolved(self, table: Table | None, paths: Sequence[Path]) -> Table:
        """The table, with all columns these files have."""
        schema = pa.unify_schemas([pq.read_schema(path) for path in paths]) if paths else pa.schema([])
        if table is None:
            return self._created(schema)
        known = set(table.schema().column_names)
        if any(name not in known for name in schema.names):
            with table.update_schema() as change:
                change.union_by_name(schema)
            with table.transaction() as noted:
                noted.set_properties({_NAME_MAPPING: table.schema().name_mapping.model_dump_json()})
        return table

    def _created(self, schema: pa.Schema) -> Table:
        catalog = self._catalog()
        with catalog.create_table_transaction(
            (NAMESPACE, self.spec.name), schema, location=f"file://{self._table}", properties=_PROPERTIES
        ) as change:
            if self.spec.time is not None:
                with change.update_spec() as partitioning:
                    partitioning.add_field(self.spec.time, DayTransform(), "date")
        table = catalog.load_table((NAMESPACE, self.spec.name))
        with table.transaction() as noted:
            noted.set_properties({_NAME_MAPPING: table.schema().name_mapping.model_dump_json()})
        return table

    def _present(self) -> dict[Path, Any]:
        """The catalog's own description of each file, by its path."""
        table = self._open()
        if table is None:
            return {}
        return {_path(task.file.file_path): task.file for task in table.scan().plan_files()}

    def _described(self, file: Any) -> DataFile:
        described = data_file(_path(file.file_path), self._table / "data", file.file_size_in_bytes)
        return described._replace(rows=file.record_count)


def _path(url: str) -> Path:
    return Path(url.removeprefix("file://"))
