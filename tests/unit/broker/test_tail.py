"""Subscriptions whose failures go behind everything there is, and messages held without a timer."""

import pytest

from headrace.broker import BrokerSettings
from headrace.broker.broker import CONNECTION_LOST
from headrace.model.batch import ATTEMPTS_UNLIMITED
from headrace.model.errors import BrokerError
from headrace.model.events import Event
from headrace.model.requests import Start
from tests.unit.broker.desk import OWNER, SECOND, Desk

HOUR = 3600 * SECOND


class TailDesk(Desk):
    """A desk with one shared subscription, `tail` unless told otherwise."""

    def __init__(self, settings: BrokerSettings | None = None, *, tail: bool = True) -> None:
        super().__init__(settings)
        self.sub = self.broker.subscribe(
            "t", qos=1, owner=OWNER, name="team", start=Start.EARLIEST, tail=tail, at=0, now=self.now
        )
        self.sync()

    def hold(self, consumer: str, limit: int = 1) -> list[bytes]:
        """What the consumer is given to hold."""
        portions = self.broker.take(self.sub, limit, owner=OWNER, consumer=consumer, timed=False, now=self.now)
        self.sync()
        return [p.batch.value(p.index + i) for p in portions for i in range(p.count)]

    def drop(self, consumer: str) -> None:
        """The consumer goes away."""
        self.broker.release(consumer, self.now)
        self.sync()


def recover(desk: TailDesk) -> None:
    """As the server starts: from the whole log."""
    desk.restart()
    desk.broker.recovered(desk.now)
    desk.sync()


def test_what_comes_back_goes_behind_everything_there_is() -> None:
    desk = TailDesk()
    desk.publish("t", b"1", b"2", b"3", tries=ATTEMPTS_UNLIMITED)
    assert desk.hold("ann") == [b"1"]
    desk.drop("ann")
    assert [desk.hold("bob") for _ in range(4)] == [[b"2"], [b"3"], [b"1"], []]


def test_the_tail_is_where_it_was_when_the_message_came_back() -> None:
    desk = TailDesk()
    desk.publish("t", b"1", b"2", tries=ATTEMPTS_UNLIMITED)
    desk.hold("ann")
    desk.drop("ann")
    desk.publish("t", b"3")
    assert desk.hold("bob", 10) == [b"2", b"1", b"3"]


def test_several_that_came_back_keep_their_order_of_coming_back() -> None:
    desk = TailDesk()
    desk.publish("t", b"1", b"2", b"3", tries=ATTEMPTS_UNLIMITED)
    assert (desk.hold("ann"), desk.hold("bob")) == ([b"1"], [b"2"])
    desk.drop("bob")
    desk.publish("t", b"4")
    desk.drop("ann")
    assert desk.hold("cid", 10) == [b"3", b"2", b"4", b"1"]


def test_it_is_there_at_once_without_a_pause() -> None:
    desk = TailDesk()
    desk.publish("t", b"1")
    desk.hold("ann")
    desk.broker.wait(desk.sub, "bob")
    desk.drop("ann")
    assert desk.broker.drain_ready() == ["bob"]
    assert desk.hold("bob") == [b"1"]


def test_every_return_counts_until_it_is_a_dead_letter() -> None:
    desk = TailDesk()
    desk.publish("t", b"1", tries=2)
    for consumer in ("ann", "bob"):
        assert desk.hold(consumer) == [b"1"]
        desk.drop(consumer)
    assert desk.hold("cid") == []
    assert desk.log.count_from("$dead.t", 0) == 1
    assert desk.events[-1].reason == CONNECTION_LOST


def test_a_nack_goes_to_the_tail_too() -> None:
    desk = TailDesk()
    desk.publish("t", b"1", b"2")
    desk.hold("ann")
    desk.nack(desk.sub, (1, 1))
    assert desk.hold("ann", 10) == [b"2", b"1"]


def test_a_full_subscription_gives_out_what_waits_for_a_tail_it_can_never_reach() -> None:
    desk = TailDesk(BrokerSettings(inflight_max=2))
    desk.publish("t", b"1", b"2", b"3", b"4", tries=ATTEMPTS_UNLIMITED)
    assert desk.hold("ann", 2) == [b"1", b"2"]
    desk.drop("ann")
    for delivery, value in enumerate((b"1", b"2", b"3", b"4"), 1):
        assert desk.hold("bob") == [value]
        desk.ack(desk.sub, (delivery, 1))


def test_who_waits_is_called_when_what_came_back_fills_all_the_room() -> None:
    desk = TailDesk(BrokerSettings(inflight_max=2))
    desk.publish("t", b"1", b"2", b"3", tries=ATTEMPTS_UNLIMITED)
    desk.hold("ann", 2)
    assert desk.hold("bob") == []
    desk.broker.wait(desk.sub, "bob")
    desk.drop("ann")
    assert desk.broker.drain_ready() == ["bob"]
    assert desk.hold("bob") == [b"1"]


def test_the_place_at_the_tail_is_not_lost_with_the_process() -> None:
    desk = TailDesk()
    desk.publish("t", b"1", b"2", tries=ATTEMPTS_UNLIMITED)
    desk.hold("ann")
    desk.drop("ann")
    recover(desk)
    assert desk.hold("bob", 10) == [b"2", b"1"]


def test_no_timer_takes_back_what_is_held() -> None:
    desk = TailDesk(tail=False)
    desk.publish("t", b"1")
    desk.hold("ann")
    desk.tick(1000 * HOUR)
    assert desk.hold("bob") == []
    desk.ack(desk.sub, (1, 1))
    assert desk.kinds() == [Event.ACKED]


def test_what_was_held_comes_back_after_its_backoff_once_its_holder_left() -> None:
    desk = TailDesk(tail=False)
    desk.publish("t", b"1")
    desk.hold("ann")
    desk.drop("ann")
    assert desk.hold("bob") == []
    desk.tick(SECOND)
    assert desk.hold("bob") == [b"1"]


@pytest.mark.parametrize("tail", [True, False])
def test_a_restart_takes_back_what_was_held_and_counts_it(tail: bool) -> None:
    desk = TailDesk(tail=tail)
    desk.publish("t", b"1", b"2", tries=ATTEMPTS_UNLIMITED)
    desk.hold("ann")
    recover(desk)
    assert [(e.event, e.reason) for e in desk.events[-1:]] == [(Event.NACKED, CONNECTION_LOST)]
    desk.tick(SECOND)
    assert sorted(desk.hold("bob", 10)) == [b"1", b"2"]
    portions = desk.broker.subscription(desk.sub)
    assert portions is not None
    assert portions.attempts == 2


def test_a_restart_leaves_timed_deliveries_to_their_timer() -> None:
    desk = TailDesk(tail=False)
    desk.publish("t", b"1")
    desk.take(desk.sub)
    desk.sync()
    recover(desk)
    assert Event.NACKED not in [event.event for event in desk.events]
    desk.ack(desk.sub, (1, 1))


def test_a_restart_gives_up_what_had_its_last_attempt() -> None:
    desk = TailDesk()
    desk.publish("t", b"1", tries=1)
    desk.hold("ann")
    recover(desk)
    assert desk.log.count_from("$dead.t", 0) == 1
    with pytest.raises(BrokerError):
        desk.ack(desk.sub, (1, 1))


def test_a_name_keeps_a_subscription_for_ever() -> None:
    desk = TailDesk(BrokerSettings(subscription_expiry_s=60))
    nameless = desk.subscribe("t")
    desk.tick(61 * SECOND)
    desk.tick(HOUR)
    assert desk.broker.subscription(nameless) is None
    assert desk.broker.subscription(desk.sub) is not None
    recover(desk)
    desk.tick(1000 * HOUR)
    desk.tick(1000 * HOUR)
    assert desk.broker.subscription(desk.sub) is not None


def test_who_stops_waiting_keeps_the_places_it_names() -> None:
    desk = Desk()
    first, second = desk.subscribe("a"), desk.subscribe("b")
    for sub in (first, second):
        desk.broker.wait(sub, "ann")
    desk.broker.stop_waiting("ann", but_for=[second])
    desk.publish("a", b"1")
    assert desk.broker.drain_ready() == []
    desk.publish("b", b"1")
    assert desk.broker.drain_ready() == ["ann"]


def test_a_call_for_what_is_not_waited_for_any_more_is_passed_on() -> None:
    desk = Desk()
    first, second = desk.subscribe("a", name="team"), desk.subscribe("b")
    for sub in (first, second):
        desk.broker.wait(sub, "ann")
    desk.broker.wait(first, "bob")
    desk.publish("a", b"1")
    assert desk.broker.drain_ready() == ["ann"]
    desk.broker.stop_waiting("ann", but_for=[second])
    assert desk.broker.drain_ready() == ["bob"]


def test_a_call_for_what_is_still_waited_for_is_kept() -> None:
    desk = Desk()
    first, second = desk.subscribe("a"), desk.subscribe("b", name="team")
    desk.broker.wait(second, "ann")
    desk.broker.wait(second, "bob")
    desk.broker.wait(first, "ann")
    desk.publish("b", b"1")
    desk.broker.stop_waiting("ann", but_for=[second])
    assert desk.broker.drain_ready() == ["ann"], "and bob is not called for the same message"
