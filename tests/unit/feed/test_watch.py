"""Waiting for the log to grow."""

import threading
from collections.abc import Callable

import pytest

from headrace.feed import watch
from headrace.feed.watch import Watch
from headrace.model.errors import StorageError


class Growing:
    """The newest offset, which tests set; counts who looked."""

    def __init__(self) -> None:
        self.latest = 10
        self.looks = 0
        self.enough = threading.Event()

    def __call__(self) -> int:
        self.looks += 1
        if self.looks > 5:
            self.enough.set()
        return self.latest


def in_thread(call: Callable[[], int]) -> tuple[threading.Thread, list[int]]:
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def test_what_is_there_is_answered_at_once() -> None:
    assert Watch(Growing()).wait(9, 1000) == 10


def test_a_time_out_is_answered_with_what_there_is() -> None:
    assert Watch(Growing()).wait(10, 0) == 10
    assert Watch(Growing()).wait(10, 0.01) == 10


def test_everybody_is_answered_when_their_offset_has_come() -> None:
    growing = Growing()
    waiting = Watch(growing)
    early = [in_thread(lambda: waiting.wait(10, 1000)) for _ in range(3)]
    late = in_thread(lambda: waiting.wait(11, 1000))
    assert growing.enough.wait(60)
    growing.latest = 11
    for thread, answers in early:
        thread.join(60)
        assert answers == [11]
    assert late[0].is_alive()
    growing.latest = 12
    late[0].join(60)
    assert late[1] == [12]


def test_nobody_looks_when_nobody_waits() -> None:
    growing = Growing()
    before = threading.active_count()
    waiting = Watch(growing)
    thread, _ = in_thread(lambda: waiting.wait(10, 1000))
    assert growing.enough.wait(60)
    growing.latest = 11
    thread.join(60)
    for each in threading.enumerate():
        if each.name == "watch":
            each.join(60)
    looks = growing.looks
    assert threading.active_count() <= before
    assert growing.looks == looks


def test_a_crowd_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WAITERS_MAX", 0)
    assert Watch(Growing()).wait(10, 1000) == 10


def test_a_log_that_cannot_be_read_is_told_to_who_waits() -> None:
    answers = iter([10])

    def _latest() -> int:
        for answer in answers:
            return answer
        raise StorageError("damaged")

    with pytest.raises(StorageError, match="damaged"):
        Watch(_latest).wait(10, 0.05)
