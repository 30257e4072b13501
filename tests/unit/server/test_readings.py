"""Fetches and follows of one conversation: what they are given, when they wait, what a peer that is not there costs."""

from headrace.auth import ANONYMOUS
from headrace.model.requests import FOREVER_US, Fence, Fetch, Follow, Leave, Settle, Start, Subscribe, Take
from headrace.server.promises import HELD_BYTES_MAX
from headrace.server.readings import TAKE_BYTES_MAX
from tests.simulation.virtual_engine import Shop, a_publish, in_virtual_time

SECOND_US = 1_000_000
LARGE = b"x" * 100_000


@in_virtual_time
async def test_a_fetch_is_answered_with_what_there_is(shop: Shop) -> None:
    await shop.publish("t", b"a", b"b", b"c")
    sub, talk = await shop.join("t"), shop.talk()
    talk.ask(Fetch(1, sub, 2, 0), Fetch(2, sub, 2, 0), Fetch(3, sub, 2, 0))
    assert talk.said == ["fetched 1 a,b", "fetched 2 c", "fetched 3 nothing"]


@in_virtual_time
async def test_a_fetch_waits_for_the_first_message_and_requests_behind_it_do_not(shop: Shop) -> None:
    sub, talk = await shop.join("t"), shop.talk()
    talk.ask(Fetch(1, sub, 9, FOREVER_US), Fetch(2, sub, 9, SECOND_US), Fence(3))
    await shop.quiet()
    assert talk.said == ["fence 3"]
    await shop.publish("t", b"a", b"b")
    assert talk.said == ["fence 3", "fetched 1 a,b"], "the first takes all, the second waits on"
    await shop.publish("t", b"c")
    assert talk.said[2:] == ["fetched 2 c"]


@in_virtual_time
async def test_a_fetch_ends_with_nothing_when_its_time_is_up(shop: Shop) -> None:
    sub, talk = await shop.join("t"), shop.talk()
    talk.ask(Fetch(1, sub, 9, SECOND_US))
    await shop.loop.pause(0.9)
    assert talk.said == []
    await shop.loop.pause(0.2)
    assert talk.said == ["fetched 1 nothing"]
    await shop.publish("t", b"a")
    assert talk.said == ["fetched 1 nothing"]


@in_virtual_time
async def test_who_waits_is_served_in_the_order_of_coming(shop: Shop) -> None:
    sub, talks = await shop.join("t"), [shop.talk() for _ in range(3)]
    for talk in talks:
        talk.ask(Fetch(1, sub, 1, FOREVER_US))
    for value in (b"a", b"b", b"c"):
        await shop.publish("t", value)
    assert [talk.said for talk in talks] == [["fetched 1 a"], ["fetched 1 b"], ["fetched 1 c"]]


@in_virtual_time
async def test_a_call_that_nobody_needs_any_more_is_passed_on(shop: Shop) -> None:
    sub, late, gone, next_one = await shop.join("t"), shop.talk(), shop.talk(), shop.talk()
    late.ask(Fetch(1, sub, 1, SECOND_US))
    gone.ask(Fetch(1, sub, 1, FOREVER_US))
    next_one.ask(Fetch(1, sub, 1, FOREVER_US))
    await shop.loop.pause(2)
    gone.hang_up()
    await shop.publish("t", b"a")
    assert (late.said, gone.said, next_one.said) == (["fetched 1 nothing"], [], ["fetched 1 a"])


@in_virtual_time
async def test_a_follow_delivers_up_to_its_window_and_goes_on_as_it_is_settled(shop: Shop) -> None:
    await shop.publish("t", b"a", b"b", b"c", b"d")
    sub, talk = await shop.join("t"), shop.talk()
    talk.ask(Follow(1, sub, 2))
    assert talk.said == ["pushed 1 a,b"]
    talk.ask(Settle(2, sub, [1]))
    await shop.quiet()
    assert talk.said[1:] == ["settled 2 +", "pushed 1 c"]
    talk.ask(Settle(3, sub, [2, 3], failed=True))
    await shop.quiet()
    assert talk.said[3:] == ["settled 3 ++", "pushed 1 d"]
    await shop.loop.pause(1)
    assert talk.said[5:] == ["pushed 1 b"], "what failed comes again after its pause, as the window allows"


@in_virtual_time
async def test_a_delivery_that_settles_fills_no_window(shop: Shop) -> None:
    await shop.publish("t", b"a", b"b", b"c")
    sub, talk = await shop.join("t"), shop.talk()
    talk.ask(Follow(1, sub, 2, settle=True))
    assert talk.said == ["pushed 1 a,b", "pushed 1 c"]
    talk.hang_up()
    assert shop.engine.broker.counters.acked == 3


@in_virtual_time
async def test_a_follow_leaves_the_peer_alone_for_as_long_as_it_asks(shop: Shop) -> None:
    await shop.publish("t", b"a")
    sub, talk, gone = await shop.join("t"), shop.talk(), shop.talk()
    gone.ask(Follow(1, sub, 9, after_us=SECOND_US // 2))
    talk.ask(Follow(1, sub, 9, after_us=SECOND_US))
    gone.hang_up()
    await shop.loop.pause(0.9)
    assert talk.said == []
    await shop.loop.pause(0.2)
    assert (talk.said, gone.said) == (["pushed 1 a"], [])


@in_virtual_time
async def test_a_peer_that_does_not_read_holds_back_only_itself(shop: Shop) -> None:
    sub, slow, quick = await shop.join("t"), shop.talk(), shop.talk()
    slow.ask(Follow(1, sub, 9))
    slow.is_congested = True
    quick.ask(Fetch(1, sub, 1, FOREVER_US))
    await shop.publish("t", b"a")
    assert (slow.said, quick.said) == ([], ["fetched 1 a"])
    await shop.publish("t", b"b")
    assert slow.said == []
    slow.relieve()
    assert slow.said == ["pushed 1 b"]


@in_virtual_time
async def test_what_a_connection_held_goes_to_the_next_one(shop: Shop) -> None:
    await shop.publish("t", b"a", b"b")
    sub, gone, heir = await shop.join("t", tail=True), shop.talk(), shop.talk()
    gone.ask(Fetch(1, sub, 1, 0))
    heir.ask(Follow(1, sub, 9))
    gone.hang_up()
    assert (gone.said, heir.said) == (["fetched 1 a"], ["pushed 1 b", "pushed 1 a"])


@in_virtual_time
async def test_who_leaves_gives_back_and_is_sent_nothing_more(shop: Shop) -> None:
    await shop.publish("t", b"a")
    sub, leaving, heir = await shop.join("t", tail=True), shop.talk(), shop.talk()
    leaving.ask(Follow(1, sub, 9), Leave(2), Fence(3))
    await shop.publish("t", b"b")
    assert leaving.said == ["pushed 1 a", "fence 2"]
    assert leaving.is_closed
    heir.ask(Fetch(1, sub, 9, 0))
    assert heir.said == ["fetched 1 a,b"]


@in_virtual_time
async def test_a_settle_is_answered_delivery_by_delivery_and_only_when_durable(shop: Shop) -> None:
    await shop.publish("t", b"a", b"b", b"c")
    sub, talk = await shop.join("t"), shop.talk()
    talk.ask(Fetch(1, sub, 9, 0))
    await shop.quiet()
    shop.worker.held = True
    talk.ask(Settle(2, sub, [3, 7, 1, 1]))
    await shop.quiet()
    assert talk.said[1:] == []
    shop.worker.let_go()
    await shop.quiet()
    assert talk.said[1:] == ["settled 2 +-+-"]


@in_virtual_time
async def test_nobody_settles_what_another_holds(shop: Shop) -> None:
    await shop.publish("t", b"a", b"b", b"c", b"d")
    sub, owner, thief = await shop.join("t"), shop.talk(), shop.talk()
    owner.ask(Follow(1, sub, 1))
    thief.ask(Follow(1, sub, 1))
    thief.ask(Settle(2, sub, [1]), Settle(3, sub, [1], failed=True))
    owner.ask(Settle(2, sub, [1]))
    await shop.quiet()
    assert thief.said == ["pushed 1 b", "settled 2 -", "settled 3 -"], "and its own window is not widened by it"
    assert owner.said == ["pushed 1 a", "settled 2 +", "pushed 1 c"]


@in_virtual_time
async def test_a_server_about_to_stop_lets_nobody_wait(shop: Shop) -> None:
    sub, talk = await shop.join("t"), shop.talk()
    talk.ask(Fetch(1, sub, 1, FOREVER_US), Fetch(2, sub, 1, SECOND_US), Follow(3, sub, 9))
    talk.conversation.drain()
    assert talk.said == ["draining", "refused 1 draining", "refused 2 draining"]
    await shop.publish("t", b"a")
    await shop.loop.pause(2)
    assert talk.said[3:] == []


@in_virtual_time
async def test_a_backlog_waits_in_the_log_while_a_reply_waits_for_the_disk(shop: Shop) -> None:
    for _ in range(50):
        await shop.publish("t", LARGE)
    talk = shop.talk()
    shop.worker.held = True
    talk.ask(Subscribe(1, "t", 1, "team", Start.EARLIEST), Follow(2, 1, 1000, settle=True))
    assert talk.said == []
    assert shop.engine.broker.counters.delivered * len(LARGE) <= HELD_BYTES_MAX + TAKE_BYTES_MAX
    shop.worker.let_go()
    await shop.quiet()
    assert talk.said[0] == "subscribed 1"
    assert talk.bytes_said > 50 * len(LARGE)


@in_virtual_time
async def test_many_fetches_of_a_peer_that_does_not_read_cost_no_more_than_one(shop: Shop) -> None:
    for _ in range(50):
        await shop.publish("t", LARGE)
    sub, talk = await shop.join("t"), shop.talk()
    talk.room = 1000
    talk.ask(*(Fetch(tag, sub, 1, 0) for tag in range(50)))
    while talk.is_congested:
        talk.relieve()
    assert len(talk.said) == 50
    assert talk.most_unread <= TAKE_BYTES_MAX


@in_virtual_time
async def test_many_fetches_that_waited_are_not_answered_all_at_once(shop: Shop) -> None:
    sub, talk = await shop.join("t"), shop.talk()
    talk.room = 1000
    talk.ask(*(Fetch(tag, sub, 1, FOREVER_US) for tag in range(50)))
    talk.is_congested = True
    for _ in range(50):
        await shop.publish("t", LARGE)
    while talk.is_congested:
        talk.relieve()
    assert len(talk.said) == 50
    assert talk.most_unread <= TAKE_BYTES_MAX + 2 * len(LARGE)


@in_virtual_time
async def test_many_takes_of_a_peer_that_does_not_read_cost_no_more_than_one(shop: Shop) -> None:
    talk, subs = shop.talk(), await own_subscriptions(shop, "t")
    talk.room = 1000
    talk.ask(*(Take(subs[n % 2], 1, bytes(8)) for n in range(100)))
    while talk.is_congested:
        talk.relieve()
    assert len(talk.said) == 100
    assert talk.most_unread <= TAKE_BYTES_MAX


@in_virtual_time
async def test_many_takes_behind_a_reply_that_waits_for_the_disk_wait_too(shop: Shop) -> None:
    talk, subs = shop.talk(), await own_subscriptions(shop, "t")
    talk.ask(Take(subs[0], 1, bytes(8)))
    shop.worker.held = True
    talk.ask(Fence(1), *(Take(subs[1], 1, bytes(8)) for n in range(50)))
    assert shop.engine.broker.counters.delivered * len(LARGE) <= HELD_BYTES_MAX + TAKE_BYTES_MAX
    shop.worker.let_go()
    await shop.quiet()
    assert len(talk.said) == 52


@in_virtual_time
async def test_a_take_sees_what_its_own_connection_published(shop: Shop) -> None:
    talk, subs = shop.talk(), await own_subscriptions(shop, "t")
    shop.worker.held = True
    talk.ask(a_publish("t", b"mine"), Take(subs[0], 1, bytes(8)), Fence(1))
    assert talk.said == []
    shop.worker.let_go()
    await shop.quiet()
    assert [word[:7] for word in talk.said] == ["deliver", "fence 1"]


async def own_subscriptions(shop: Shop, topic: str) -> list[int]:
    """Two of the peer's own, with fifty large messages each."""
    broker, now = shop.engine.broker, shop.engine.clock.now()
    subs = [broker.subscribe(topic, qos=1, owner=ANONYMOUS.owner, start=Start.EARLIEST, at=0, now=now) for _ in "ab"]
    for _ in range(50):
        await shop.publish(topic, LARGE)
    return subs
