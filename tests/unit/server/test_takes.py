"""Takes that find nothing while messages for them are on their way to the disk."""

import errno

from headrace.auth import ANONYMOUS
from headrace.model.requests import Ack, Exchange, Fence, Take
from headrace.server.readings import TAKE_MAX
from tests.simulation.virtual_engine import Shop, a_publish, in_virtual_time


def subscribed(shop: Shop, topic: str, owner: str = ANONYMOUS.owner) -> int:
    """A subscription to what is published from now on."""
    engine = shop.engine
    now = engine.clock.now()
    return engine.broker.subscribe(topic, qos=1, owner=owner, at=engine.log.next_offset, now=now)


def published_but_held(shop: Shop, *values: bytes) -> int:
    """A subscription whose messages are on their way to a disk that does nothing until it is let go."""
    sub = subscribed(shop, "t")
    shop.worker.held = True
    shop.talk().ask(a_publish("t", *values))
    return sub


def a_take(subscription: int, count: int = 1) -> Take:
    return Take(subscription, count, bytes(8 * count))


@in_virtual_time
async def test_a_take_that_finds_nothing_waits_for_what_is_on_its_way(shop: Shop) -> None:
    talk, sub = shop.talk(), published_but_held(shop, b"a", b"b")
    talk.ask(a_take(sub, 5), Fence(1))
    await shop.quiet()
    talk.ask(Fence(2))
    assert talk.said == []
    shop.worker.let_go()
    assert talk.said == ["deliver a,b"]
    await shop.quiet()
    assert talk.said == ["deliver a,b", "fence 1", "fence 2"]


@in_virtual_time
async def test_messages_are_on_their_way_before_their_publisher_hears_that_they_are_stored(shop: Shop) -> None:
    taker, publisher = shop.talk(), shop.talk()
    said = taker.said = publisher.said
    sub = subscribed(shop, "t")
    shop.worker.held = True
    publisher.ask(a_publish("t", b"a"), Fence(1))
    taker.ask(a_take(sub))
    await shop.quiet()
    shop.worker.let_go()
    assert said == ["deliver a", "fence 1"]


@in_virtual_time
async def test_it_waits_for_what_was_appended_behind_the_flush_under_way(shop: Shop) -> None:
    talk, publisher = shop.talk(), shop.talk()
    sub = subscribed(shop, "t")
    shop.worker.held = True
    publisher.ask(a_publish("other", b"x"))
    await shop.quiet()
    publisher.ask(a_publish("t", b"a"))
    talk.ask(a_take(sub), Fence(1))
    shop.worker.let_go()
    assert talk.said == []
    await shop.quiet()
    assert talk.said == ["deliver a", "fence 1"]


@in_virtual_time
async def test_it_waits_for_nothing_that_came_after_it(shop: Shop) -> None:
    lucky, late, publisher = shop.talk(), shop.talk(), shop.talk()
    sub = published_but_held(shop, b"a")
    await shop.quiet()
    lucky.ask(a_take(sub))
    late.ask(a_take(sub), Fence(1))
    publisher.ask(a_publish("t", b"b"))
    shop.worker.let_go()
    assert (lucky.said, late.said) == (["deliver a"], ["fence 1"])
    late.ask(a_take(sub))
    await shop.quiet()
    assert late.said == ["fence 1", "deliver b"]


@in_virtual_time
async def test_it_waits_neither_for_other_topics_nor_on_behalf_of_others(shop: Shop) -> None:
    talk, publisher = shop.talk(), shop.talk()
    own, foreign = subscribed(shop, "quiet"), subscribed(shop, "t", "somebody else")
    await shop.engine.recorded()
    shop.worker.held = True
    publisher.ask(a_publish("t", b"a"))
    talk.ask(a_take(own), a_take(foreign), a_take(99), Fence(1))
    assert talk.said == ["fence 1"]


@in_virtual_time
async def test_it_ends_in_vain_when_the_disk_refuses_the_messages(shop: Shop) -> None:
    talk, publisher = shop.talk(), shop.talk()
    sub = subscribed(shop, "t")
    await shop.engine.recorded()
    shop.worker.held = True
    publisher.ask(a_publish("t", b"a", tags="1"))
    talk.ask(a_take(sub), Fence(1))
    shop.disk.fail("segment.write", errno.ENOSPC)
    await shop.quiet()
    shop.worker.let_go()
    await shop.quiet()
    assert (publisher.said, talk.said) == (["lost 1"], ["fence 1"])


@in_virtual_time
async def test_acks_ahead_of_it_count_at_once(shop: Shop) -> None:
    talk, publisher = shop.talk(), shop.talk()
    sub = subscribed(shop, "t")
    await shop.publish("t", b"a")
    talk.ask(a_take(sub))
    shop.worker.held = True
    publisher.ask(a_publish("t", b"b"))
    talk.ask(Exchange(Ack(sub, [(1, 1)]), a_take(sub), list))
    assert shop.engine.broker.counters.acked == 1
    shop.worker.let_go()
    await shop.quiet()
    assert talk.said == ["deliver a", "deliver b"]


@in_virtual_time
async def test_a_peer_that_hangs_up_meanwhile_takes_nothing(shop: Shop) -> None:
    talk, sub = shop.talk(), published_but_held(shop, b"a")
    talk.ask(a_take(sub))
    talk.hang_up()
    shop.worker.let_go()
    await shop.quiet()
    assert shop.engine.broker.counters.delivered == 0


@in_virtual_time
async def test_empty_messages_are_sent_in_turns_too(shop: Shop) -> None:
    sub = subscribed(shop, "t")
    await shop.publish("t", *[b""] * (2 * TAKE_MAX))
    talk = shop.talk()
    talk.room = 1
    talk.ask(a_take(sub, 2 * TAKE_MAX))
    (info,) = shop.engine.broker.subscriptions()
    assert (info.in_flight, info.pending) == (TAKE_MAX, TAKE_MAX)
