"""Whoever waits for the disk, so that the event loop never does."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from headrace.log import Fill, Flush, new_scribe


class Job(Protocol):
    """Blocking work that keeps its own outcome and does not raise."""

    def run(self) -> None:
        """Do it."""


class Worker(Protocol):
    """Does one job at a time; says when, and how many seconds it took."""

    def submit(self, job: Job) -> None:
        """Begin a job."""

    def stop(self) -> None:
        """Be done after the job under way."""


NewWorker = Callable[[asyncio.AbstractEventLoop, Callable[[Job, float], None]], Worker]


class Committer:
    """Does one job at a time and reports it to the loop with the seconds it took.

    A flush or fill that is a single call of the system goes to the scribe, if it was built; everything else to a
    thread of Python.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[Job, float], None]) -> None:
        self._loop = loop
        self._done = done
        self._began = 0.0
        self._ordered: Flush | Fill | None = None
        self._jobs: SimpleQueue[tuple[Job, Callable[[], None]] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name="headrace-committer", daemon=True)]
        self._scribe = new_scribe()
        if self._scribe is not None:
            self._threads.append(threading.Thread(target=self._scribe.work, name="headrace-scribe", daemon=True))
            loop.add_reader(self._scribe.done, self._written)
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Begin a job; `done` is called in the loop when it ended."""
        self._began = time.perf_counter()
        if self._scribe is not None and isinstance(job, (Flush, Fill)) and (order := job.order()) is not None:
            self._ordered = job
            self._scribe.order(*order)
        else:
            self._jobs.put((job, job.run))

    def stop(self) -> None:
        """End the threads after the job under way."""
        self._jobs.put(None)
        if self._scribe is not None:
            self._scribe.stop()
        for thread in self._threads:
            thread.join()
        if self._scribe is not None:
            self._loop.remove_reader(self._scribe.done)
            if self._ordered is not None:
                with contextlib.suppress(OSError):
                    self._scribe.finish()
            self._scribe.close()

    def _written(self) -> None:
        """The scribe is done; a failure is dealt with where blocking does no harm."""
        assert self._scribe is not None
        assert self._ordered is not None
        job, self._ordered = self._ordered, None
        try:
            self._scribe.finish()
        except OSError as error:
            self._jobs.put((job, partial(job.failed, error)))
            return
        job.landed()
        self._report(job)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, run = item
            run()
            self._loop.call_soon_threadsafe(self._report, job)

    def _report(self, job: Job) -> None:
        self._done(job, time.perf_counter() - self._began)
