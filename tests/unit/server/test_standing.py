"""Takes that find nothing, and what comes a moment later."""

import pytest

from headrace.auth import ANONYMOUS
from headrace.broker import Broker, BrokerSettings
from headrace.model.errors import BrokerError, Code
from headrace.model.requests import Ack, Exchange, Fence, Publish, Refuse, Request, Subscribe, Take
from headrace.server.recovery import recover_broker
from headrace.server.standing import Standing, StandingRoom
from headrace.server.takes import STANDING_MAX
from tests.simulation.virtual_engine import STAND_US, ScriptedTalk, Shop, a_publish, in_virtual_time

STAND_S = STAND_US / 1e6


def subscribed(shop: Shop, topic: str = "t", qos: int = 1) -> int:
    """A subscription to what is published from now on."""
    engine = shop.engine
    now = engine.clock.now()
    return engine.broker.subscribe(topic, qos=qos, owner=ANONYMOUS.owner, at=engine.log.next_offset, now=now)


def a_take(subscription: int, count: int = 1) -> Take:
    return Take(subscription, count, bytes(8 * count))


def in_flight(broker: Broker, subscription: int) -> int:
    info = broker.subscription(subscription)
    assert info is not None
    return info.in_flight


def asked(shop: Shop, *requests: Request) -> ScriptedTalk:
    """Somebody who asked for all that at once."""
    talk = shop.talk()
    talk.ask(*requests)
    return talk


@in_virtual_time
async def test_a_take_in_vain_gets_what_comes_within_the_time(shop: Shop) -> None:
    talk = asked(shop, a_take(subscribed(shop), 3))
    await shop.loop.pause(STAND_S / 2)
    await shop.publish("t", b"a", b"b")
    assert talk.said == ["deliver a,b"]


@in_virtual_time
async def test_it_gets_nothing_that_comes_later(shop: Shop) -> None:
    talk = asked(shop, a_take(subscribed(shop)))
    await shop.loop.pause(STAND_S * 1.5)
    await shop.publish("t", b"a")
    assert talk.said == []


@in_virtual_time
async def test_it_is_over_with_the_first_that_comes(shop: Shop) -> None:
    talk = asked(shop, a_take(subscribed(shop), 3))
    await shop.publish("t", b"a")
    await shop.publish("t", b"b")
    assert talk.said == ["deliver a"]


@in_virtual_time
async def test_it_gets_no_more_than_it_asked_for(shop: Shop) -> None:
    talk = asked(shop, a_take(subscribed(shop), 2))
    await shop.publish("t", b"a", b"b", b"c")
    assert talk.said == ["deliver a,b"]


@pytest.mark.parametrize(
    "request_behind",
    [
        Fence(1),
        Subscribe(1, "u", 1),
        Refuse(1, BrokerError(Code.INVALID, "no")),
        a_publish("u", b"x"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_anything_but_takes_and_acks_behind_it_ends_it(request_behind: Request) -> None:
    @in_virtual_time
    async def test(shop: Shop) -> None:
        talk = asked(shop, a_take(subscribed(shop)), request_behind)
        await shop.quiet()
        await shop.publish("t", b"a")
        assert not [word for word in talk.said if word.startswith("deliver")]
        assert isinstance(request_behind, Publish) or len(talk.said) == 1

    test()


@in_virtual_time
async def test_acks_behind_it_do_not_end_it(shop: Shop) -> None:
    sub = subscribed(shop)
    await shop.publish("t", b"a")
    talk = asked(shop, a_take(sub), a_take(sub), Ack(sub, [(1, 1)]))
    await shop.publish("t", b"b")
    assert talk.said == ["deliver a", "deliver b"]
    assert in_flight(shop.engine.broker, sub) == 1


@in_virtual_time
async def test_a_take_that_comes_with_acks_stands_like_any_other(shop: Shop) -> None:
    sub = subscribed(shop)
    await shop.publish("t", b"a")
    talk = asked(shop, a_take(sub))
    talk.ask(Exchange(Ack(sub, [(1, 1)]), a_take(sub, 2), list))
    await shop.publish("t", b"b", b"c")
    assert talk.said == ["deliver a", "deliver b,c"]


@in_virtual_time
async def test_at_most_once_is_not_given_to_who_may_have_stopped_asking(shop: Shop) -> None:
    talk = asked(shop, a_take(subscribed(shop, qos=0)))
    await shop.publish("t", b"a")
    assert talk.said == []


@in_virtual_time
async def test_a_later_take_of_the_same_subscription_takes_its_place(shop: Shop) -> None:
    sub = subscribed(shop)
    talk = asked(shop, a_take(sub, 3), a_take(sub))
    await shop.publish("t", b"a", b"b")
    assert talk.said == ["deliver a"]


@in_virtual_time
async def test_takes_of_several_subscriptions_stand_side_by_side(shop: Shop) -> None:
    one, other, elsewhere = subscribed(shop), subscribed(shop), subscribed(shop, "u")
    talk = asked(shop, a_take(one), a_take(other), a_take(elsewhere))
    await shop.publish("t", b"a")
    await shop.publish("u", b"b")
    assert talk.said == ["deliver a", "deliver a", "deliver b"]


@in_virtual_time
async def test_who_came_first_is_served_first(shop: Shop) -> None:
    sub = subscribed(shop)
    first, second, third = (asked(shop, a_take(sub, 2)) for _ in range(3))
    await shop.publish("t", b"a", b"b", b"c")
    assert (first.said, second.said, third.said) == (["deliver a,b"], ["deliver c"], [])


@in_virtual_time
async def test_a_peer_that_hung_up_gets_nothing(shop: Shop) -> None:
    sub = subscribed(shop)
    gone = asked(shop, a_take(sub))
    gone.hang_up()
    await shop.publish("t", b"a")
    assert (gone.said, asked(shop, a_take(sub)).said) == ([], ["deliver a"])


@in_virtual_time
async def test_a_peer_that_does_not_read_gets_nothing(shop: Shop) -> None:
    sub = subscribed(shop)
    busy = asked(shop, a_take(sub))
    busy.is_congested = True
    await shop.publish("t", b"a")
    assert (busy.said, asked(shop, a_take(sub)).said) == ([], ["deliver a"])


@in_virtual_time
async def test_a_peer_is_given_nothing_new_once_the_server_stops(shop: Shop) -> None:
    talk = asked(shop, a_take(subscribed(shop)))
    talk.conversation.drain()
    await shop.publish("t", b"a")
    assert talk.said == ["draining"]


@in_virtual_time
async def test_a_message_is_on_its_way_before_its_publisher_hears_that_it_is_stored(shop: Shop) -> None:
    taker, publisher = asked(shop, a_take(subscribed(shop))), shop.talk()
    said = taker.said = publisher.said
    publisher.ask(a_publish("t", b"a"), Fence(1))
    await shop.quiet()
    assert said == ["deliver a", "fence 1"]


@in_virtual_time
async def test_what_it_was_given_is_recorded(shop: Shop) -> None:
    sub = subscribed(shop)
    asked(shop, a_take(sub))
    await shop.publish("t", b"a")
    await shop.quiet()
    recovered = recover_broker(shop.engine.log, BrokerSettings(), shop.engine.clock.now())
    assert in_flight(recovered, sub) == 1


@in_virtual_time
async def test_one_conversation_stands_for_so_many_and_no_more(shop: Shop) -> None:
    subs = [subscribed(shop, f"t{number}") for number in range(STANDING_MAX + 1)]
    talk = asked(shop, *map(a_take, subs))
    await shop.publish(f"t{STANDING_MAX - 1}", b"within")
    await shop.publish(f"t{STANDING_MAX}", b"beyond")
    assert talk.said == ["deliver within"]


class Counter:
    """A taker that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def take_again(self, request: Take) -> None:
        self.calls += 1


def test_the_room_keeps_nobody_who_left_or_was_called() -> None:
    room, taker = StandingRoom(), Counter()
    stays, leaves = (Standing(taker, a_take(1), "t", 10) for _ in range(2))
    room.enter(stays)
    room.enter(leaves)
    room.leave(leaves)
    room.call("t", 10)
    room.leave(stays)
    room.call("t", 10)
    assert taker.calls == 1
    assert not room


def test_the_room_throws_out_who_is_too_late() -> None:
    room, taker = StandingRoom(), Counter()
    room.enter(Standing(taker, a_take(1), "t", 10))
    room.call("t", 11)
    assert (taker.calls, bool(room)) == (0, False)
