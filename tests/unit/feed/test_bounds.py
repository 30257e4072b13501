"""Places and memory: each within his share, others served meanwhile, nothing left behind."""

import asyncio

import pytest

from headrace.feed.bounds import Memory, Places
from headrace.feed.threads import Threads, Worker
from headrace.model.errors import BrokerError, Code


def test_places_are_counted_by_key_and_by_address_and_given_back() -> None:
    places = Places("uploads", 2, 3)
    with places.taken("ann", "1.1.1.1"), places.taken("ann", "2.2.2.2"):
        with (
            pytest.raises(BrokerError, match="2 uploads of one key are open") as refused,
            places.taken("ann", "3.3.3.3"),
        ):
            pass
        assert refused.value.code is Code.LIMIT
        with places.taken("bob", "1.1.1.1"):
            with pytest.raises(BrokerError, match="of one address"), places.taken("cy", "1.1.1.1"):
                pass
            with pytest.raises(BrokerError, match="3 uploads are open"), places.taken("cy", "4.4.4.4"):
                pass
    assert places.count == 0
    with pytest.raises(ZeroDivisionError), places.taken("ann", "1.1.1.1"):
        raise ZeroDivisionError
    with places.taken("ann", "1.1.1.1"), places.taken("ann", "1.1.1.1"):
        assert places.count == 2


async def test_who_finds_no_memory_waits_and_others_go_on() -> None:
    memory = Memory(100, 40)
    await memory.take("ann", 30)
    assert not memory.try_take("ann", 20)
    waiting = asyncio.create_task(memory.take("ann", 20))
    given_up = asyncio.create_task(memory.take("ann", 20))
    await memory.take("bob", 40)
    assert not memory.is_short(30)
    assert memory.is_short(31)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert not waiting.done()
    memory.give("ann", 30)
    await waiting
    memory.give("ann", 20)
    memory.give("bob", 40)
    assert memory.promised == 0


async def test_who_is_cancelled_as_he_is_served_leaves_nothing_promised() -> None:
    memory = Memory(100, 40)
    await memory.take("ann", 40)
    waiting = asyncio.create_task(memory.take("ann", 40))
    await asyncio.sleep(0)
    memory.give("ann", 40)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert memory.promised == 0


async def test_one_owner_does_not_have_all_threads() -> None:
    threads = Threads("test", 3, 2)
    loop = asyncio.get_running_loop()
    gates = [asyncio.Event() for _ in range(5)]

    def _blocked(number: int) -> int:
        asyncio.run_coroutine_threadsafe(gates[number].wait(), loop).result(60)
        return number

    jobs = [asyncio.create_task(threads.run("ann", lambda n=n: _blocked(n))) for n in range(5)]  # type: ignore[misc]
    assert await threads.run("bob", lambda: "at once") == "at once"
    jobs[2].cancel()
    await asyncio.gather(jobs[2], return_exceptions=True)
    for gate in gates:
        gate.set()
    assert await asyncio.gather(*jobs[:2], *jobs[3:]) == [0, 1, 3, 4]
    assert await threads.run("ann", lambda: "again") == "again"


async def test_a_job_that_fails_gives_its_turn_back() -> None:
    threads = Threads("test", 1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await threads.run("ann", lambda: 1 // 0)


async def test_the_work_of_one_call_is_done_piece_by_piece() -> None:
    threads = Threads("test", 4, 4)
    worker = Worker(threads, "ann")
    loop = asyncio.get_running_loop()
    gate, done = asyncio.Event(), asyncio.Event()
    order: list[str] = []

    def _first() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(60)
        order.append("first")

    first = asyncio.create_task(worker.run(_first))
    await asyncio.sleep(0)

    def _last() -> None:
        order.append("left")
        loop.call_soon_threadsafe(done.set)

    worker.leave(_last)
    late = asyncio.create_task(worker.run(lambda: order.append("late")))
    first.cancel()
    gate.set()
    await done.wait()
    await asyncio.gather(late, return_exceptions=True)
    assert order == ["first", "left"]
