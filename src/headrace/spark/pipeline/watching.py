"""What is known of a table at a moment: rows, files, lag, freshness. From the lake, its checkpoint, its query."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from headrace.spark.lake.commit import last_commit
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import DataFile
from headrace.spark.pipeline.definition import PipelineTable
from headrace.spark.pipeline.positions import batches, position
from headrace.spark.pipeline.run import Runner
from headrace.spark.pipeline.settings import Settings


@dataclass(frozen=True, kw_only=True)
class TableStatus:
    """A table at rest. `lag` counts offsets of the log; `freshness_ms` is how old the newest row was when it came."""

    table: str
    rows: int
    files: int
    bytes: int
    batches: int
    offset: int | None
    lag: int | None
    freshness_ms: float | None
    committed_us: int | None


@dataclass(frozen=True, kw_only=True)
class TableProgress:
    """A table being filled."""

    table: str
    state: str
    batch: int | None
    rows_per_s: float
    lag: int | None
    freshness_ms: float | None
    files: int
    restarts: int
    reason: str


def status(table: PipelineTable, settings: Settings, latest: int | None) -> TableStatus:
    """What the lake says about a table; `latest` is the log's end if the broker is there."""
    files = open_store(settings.lake, settings.form, table.spec).files()
    last = last_commit(Layout(settings.lake).control(table.name))
    offset = position(settings.lake, table.name)
    return TableStatus(
        table=table.name,
        rows=sum(map(_rows, files)),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        batches=batches(settings.lake, table.name),
        offset=offset,
        lag=None if latest is None else max(0, latest - (offset or 0)),
        freshness_ms=_freshness_ms(table, settings),
        committed_us=last.committed_us if last else None,
    )


class Watch:
    """Looks at a running table."""

    def __init__(self, runner: Runner, settings: Settings) -> None:
        self._runner = runner
        self._settings = settings
        self._batch = -1

    def look(self) -> TableProgress:
        """The table now."""
        runner = self._runner
        query = runner.query
        progress: Any = query.lastProgress if query is not None else None
        fresh = progress is not None and progress.batchId != self._batch
        self._batch = progress.batchId if fresh else self._batch
        return TableProgress(
            table=runner.name,
            state=_state(runner),
            batch=progress.batchId if progress else None,
            rows_per_s=(progress.inputRowsPerSecond or 0.0) if fresh else 0.0,
            lag=_lag(progress),
            freshness_ms=_freshness_ms(runner.table, self._settings) if runner.table else None,
            files=self._files(),
            restarts=runner.restarts,
            reason=runner.reason,
        )

    def _files(self) -> int:
        if self._runner.table is None:
            return 0
        return len(open_store(self._settings.lake, self._settings.form, self._runner.table.spec).files())


def _state(runner: Runner) -> str:
    if runner.done:
        return "done"
    if runner.query is None:
        return "failed" if runner.failures else "starting"
    return "running" if runner.query.isActive else "stopped"


def _lag(progress: Any) -> int | None:
    """How many offsets of the log the query has not taken yet, by its own last word."""
    if progress is None or not progress.sources:
        return None
    source = progress.sources[0]
    ends = [_offset(source.latestOffset), _offset(source.endOffset)]
    return None if ends[0] is None or ends[1] is None else max(0, ends[0] - ends[1])


def _offset(text: str | None) -> int | None:
    try:
        return int(json.loads(text or "")["offset"])
    except (ValueError, KeyError, TypeError):
        return None


def _freshness_ms(table: PipelineTable, settings: Settings) -> float | None:
    last = last_commit(Layout(settings.lake).control(table.name))
    if last is None or not last.newest_us or table.aggregate:
        return None
    return max(0.0, (last.committed_us - last.newest_us) / 1000)


def _rows(file: DataFile) -> int:
    return pq.read_metadata(file.path).num_rows if file.rows is None else file.rows
