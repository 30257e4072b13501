"""Starts the tables' queries, watches them, starts again what failed, and compacts now and then. Prints nothing."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from headrace.model.errors import HeadraceError
from headrace.spark.lake.compaction import compact
from headrace.spark.lake.disk import locked, make_folder
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import LakeError
from headrace.spark.pipeline.definition import PipelineTable
from headrace.spark.pipeline.handlers import NAME as HANDLERS
from headrace.spark.pipeline.handlers import Call, Handler
from headrace.spark.pipeline.queries import register, start_handlers, start_query
from headrace.spark.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FAILURES_MAX = 5
BACKOFF_S = 1.0
BACKOFF_S_MAX = 30.0
COMPACT_EVERY_S = 60.0
COMPACT_FILES_MIN = 64
NICENESS = 10
"""Compaction is in no hurry. On Linux this is a matter of the thread alone."""

logger = logging.getLogger("headrace.spark.pipeline")


class PipelineFailed(HeadraceError):
    """A table's query failed again and again; the text names it and says why."""


class Runner:
    """One query, a table's or the handlers', started again from its checkpoint when it fails."""

    def __init__(
        self, name: str, start: "Callable[[], StreamingQuery]", table: PipelineTable | None = None, *, once: bool
    ) -> None:
        self.name = name
        self.table = table
        self.failures = 0
        self.restarts = 0
        self.reason = ""
        self._begin = start
        self._once = once
        self._due_s = 0.0
        self._stopped = False
        self.query: StreamingQuery | None = None

    @property
    def done(self) -> bool:
        """Whether a query that ends by itself has ended well."""
        ended = self.query is not None and not self.query.isActive and self.query.exception() is None
        return self._once and ended and not self._stopped

    def watch(self, now_s: float) -> None:
        """Start the query when it is due. Raises PipelineFailed when it failed too often without getting anywhere."""
        if self.query is None:
            if now_s >= self._due_s:
                self._start(now_s)
            return
        if not self.query.isActive and (error := self.query.exception()) is not None:
            if self.query.lastProgress is not None:
                self.failures = 0
            self.query = None
            self._failed(_first_line(str(error)), now_s)

    def stop(self) -> None:
        """End the query; what it has not committed is done again by the next one."""
        if self.query is not None and self.query.isActive:
            self._stopped = True
            self.query.stop()

    def _start(self, now_s: float) -> None:
        try:
            self.query = self._begin()
        except Exception as error:
            self._failed(_first_line(str(error)), now_s)

    def _failed(self, reason: str, now_s: float) -> None:
        self.failures += 1
        self.reason = reason
        if self.failures >= FAILURES_MAX:
            raise PipelineFailed(f"{self.name} failed {self.failures} times in a row: {reason}")
        self.restarts += 1
        pause_s = min(BACKOFF_S * 2 ** (self.failures - 1), BACKOFF_S_MAX)
        self._due_s = now_s + pause_s
        logger.warning("pipeline.restart query=%s in_s=%.1f reason=%s", self.name, pause_s, reason)


class Pipeline:
    """The queries of some tables, and of handlers, in one session."""

    def __init__(
        self,
        spark: "SparkSession",
        tables: Sequence[PipelineTable],
        settings: Settings,
        *,
        handlers: Mapping[Call, Handler] | None = None,
        once: bool = False,
    ) -> None:
        register(spark)
        self.settings = settings
        self.runners = [
            Runner(table.name, partial(start_query, spark, table, settings, once=once, place=place), table, once=once)
            for place, table in enumerate(tables)
        ]
        if handlers:
            self.runners.append(
                Runner(HANDLERS, partial(start_handlers, spark, handlers, settings, once=once), once=once)
            )

    @property
    def done(self) -> bool:
        """Whether all tables have caught up; never the case of a pipeline that goes on."""
        return all(runner.done for runner in self.runners)

    def watch(self) -> None:
        """Look after every query once. Raises PipelineFailed."""
        now_s = time.monotonic()
        for runner in self.runners:
            runner.watch(now_s)

    def stop(self) -> None:
        """End all queries."""
        for runner in self.runners:
            runner.stop()

    def run(self, stopping: threading.Event, look_s: float = 0.5) -> Iterator[None]:
        """Keep the queries going until they are done or `stopping` is set; yields after each look at them.

        Raises PipelineFailed, and LakeError when another pipeline runs on this lake.
        """
        layout = Layout(self.settings.lake)
        make_folder(layout.run_lock.parent)
        try:
            with locked(layout.run_lock, timeout_s=0.0), self._compacting(stopping):
                while not stopping.is_set():
                    self.watch()
                    yield
                    if self.done:
                        return
                    stopping.wait(look_s)
        finally:
            self.stop()

    @contextmanager
    def _compacting(self, stopping: threading.Event) -> Iterator[None]:
        """Join small files in a thread of its own meanwhile."""
        ended = threading.Event()

        def _work() -> None:
            os.nice(NICENESS)
            while not ended.wait(COMPACT_EVERY_S) and not stopping.is_set():
                for runner in self.runners:
                    if runner.table is not None:
                        compact_quietly(runner.table, self.settings)

        thread = threading.Thread(target=_work, name="compaction", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def compact_quietly(table: PipelineTable, settings: Settings) -> None:
    """Join a table's small files if there are many; a failure is logged and costs nothing but small files."""
    if not Layout(settings.lake).control(table.name).is_dir():
        return
    try:
        compact(open_store(settings.lake, settings.form, table.spec), files_min=COMPACT_FILES_MIN)
    except (LakeError, OSError) as error:
        logger.warning("pipeline.compaction table=%s reason=%s", table.name, error)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line.partition(":")[0] or "DataLoss" in line]
    return (named or lines or ["unknown"])[-1 if named else 0][:500]
