"""Waiting for the log to grow."""

import asyncio
from collections.abc import Iterator

import pytest

from headrace.feed.watch import Watch
from headrace.model.errors import StorageError


class Growing:
    """The newest offset, which tests set; counts who looked."""

    def __init__(self) -> None:
        self.latest = 10
        self.looks = 0
        self.enough = asyncio.Event()

    def __call__(self) -> int:
        self.looks += 1
        if self.looks > 5:
            self.enough.set()
        return self.latest


async def test_what_is_there_is_answered_at_once() -> None:
    assert await Watch(Growing()).wait(9, 1000) == 10


async def test_a_time_out_is_answered_with_what_there_is() -> None:
    assert await Watch(Growing()).wait(10, 0) == 10
    assert await Watch(Growing()).wait(10, 0.01) == 10


async def test_everybody_is_answered_when_their_offset_has_come() -> None:
    growing = Growing()
    waiting = Watch(growing)
    early = [asyncio.create_task(waiting.wait(10, 1000)) for _ in range(300)]
    late = asyncio.create_task(waiting.wait(11, 1000))
    await growing.enough.wait()
    growing.latest = 11
    assert set(await asyncio.gather(*early)) == {11}
    assert not late.done()
    growing.latest = 12
    assert await late == 12


async def test_nobody_looks_when_nobody_waits() -> None:
    growing = Growing()
    waiting = Watch(growing)
    asked = asyncio.create_task(waiting.wait(10, 1000))
    await growing.enough.wait()
    growing.latest = 11
    await asked
    others = [each for each in asyncio.all_tasks() if each.get_name() == "feed-watch"]
    await asyncio.gather(*others)
    looks = growing.looks
    assert await waiting.wait(10, 1000) == 11
    assert growing.looks == looks + 1
    assert [each for each in asyncio.all_tasks() if each.get_name() == "feed-watch"] == []


async def test_who_goes_away_is_waited_for_no_longer() -> None:
    growing = Growing()
    waiting = Watch(growing)
    asked = [asyncio.create_task(waiting.wait(10, 1000)) for _ in range(3)]
    await growing.enough.wait()
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.gather(*(each for each in asyncio.all_tasks() if each.get_name() == "feed-watch"))
    assert await waiting.wait(9, 0) == 10


async def test_a_log_that_cannot_be_read_is_told_to_who_waits() -> None:
    answers: Iterator[int] = iter([10])

    def _latest() -> int:
        for answer in answers:
            return answer
        raise StorageError("damaged")

    with pytest.raises(StorageError, match="damaged"):
        await Watch(_latest).wait(10, 0.05)
