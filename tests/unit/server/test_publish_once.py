"""Publishing an id once through the engine: what is on its way to the disk counts, what the disk refused does not."""

import asyncio
import errno

import pytest

from headrace.broker import Admitted, BrokerSettings
from headrace.model.batch import Protocol, build_batch
from headrace.model.errors import BrokerError, Code
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.server.recovery import recover_broker
from tests.simulation.virtual_engine import Shop, in_virtual_time

SETTINGS = BrokerSettings(dedup_door_s={Protocol.GRPCQ: 10})


def record(shop: Shop, *ids: str, topic: str = "q") -> bytearray:
    now = shop.engine.clock.now()
    part = build_batch(
        topic, [each.encode() for each in ids], timestamp_us=now, protocol=Protocol.GRPCQ, message_ids=ids
    )
    return bytearray(bytes(RECORD_HEADER_SIZE) + part)


def publishing(shop: Shop, *ids: str) -> "asyncio.Task[Admitted]":
    return asyncio.ensure_future(shop.engine.publish_once(record(shop, *ids)))


def with_ids(shop: Shop) -> Shop:
    """The same shop, with a window."""
    shop.engine.broker = recover_broker(shop.engine.log, SETTINGS, shop.engine.clock.now())
    return shop


def stored(shop: Shop) -> list[str]:
    found = []
    for made in shop.engine.log.iter_records(0):
        for part in made.parts():
            if not isinstance(part, tuple):
                found += [part.message(i).message_id or "" for i in range(part.count)]
    return found


@in_virtual_time
async def test_a_repeat_is_answered_as_the_first_one_was(shop: Shop) -> None:
    with_ids(shop)
    assert (await publishing(shop, "a", "b")).repeated == 0
    again = await publishing(shop, "a", "c", "b")
    assert (again.count, again.repeated) == (1, 2)
    assert (await publishing(shop, "a", "b", "c")).is_empty
    assert stored(shop) == ["a", "b", "c"]


@in_virtual_time
async def test_a_repeat_waits_until_the_first_is_durable_wherever_that_is(shop: Shop) -> None:
    with_ids(shop)
    shop.worker.held = True
    flushing = publishing(shop, "a")
    await shop.quiet()
    early = publishing(shop, "a")
    appended = publishing(shop, "b")
    await shop.quiet()
    late = publishing(shop, "b")
    await shop.quiet()
    assert not any(each.done() for each in (flushing, early, appended, late))
    shop.worker.let_go()
    await shop.quiet()
    assert [each.result().count for each in (flushing, early, appended, late)] == [1, 0, 1, 0]
    assert stored(shop) == ["a", "b"]


@in_virtual_time
async def test_a_repeat_of_what_is_durable_waits_for_nothing(shop: Shop) -> None:
    with_ids(shop)
    await publishing(shop, "a")
    shop.worker.held = True
    repeat = publishing(shop, "a")
    await shop.quiet()
    assert repeat.result().is_empty


@in_virtual_time
async def test_when_the_first_is_refused_so_are_its_repeats_and_the_next_is_stored(shop: Shop) -> None:
    with_ids(shop)
    await publishing(shop, "old")
    shop.worker.held = True
    first = publishing(shop, "a")
    await shop.quiet()
    flying, behind = publishing(shop, "a"), publishing(shop, "b", "old")
    await shop.quiet()
    landed = publishing(shop, "b")
    await shop.quiet()
    shop.disk.fail("segment.write", errno.ENOSPC)
    shop.worker.let_go()
    await shop.quiet()
    for each in (first, flying, behind, landed):
        with pytest.raises(BrokerError) as caught:
            await each
        assert caught.value.code is Code.STORAGE
    shop.disk.heal()
    await shop.loop.pause(1)
    again = await publishing(shop, "a", "b", "old")
    assert (again.count, again.repeated) == (2, 1)
    assert stored(shop) == ["old", "a", "b"]
