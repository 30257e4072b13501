"""Commits in a process that is killed with -9 at a named step."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from headrace.spark.lake.compaction import compact
from headrace.spark.lake.layout import FORMATS
from headrace.spark.lake.store import Step
from headrace.spark.lake.stores import open_store
from tests.unit.spark_lake.tables import APPEND, NOON, UPSERT, minutes, rows, write

Doomed = Callable[[Path, str, Step], object]

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__, *(f"headrace.spark.lake.{form}" for form in FORMATS)])


def append(lake: Path, form: str, step: Step) -> None:
    """A batch with rows of two days."""
    write(lake, form, APPEND, 1, rows(10, 10), rows(20, 10, NOON + timedelta(days=1)), step=step)


def upsert(lake: Path, form: str, step: Step) -> None:
    """A batch that changes two buckets."""
    write(lake, form, UPSERT, 1, minutes({(0, "a"): 2, (60, "a"): 3}), step=step)


def compacted(lake: Path, form: str, step: Step) -> None:
    """A compaction of all there is."""
    compact(open_store(lake, form, APPEND, step), files_min=2)


def killed_at(step: str, doomed: Doomed, lake: Path, form: str) -> None:
    """Run it in a process of its own that dies when it reaches the step."""
    child = _processes.Process(target=_run, args=(doomed, lake, form, step))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, "the step was never reached"


def _run(doomed: Doomed, lake: Path, form: str, step: str) -> None:
    def _reached(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    doomed(lake, form, _reached)
