from headrace.broker import BrokerSettings, RetryPolicy
from tests.unit.broker.desk import LITERAL, MS, Desk


def test_a_publish_calls_as_many_as_it_has_messages_in_the_order_they_came() -> None:
    desk = Desk()
    sub = desk.subscribe("t", name="team")
    for consumer in ("ann", "bob", "cid", "ann"):
        desk.broker.wait(sub, consumer)
    desk.publish("t", b"1", b"2")
    assert desk.broker.drain_ready() == ["ann", "bob"]
    assert desk.broker.drain_ready() == []
    desk.publish("t", b"3")
    assert desk.broker.drain_ready() == ["cid"]


def test_nobody_is_called_for_another_topic() -> None:
    desk = Desk()
    desk.broker.wait(desk.subscribe("t"), "ann")
    desk.publish("other", b"1")
    assert desk.broker.drain_ready() == []


def test_somebody_waiting_twice_is_called_once() -> None:
    desk = Desk()
    for sub in (desk.subscribe("t"), desk.subscribe("t")):
        desk.broker.wait(sub, "ann")
    desk.publish("t", b"1")
    assert desk.broker.drain_ready() == ["ann"]


def test_the_timer_calls_when_a_message_is_due_again() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"1")
    desk.take(sub, consumer="ann")
    desk.broker.wait(sub, "bob")
    desk.tick(99 * MS)
    assert desk.broker.drain_ready() == []
    desk.tick(1 * MS)
    assert desk.broker.drain_ready() == ["bob"]


def test_a_nack_calls_when_the_message_is_due() -> None:
    desk = Desk(BrokerSettings(retry=RetryPolicy(ack_wait_ms=60_000)))
    sub = desk.subscribe("t")
    desk.publish("t", b"1")
    desk.take(sub, consumer="ann")
    desk.broker.wait(sub, "bob")
    desk.nack(sub, (1, 1))
    assert desk.broker.next_deadline() == desk.now + 100 * MS
    desk.tick(100 * MS)
    assert desk.broker.drain_ready() == ["bob"]


def test_a_delayed_message_calls_when_it_is_due() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.broker.wait(sub, "ann")
    desk.publish("t", b"1", due=desk.now + 50 * MS)
    assert desk.broker.drain_ready() == ["ann"]
    assert desk.take(sub, consumer="ann") == []
    desk.broker.wait(sub, "ann")
    desk.tick(50 * MS)
    assert desk.broker.drain_ready() == ["ann"]
    assert desk.take(sub, consumer="ann") == [(1, b"1", 1)]


def test_room_in_flight_calls() -> None:
    desk = Desk(BrokerSettings(retry=LITERAL, inflight_max=2))
    sub = desk.subscribe("t")
    desk.publish("t", b"1", b"2", b"3")
    desk.take(sub, consumer="ann")
    assert desk.take(sub, consumer="bob") == []
    desk.broker.wait(sub, "bob")
    desk.ack(sub, (1, 1))
    assert desk.broker.drain_ready() == ["bob"]


def test_a_call_not_answered_is_passed_on() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    for consumer in ("ann", "bob"):
        desk.broker.wait(sub, consumer)
    desk.publish("t", b"1")
    assert desk.broker.drain_ready() == ["ann"]
    desk.broker.release("ann", desk.now)
    assert desk.broker.drain_ready() == ["bob"]
    assert desk.take(sub, consumer="bob") == [(1, b"1", 1)]


def test_what_a_take_leaves_ready_calls_the_next() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"1", b"2")
    desk.take(sub)
    desk.broker.wait(sub, "bob")
    desk.now += 100 * MS
    assert len(desk.take(sub, 1, "ann")) == 1
    assert desk.broker.drain_ready() == ["bob"]


def test_the_end_of_a_subscription_calls_everybody() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    for consumer in ("ann", "bob"):
        desk.broker.wait(sub, consumer)
    desk.broker.unsubscribe(sub, "asked", desk.now)
    assert desk.broker.drain_ready() == ["ann", "bob"]
    desk.broker.wait(sub, "cid")
    assert desk.broker.drain_ready() == ["cid"]
    desk.publish("t", b"1")
    assert desk.broker.drain_ready() == []


def test_room_in_flight_calls_one_after_the_other() -> None:
    desk = Desk(BrokerSettings(retry=LITERAL, inflight_max=2))
    sub = desk.subscribe("t")
    desk.publish("t", b"1", b"2", b"3", b"4")
    desk.take(sub, consumer="ann")
    for consumer in ("bob", "cid"):
        assert desk.take(sub, 1, consumer) == []
        desk.broker.wait(sub, consumer)
    desk.ack(sub, (1, 1))
    assert desk.broker.drain_ready() == ["bob"]
    assert desk.take(sub, 1, "bob") == [(3, b"3", 1)]
    desk.ack(sub, (2, 1))
    assert desk.broker.drain_ready() == ["cid"]


def test_room_made_by_a_death_calls() -> None:
    desk = Desk(BrokerSettings(retry=LITERAL, inflight_max=1))
    sub = desk.subscribe("t")
    desk.publish("t", b"1", tries=1)
    desk.publish("t", b"2")
    desk.take(sub, consumer="ann")
    assert desk.take(sub, 1, "bob") == []
    desk.broker.wait(sub, "bob")
    desk.tick(100 * MS)
    assert desk.broker.drain_ready() == ["bob"]
    assert desk.take(sub, 1, "bob") == [(2, b"2", 1)]


def test_room_found_by_a_take_calls_those_who_found_none() -> None:
    desk = Desk(BrokerSettings(retry=LITERAL, inflight_max=2))
    sub = desk.subscribe("t")
    desk.publish("t", b"1", b"2", expires=desk.now + 150 * MS)
    desk.publish("t", b"3", b"4")
    desk.take(sub, consumer="ann")
    assert desk.take(sub, 1, "bob") == []
    desk.broker.wait(sub, "bob")
    desk.now += 200 * MS
    assert desk.take(sub, 1, "cid") == [(3, b"3", 1)]
    assert desk.broker.drain_ready() == ["bob"]
    assert desk.take(sub, 1, "bob") == [(4, b"4", 1)]


def test_a_take_that_finds_nothing_calls_nobody() -> None:
    desk = Desk(BrokerSettings(retry=LITERAL, inflight_max=3))
    sub = desk.subscribe("t")
    desk.broker.wait(sub, "ann")
    for limit in (10, 1):
        assert desk.take(sub, limit, "bob") == []
    assert desk.broker.drain_ready() == []


def test_room_in_flight_calls_nobody_at_the_end_of_the_topic() -> None:
    desk = Desk(BrokerSettings(retry=LITERAL, inflight_max=2))
    sub = desk.subscribe("t")
    desk.publish("t", b"1", b"2")
    assert desk.take(sub, consumer="ann")
    assert not desk.take(sub, consumer="bob")
    desk.broker.wait(sub, "bob")
    desk.ack(sub, (1, 2))
    assert desk.broker.drain_ready() == []
    desk.publish("t", b"3")
    assert desk.broker.drain_ready() == ["bob"]
    assert desk.take(sub, consumer="bob")
