"""A query that fails is started again after a pause, and given up when it gets nowhere."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.spark.pipeline.run import FAILURES_MAX, PipelineFailed, Runner


class Query:
    """A query as Spark shows it."""

    def __init__(self, error: str | None = None, *, active: bool = False, progressed: bool = False) -> None:
        self.isActive = active
        self.lastProgress = SimpleNamespace(batchId=3) if progressed else None
        self._error = error
        self.stopped = False

    def exception(self) -> str | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False
        self.stopped = True


def runner(*queries: Query | Exception, once: bool = False) -> Runner:
    given = iter(queries)

    def _start() -> Any:
        each = next(given)
        if isinstance(each, Exception):
            raise each
        return each

    return Runner("messages", _start, once=once)


def _watch(watched: Runner, seconds: range) -> None:
    for second in seconds:
        watched.watch(second)


def test_a_query_is_started_again_after_growing_pauses() -> None:
    watched = runner(Query("no broker"), Query("no broker"), Query(active=True))
    started: list[float] = []
    for tick in range(60):
        before = watched.query
        watched.watch(tick / 10)
        if watched.query is not None and watched.query is not before:
            started.append(tick / 10)
    assert started == pytest.approx([0.0, 1.1, 3.2])
    assert (watched.restarts, watched.reason) == (2, "no broker")


def test_a_query_that_never_gets_anywhere_is_given_up() -> None:
    watched = runner(*[Query("no broker")] * FAILURES_MAX)
    with pytest.raises(PipelineFailed, match=f"messages failed {FAILURES_MAX} times in a row: no broker"):
        _watch(watched, range(1000))


def test_a_query_that_cannot_even_start_is_tried_again() -> None:
    watched = runner(ValueError("bad option"), Query(active=True))
    for second in range(3):
        watched.watch(second)
    assert watched.query is not None
    assert watched.restarts == 1


def test_progress_forgives_earlier_failures() -> None:
    watched = runner(*[Query("lost", progressed=True)] * 3 * FAILURES_MAX)
    for second in range(0, 60 * FAILURES_MAX, 30):
        watched.watch(second)
    assert watched.failures <= 1


def test_caught_up_is_not_the_same_as_stopped() -> None:
    ended = runner(Query(), once=True)
    ended.watch(0.0)
    assert ended.done
    stopped = runner(Query(active=True), once=True)
    stopped.watch(0.0)
    stopped.stop()
    assert not stopped.done


def test_of_spark_s_words_the_cause_is_told() -> None:
    text = (
        "[ENGINE] Something\n at java.lang\nheadrace.feed.client.FeedError: no such topic\n === Streaming Query ===\n"
    )
    watched = runner(Query(text), Query(active=True))
    watched.watch(0.0)
    watched.watch(0.1)
    assert watched.reason == "headrace.feed.client.FeedError: no such topic"
