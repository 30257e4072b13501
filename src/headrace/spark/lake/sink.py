"""Spark's `format("headrace_lake")`: the sink that fills the lake's tables, by stream or by batch job.

Options: `path` (the lake), `tableformat`, `table` (a TableSpec as text), and for batch jobs `writer`, the job's own id.
Tasks stage files, the driver commits them: one commit for each micro-batch, known by the query's id and the batch's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.spark.daemon import settle
from headrace.spark.lake.commit import commit, note_last
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.staging import discard, stage, staged_folder
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import StagedFile, TableSpec

FORMAT = "headrace_lake"
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged, for which writer."""

    writer: str
    files: list[StagedFile]


@dataclass(frozen=True)
class Target:
    """The table a writer writes to."""

    lake: Path
    form: str
    spec: TableSpec

    @property
    def control(self) -> Path:
        """The table's control folder."""
        return Layout(self.lake).control(self.spec.name)

    def staged(self, writer: str, batches: Iterator[pa.RecordBatch]) -> Staged:
        """One task's rows as files."""
        settle()
        return Staged(writer, stage(batches, self.spec, staged_folder(self.control)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Have the table hold everything the tasks staged."""
        found = _of(messages)
        if not found:
            return
        files = [file for each in found for file in each.files]
        if commit(open_store(self.lake, self.form, self.spec), found[0].writer, batch, files) and files:
            note_last(self.control, found[0].writer, batch, files)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what the tasks staged.

        Spark asks for this after a commit that failed, too. Where that had decided already, whoever locks the table
        finishes it, and only then the rest is dropped.
        """
        files = [file for each in _of(messages) for file in each.files]
        with open_store(self.lake, self.form, self.spec).locked():
            discard(files)


class LakeSink(DataSource):
    """The data source Spark knows by the name `headrace_lake`."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer of a stream."""
        settle()
        return _StreamWriter(self._target())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of a batch job."""
        return _BatchWriter(self._target(), self.options["writer"])

    def _target(self) -> Target:
        return Target(Path(self.options["path"]), self.options["tableformat"], TableSpec.decode(self.options["table"]))


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """One task's rows, staged."""
        task = TaskContext.get()
        assert task is not None
        writer = task.getLocalProperty(_QUERY_ID)
        assert writer is not None
        return self._target.staged(writer, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Everything the tasks staged, into the table."""
        settle()
        self._target.commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing of it: the files are dropped."""
        self._target.abort(messages)


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, target: Target, writer: str) -> None:
        self._target = target
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """One task's rows, staged."""
        return self._target.staged(self._writer, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything the tasks staged, into the table."""
        self._target.commit(messages, 0)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing of it: the files are dropped."""
        self._target.abort(messages)


def _of(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [each for each in messages if isinstance(each, Staged)]
