"""The one thread that waits for the disk, so that the event loop never does."""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol


class Job(Protocol):
    """Blocking work that keeps its own outcome and does not raise."""

    def run(self) -> None:
        """Do it."""


class Committer:
    """Runs jobs one after the other and reports each to the loop with the seconds it took."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[Job, float], None]) -> None:
        self._loop = loop
        self._done = done
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="headrace-committer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; `done` is called in the loop when it ended."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End the thread after the jobs already queued."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            began = time.perf_counter()
            job.run()
            self._loop.call_soon_threadsafe(self._done, job, time.perf_counter() - began)
