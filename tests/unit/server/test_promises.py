"""Replies that wait for the disk: in order, never early, and refusals where their confirmations would have been."""

import errno

from headrace.model.requests import FOREVER_US, Fence, Fetch, Leave, Start, Subscribe
from headrace.server.promises import HELD_BYTES_MAX
from tests.simulation.virtual_engine import Shop, a_publish, in_virtual_time


@in_virtual_time
async def test_a_confirmation_comes_when_the_publish_is_durable(shop: Shop) -> None:
    talk = shop.talk()
    shop.worker.held = True
    talk.ask(a_publish("t", b"a", tags="1", confirm=True), a_publish("t", b"b", tags="2", confirm=True))
    await shop.quiet()
    assert talk.said == []
    shop.worker.let_go()
    await shop.quiet()
    assert talk.said == ["stored 1", "stored 2"]
    assert shop.engine.log.count_from("t", 0) == 2


@in_virtual_time
async def test_replies_keep_their_order_whatever_they_wait_for(shop: Shop) -> None:
    talk = shop.talk()
    shop.worker.held = True
    talk.ask(
        a_publish("t", b"a", tags="1", confirm=True),
        Fence(2),
        Subscribe(3, "t", 1, "team", Start.EARLIEST),
        a_publish("t", b"b", tags="4", confirm=True),
        Fence(5),
    )
    await shop.quiet()
    assert talk.said == []
    shop.worker.let_go()
    await shop.quiet()
    assert talk.said == ["stored 1", "fence 2", "subscribed 3", "stored 4", "fence 5"]


@in_virtual_time
async def test_a_fence_without_anything_before_it_is_passed_at_once(shop: Shop) -> None:
    talk, busy = shop.talk(), shop.talk()
    shop.worker.held = True
    busy.ask(a_publish("t", b"a", tags="1", confirm=True), Fence(2))
    talk.ask(Fence(1))
    assert (talk.said, busy.said) == (["fence 1"], [])


@in_virtual_time
async def test_what_was_promised_is_as_durable_as_the_flush_that_took_it(shop: Shop) -> None:
    """What is asked while a flush is under way waits for the next one."""
    talk = shop.talk()
    shop.worker.held = True
    talk.ask(a_publish("t", b"a", tags="1", confirm=True))
    await shop.quiet()
    talk.ask(a_publish("t", b"b", tags="2", confirm=True))
    shop.worker.let_go()
    assert talk.said == ["stored 1"]
    await shop.quiet()
    assert talk.said == ["stored 1", "stored 2"]


@in_virtual_time
async def test_a_refusal_stands_where_the_confirmation_would_have(shop: Shop) -> None:
    talk = shop.talk()
    await shop.publish("t", b"before")
    shop.disk.fail("segment.write", errno.ENOSPC)
    talk.ask(
        a_publish("t", b"a", tags="1", confirm=True),
        Fence(2),
        a_publish("t", b"b", tags="3", confirm=True),
        Fence(4),
    )
    await shop.quiet()
    assert talk.said == ["lost 1", "fence 2", "lost 3", "fence 4"]
    await shop.loop.pause(1)
    talk.ask(a_publish("t", b"c", tags="5", confirm=True))
    await shop.quiet()
    assert talk.said[4:] == ["stored 5"]
    assert shop.engine.log.count_from("t", 0) == 2


@in_virtual_time
async def test_a_refusal_nobody_waits_for_comes_before_the_fence_behind_it(shop: Shop) -> None:
    talk = shop.talk()
    await shop.publish("t", b"before")
    shop.disk.fail("segment.write", errno.EIO)
    talk.ask(Subscribe(1, "t", 1, "team", Start.EARLIEST), a_publish("t", b"a", tags="2"), Fence(3))
    await shop.quiet()
    assert talk.said == [], "the subscription is kept, and not durable yet: everything behind it waits"
    await shop.loop.pause(1)
    assert talk.said == ["subscribed 1", "lost 2", "fence 3"]


@in_virtual_time
async def test_what_needs_no_disk_waits_only_behind_what_does(shop: Shop) -> None:
    await shop.publish("t", b"a")
    sub, talk = await shop.join("t"), shop.talk()
    shop.worker.held = True
    talk.ask(Fetch(1, sub, 1, 0), a_publish("u", b"x", tags="2", confirm=True), Fetch(3, sub, 1, 0))
    assert talk.said == ["fetched 1 a"]
    shop.worker.let_go()
    await shop.quiet()
    assert talk.said[1:] == ["stored 2", "fetched 3 nothing"]


@in_virtual_time
async def test_a_connection_that_is_gone_is_told_nothing_and_its_publishes_count(shop: Shop) -> None:
    talk = shop.talk()
    shop.worker.held = True
    talk.ask(a_publish("t", b"a", tags="1", confirm=True), Fence(2))
    talk.hang_up()
    shop.worker.let_go()
    await shop.quiet()
    assert talk.said == []
    assert shop.engine.log.count_from("t", 0) == 1


@in_virtual_time
async def test_a_connection_that_is_gone_is_not_told_of_refusals_either(shop: Shop) -> None:
    await shop.publish("t", b"before")
    talk = shop.talk()
    shop.disk.fail("segment.write", errno.ENOSPC)
    talk.ask(a_publish("t", b"a", tags="1", confirm=True), a_publish("t", b"b", tags="2"))
    talk.hang_up()
    await shop.quiet()
    assert talk.said == []


@in_virtual_time
async def test_who_leaves_is_answered_first_and_closed_then(shop: Shop) -> None:
    talk = shop.talk()
    shop.worker.held = True
    talk.ask(a_publish("t", b"a", tags="1", confirm=True), Leave(2), Fence(3))
    await shop.quiet()
    assert (talk.said, talk.is_closed) == ([], False)
    shop.worker.let_go()
    await shop.quiet()
    assert (talk.said, talk.is_closed) == (["stored 1", "fence 2"], True)


@in_virtual_time
async def test_a_peer_that_breaks_its_protocol_is_answered_what_came_before(shop: Shop) -> None:
    sub, talk = await shop.join("t"), shop.talk()
    talk.ask(Fetch(1, sub, 1, FOREVER_US), Fence(2))
    talk.ask()
    assert (talk.said, talk.is_closed) == (["fence 2"], True)


@in_virtual_time
async def test_a_peer_with_too_many_replies_waiting_is_not_heard_any_more(shop: Shop) -> None:
    value = b"x" * (HELD_BYTES_MAX // 2)
    await shop.publish("t", value, value, value)
    sub, talk = await shop.join("t"), shop.talk()
    shop.worker.held = True
    talk.ask(a_publish("u", b"x", tags="1", confirm=True), *(Fetch(n, sub, 1, 0) for n in range(3)))
    was_stalled = talk.conversation.stalled
    talk.ask(Fence(9))
    shop.worker.let_go()
    await shop.quiet()
    assert (was_stalled, talk.conversation.stalled) == (True, False)
    assert [word.split()[0] for word in talk.said] == ["stored", "fetched", "fetched", "fetched", "fence"]
