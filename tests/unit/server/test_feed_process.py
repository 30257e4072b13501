"""The feed process is started, told what it needs, started again when it dies, and ended with the broker."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.config import AuthSection
from headrace.feed.messages import Open, Request
from headrace.model.errors import BrokerError, Code
from headrace.server.feed_process import FeedFailed, FeedProcess
from tests.harness.eventually import eventually

CHILD = (sys.executable, str(Path(__file__).with_name("feed_child.py")))


async def answer(request: Request) -> object:
    """Knows one thing."""
    if request.id == 1:
        return ["a"]
    if request.id == 2:
        raise BrokerError(Code.FORBIDDEN, "not yours")
    raise ZeroDivisionError


def opening(directory: Path) -> Open:
    return Open(log=str(directory / "log"), staging=str(directory / "staging"), host="127.0.0.1", port=0)


def lines(path: Path, count: int) -> list[list[str]] | None:
    found = path.read_text().splitlines() if path.exists() else []
    return [line.split(maxsplit=3) for line in found] if len(found) >= count else None


@pytest.fixture
async def feed() -> AsyncIterator[FeedProcess]:
    process = FeedProcess(command=CHILD)
    yield process
    await process.stop(1.0)


async def test_it_is_told_where_the_log_is_and_says_where_it_listens(feed: FeedProcess, tmp_path: Path) -> None:
    assert await feed.open(opening(tmp_path), answer) == 4711


async def test_requests_are_answered_refused_or_fail_one_by_one(feed: FeedProcess, tmp_path: Path) -> None:
    await feed.open(opening(tmp_path), answer)
    replies = await eventually(lambda: lines(tmp_path / "replies", 3))
    assert sorted(replies) == [
        ["1", "['a']"],
        ["2", "None", "forbidden", "not yours"],
        ["3", "None", "internal", "internal error; the broker's log has the details"],
    ]


async def test_it_is_started_again_on_the_same_port_with_the_newest_keys(feed: FeedProcess, tmp_path: Path) -> None:
    await feed.open(opening(tmp_path), answer)
    feed.take_keys(AuthSection(api_keys=("one", "two")))
    await eventually((tmp_path / "keys").exists)
    first = feed.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    before, after = await eventually(lambda: lines(tmp_path / "opened", 2))
    assert before == [str(first), "0", "0"]
    assert after[1:] == ["4711", "2"]
    assert after[0] == str(feed.pid) != before[0]


async def test_one_that_talks_nonsense_is_replaced(feed: FeedProcess, tmp_path: Path) -> None:
    (tmp_path / "nonsense").touch()
    with pytest.raises(FeedFailed, match="ended before it listened"):
        await feed.open(opening(tmp_path), answer)


async def test_what_it_cannot_do_at_first_stops_the_start(feed: FeedProcess, tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    with pytest.raises(FeedFailed, match="told to fail"):
        await feed.open(opening(tmp_path), answer)


async def test_one_that_dies_at_once_is_tried_again_until_it_can(feed: FeedProcess, tmp_path: Path) -> None:
    await feed.open(opening(tmp_path), answer)
    (tmp_path / "fail").touch()
    died = feed.pid
    assert died is not None
    os.kill(died, signal.SIGKILL)
    await eventually(lambda: feed.pid not in (None, died) or None)
    (tmp_path / "fail").unlink()
    await eventually(lambda: lines(tmp_path / "opened", 2))


async def test_one_that_hangs_is_noticed_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = FeedProcess(command=CHILD, ping_every_s=0.02)
    try:
        await feed.open(opening(tmp_path), answer)
        hung = feed.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        _, after = await eventually(lambda: lines(tmp_path / "opened", 2))
        assert after[0] != str(hung)
        assert [message for message in caplog.messages if message == "feed.hangs"] == ["feed.hangs"]
    finally:
        await feed.stop(1.0)


async def test_one_that_answers_is_left_alone(tmp_path: Path) -> None:
    feed = FeedProcess(command=CHILD, ping_every_s=0.002)
    try:
        await feed.open(opening(tmp_path), answer)
        first = feed.pid
        await eventually(lambda: lines(tmp_path / "replies", 3))
        assert lines(tmp_path / "opened", 2) is None
        assert feed.pid == first
    finally:
        await feed.stop(1.0)


async def test_a_stop_ends_it(feed: FeedProcess, tmp_path: Path) -> None:
    await feed.open(opening(tmp_path), answer)
    await feed.stop(1.0)
    assert feed.pid is None
    assert (tmp_path / "hung-up").exists()


async def test_a_stop_before_it_was_opened_ends_it(feed: FeedProcess) -> None:
    assert feed.pid is not None
    await feed.stop(1.0)
    assert feed.pid is None
