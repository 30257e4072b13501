"""Events nobody waits for: written soon, with as few trips to the disk as that takes."""

from headrace.server.engine import EVENTS_WAIT_S
from tests.simulation.virtual_engine import Shop, in_virtual_time

A_MOMENT_S = EVENTS_WAIT_S / 10


def an_event(shop: Shop) -> int:
    """Something happened that is to be recorded; the ticket that says when it is."""
    engine = shop.engine
    engine.broker.subscribe("t", qos=1, owner="a", at=engine.log.next_offset, now=engine.clock.now())
    return engine.journal()


def trips(shop: Shop) -> int:
    """How often the disk has written so far."""
    return sum(shop.engine.sync_seconds.counts)


@in_virtual_time
async def test_an_event_is_written_by_itself_before_long(shop: Shop) -> None:
    ticket = an_event(shop)
    await shop.loop.pause(2 * EVENTS_WAIT_S)
    assert (trips(shop), shop.engine.events_settled) == (1, ticket)


@in_virtual_time
async def test_events_between_publishes_never_need_a_trip_of_their_own(shop: Shop) -> None:
    for _ in range(30):
        an_event(shop)
        await shop.loop.pause(EVENTS_WAIT_S / 2)
        await shop.publish("t", b"a")
    assert trips(shop) == 30


@in_virtual_time
async def test_an_event_behind_a_flush_is_written_soon_after_the_publishes_end(shop: Shop) -> None:
    an_event(shop)
    await shop.publish("t", b"a")
    ticket = an_event(shop)
    await shop.loop.pause(3 * EVENTS_WAIT_S)
    assert (trips(shop), shop.engine.events_settled) == (2, ticket)


@in_virtual_time
async def test_events_on_both_sides_of_a_flush_become_one_record(shop: Shop) -> None:
    shop.worker.held = True
    publishing = shop.loop.create_task(shop.publish("t", b"a"))
    await shop.loop.pause(0)
    appended = shop.engine.log.appends_total
    an_event(shop)
    shop.worker.let_go()
    await publishing
    ticket = an_event(shop)
    await shop.loop.pause(3 * EVENTS_WAIT_S)
    assert (shop.engine.log.appends_total, shop.engine.events_settled) == (appended + 1, ticket)


@in_virtual_time
async def test_a_broker_that_is_asked_to_drain_writes_its_events_at_once(shop: Shop) -> None:
    an_event(shop)
    await shop.publish("t", b"a")
    ticket = an_event(shop)
    before = shop.loop.time()
    await shop.engine.drained(1.0)
    assert shop.engine.events_settled == ticket
    assert shop.loop.time() - before < A_MOMENT_S
