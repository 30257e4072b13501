"""Reading from a coroutine: joining, waiting, settling, and going away in the middle of it."""

import asyncio
import errno

import pytest

from headrace.auth import ANONYMOUS, Identity, Scope
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code
from headrace.server.reader import Reader
from tests.simulation.virtual_engine import Shop, in_virtual_time


def told(portions: list[Portion]) -> list[tuple[int, bytes, int]]:
    """Delivery id, value and attempt of each message."""
    return [(p.first_delivery + i, p.batch.value(p.index + i), p.attempt) for p in portions for i in range(p.count)]


async def joined(shop: Shop, *, tail: bool = False) -> Reader:
    reader = Reader(shop.engine, ANONYMOUS)
    await reader.join("t", "team", tail=tail)
    return reader


@in_virtual_time
async def test_joining_is_durable_and_finds_what_others_share(shop: Shop) -> None:
    first, second = await joined(shop), await joined(shop)
    assert first.subscription == second.subscription
    assert shop.engine.log.durable_offset == shop.engine.log.next_offset == 1


@in_virtual_time
async def test_joining_is_refused_to_who_may_not_read_the_topic(shop: Shop) -> None:
    reader = Reader(shop.engine, Identity("x", Scope(["*"]), Scope(["other"])))
    with pytest.raises(BrokerError) as refusal:
        await reader.join("t", "team")
    assert refusal.value.code is Code.FORBIDDEN


@in_virtual_time
async def test_joining_is_refused_while_the_log_cannot_be_written(shop: Shop) -> None:
    await shop.publish("t", b"a")
    shop.disk.fail("segment.write", errno.ENOSPC)
    with pytest.raises(BrokerError):
        await shop.publish("t", b"b")
    with pytest.raises(BrokerError) as refusal:
        await joined(shop)
    assert refusal.value.code is Code.STORAGE


@in_virtual_time
async def test_a_fetch_brings_what_there_is(shop: Shop) -> None:
    await shop.publish("t", b"a", b"b", b"c")
    reader = await joined(shop)
    assert told(await reader.fetch(2, 0)) == [(1, b"a", 1), (2, b"b", 1)]
    assert told(await reader.fetch(2, 0)) == [(3, b"c", 1)]
    assert await reader.fetch(2, 0) == []


@in_virtual_time
async def test_a_fetch_is_bounded_in_bytes_but_brings_one(shop: Shop) -> None:
    await shop.publish("t", b"x" * 100, b"y" * 100)
    reader = await joined(shop)
    assert len(told(await reader.fetch(9, 0, size_max=10))) == 1


@in_virtual_time
async def test_a_fetch_waits_until_something_comes_or_its_time_is_up(shop: Shop) -> None:
    reader = await joined(shop)
    waiting = shop.loop.create_task(reader.fetch(9, 5))
    await shop.loop.pause(4)
    assert not waiting.done()
    await shop.publish("t", b"a")
    assert told(await waiting) == [(1, b"a", 1)]
    began = shop.loop.time()
    assert await reader.fetch(9, 5) == []
    assert 5 <= shop.loop.time() - began < 5.1


@in_virtual_time
async def test_a_cancelled_fetch_takes_nothing_and_passes_its_call_on(shop: Shop) -> None:
    impatient, patient = await joined(shop), await joined(shop)
    first = shop.loop.create_task(impatient.fetch(1, 60))
    second = shop.loop.create_task(patient.fetch(1, 60))
    await shop.quiet()
    publishing = shop.loop.create_task(shop.publish("t", b"a"))
    while not shop.engine.publishes_settled:
        await shop.loop.pause(0)
    first.cancel()
    assert told(await second) == [(1, b"a", 1)]
    await publishing
    with pytest.raises(asyncio.CancelledError):
        await first


@in_virtual_time
async def test_what_is_timed_comes_back_when_its_time_is_up(shop: Shop) -> None:
    await shop.publish("t", b"a")
    reader, other = await joined(shop), await joined(shop)
    await reader.fetch(1, 0, timed=True, ack_wait_s=10)
    reader.forget()
    began = shop.loop.time()
    assert told(await other.fetch(1, 60)) == [(1, b"a", 2)]
    assert 10 <= shop.loop.time() - began < 10.1


@in_virtual_time
async def test_what_is_held_comes_back_only_when_it_is_given_back(shop: Shop) -> None:
    await shop.publish("t", b"a")
    reader, other = await joined(shop, tail=True), await joined(shop, tail=True)
    await reader.fetch(1, 0)
    assert await other.fetch(1, 3600) == []
    reader.release()
    assert told(await other.fetch(1, 0)) == [(1, b"a", 2)]


@in_virtual_time
async def test_settling_is_durable_on_return_and_tells_each_apart(shop: Shop) -> None:
    await shop.publish("t", b"a", b"b", b"c")
    reader = await joined(shop)
    await reader.fetch(9, 0)
    assert await reader.settle([3, 9, 1, 3]) == [True, False, True, False]
    assert shop.engine.log.durable_offset == shop.engine.log.next_offset
    assert await reader.settle([2], failed=True, reason="no") == [True]
    assert told(await reader.fetch(9, 60)) == [(2, b"b", 2)]


@in_virtual_time
async def test_settling_waits_for_a_disk_that_fails_for_a_while(shop: Shop) -> None:
    await shop.publish("t", b"a")
    reader = await joined(shop)
    await reader.fetch(1, 0)
    await shop.quiet()
    shop.disk.fail("segment.write", errno.ENOSPC, 3)
    began = shop.loop.time()
    assert await reader.settle([1]) == [True]
    assert shop.loop.time() - began > 0.2
    assert shop.engine.broker.counters.acked == 1
