"""Acks, nacks, release and the timer: what ends a delivery."""

import pytest

from headrace.broker import BrokerSettings, RetryPolicy
from headrace.model.batch import ATTEMPTS_UNLIMITED
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event, Range
from headrace.model.requests import Start
from tests.unit.broker.desk import MS, OWNER, SECOND, Desk


def ten(desk: Desk) -> int:
    """A subscription with ten messages in flight."""
    sub = desk.subscribe("t")
    desk.publish("t", *[b"%d" % i for i in range(10)])
    assert len(desk.take(sub, consumer="ann")) == 10
    desk.sync()
    return sub


def in_flight(desk: Desk, sub: int) -> int:
    info = desk.broker.subscription(sub)
    assert info is not None
    return info.in_flight


@pytest.mark.parametrize(
    "ranges", [[(1, 10)], [(1, 5), (6, 5)], [(6, 5), (1, 5)], [(i, 1) for i in (3, 1, 2, 10, 9, 5, 7, 4, 6, 8)]]
)
def test_acks_in_any_order_settle_all(ranges: list[tuple[int, int]]) -> None:
    desk = Desk()
    sub = ten(desk)
    desk.ack(sub, *ranges)
    assert in_flight(desk, sub) == 0
    (event,) = desk.sync()
    assert event.event == Event.ACKED
    assert sum(item.count for item in event.ranges) == 10
    desk.tick(10 * SECOND)
    assert desk.take(sub) == []


@pytest.mark.parametrize(
    "ranges", [[(0, 1)], [(11, 1)], [(5, 7)], [(1, 3), (3, 1)], [(1, 1), (1, 1)], [(1, 5), (42, 1)], [(2, 0)]]
)
def test_one_unknown_id_refuses_the_whole_ack(ranges: list[tuple[int, int]]) -> None:
    desk = Desk()
    sub = ten(desk)
    with pytest.raises(BrokerError) as refused:
        desk.ack(sub, *ranges)
    assert refused.value.code is Code.UNKNOWN
    assert in_flight(desk, sub) == 10
    assert desk.sync() == []


def test_an_ack_is_accepted_once() -> None:
    desk = Desk()
    sub = ten(desk)
    desk.ack(sub, (4, 2))
    with pytest.raises(BrokerError):
        desk.ack(sub, (5, 1))


def test_an_ack_counts_until_the_message_is_delivered_again() -> None:
    desk = Desk()
    sub = ten(desk)
    desk.tick(100 * MS)
    desk.ack(sub, (1, 9))
    assert desk.take(sub) == [(10, b"9", 2)]


def test_a_nack_brings_it_back_after_its_backoff() -> None:
    desk = Desk()
    sub = ten(desk)
    desk.nack(sub, (3, 2), reason="busy")
    (event,) = desk.sync()
    assert (event.event, event.reason, event.ranges[0].count) == (Event.NACKED, "busy", 2)
    desk.ack(sub, (1, 2), (5, 6))
    with pytest.raises(BrokerError):
        desk.ack(sub, (3, 1))
    desk.now += 100 * MS - 1
    assert desk.take(sub) == []
    desk.now += 1
    assert desk.take(sub) == [(3, b"2", 2), (4, b"3", 2)]


def test_the_last_nack_makes_a_dead_letter_in_the_same_record() -> None:
    desk = Desk(BrokerSettings(retry=RetryPolicy(max_attempts=1)))
    sub = ten(desk)
    graveyard = desk.subscribe("$dead.t", start=Start.EARLIEST)
    desk.sync()
    desk.nack(sub, (3, 2), reason="poison")
    (payload,) = desk.broker.drain()
    desk.log.append(payload)
    desk.sync()
    assert [value for _, value, _ in desk.take(graveyard)] == [b"2", b"3"]
    info = desk.broker.subscription(sub)
    assert info is not None
    assert (info.dead, info.in_flight) == (2, 8)


def test_deliveries_end_with_a_dead_letter_when_nobody_acks() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a")
    for attempt in (1, 2, 3):
        assert desk.take(sub) == [(1, b"a", attempt)]
        desk.now += 100 * MS << (attempt - 1)
    assert desk.take(sub) == []
    dead = desk.sync()[-1]
    assert (dead.event, dead.reason, dead.ranges) == (Event.DEAD, "not acknowledged", [Range(1, 1, 3)])


def test_a_dead_letter_that_dies_is_only_recorded() -> None:
    desk = Desk(BrokerSettings(retry=RetryPolicy(max_attempts=1)))
    sub = desk.subscribe("$dead.t")
    desk.publish("$dead.t", b"a")
    desk.take(sub)
    desk.nack(sub, (1, 1))
    assert desk.sync()[-1].event == Event.DEAD
    assert desk.log.count_from("$dead.t", 0) == 1


def test_a_message_may_be_retried_for_ever() -> None:
    desk = Desk(BrokerSettings(retry=RetryPolicy(max_attempts=1, backoff_ms=1)))
    sub = desk.subscribe("t")
    desk.publish("t", b"a", tries=ATTEMPTS_UNLIMITED)
    for attempt in range(1, 40):
        assert desk.take(sub) == [(1, b"a", attempt)]
        desk.nack(sub, (1, 1))
        desk.now += 1000 * SECOND


def test_release_fails_what_the_consumer_holds_and_nothing_else() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b", b"c", b"d")
    desk.take(sub, 1, "ann")
    desk.take(sub, 1, "bob")
    desk.take(sub, 1, "ann")
    desk.take(sub, 1)
    desk.ack(sub, (1, 1))
    desk.sync()
    desk.broker.release("ann", desk.now)
    (event,) = desk.sync()
    assert (event.event, event.reason, [item.first for item in event.ranges]) == (Event.NACKED, "connection lost", [3])
    desk.broker.release("ann", desk.now)
    assert desk.sync() == []


def test_a_forgotten_consumer_leaves_its_messages_to_the_timer() -> None:
    desk = Desk()
    sub = ten(desk)
    desk.broker.forget("ann")
    desk.broker.release("ann", desk.now)
    assert desk.sync() == []
    desk.tick(100 * MS)
    assert len(desk.take(sub)) == 10


def test_out_of_order_acks_leave_no_timers_behind() -> None:
    desk = Desk(BrokerSettings(retry=RetryPolicy(ack_wait_ms=60_000)))
    sub = desk.subscribe("t")
    desk.publish("t", b"never acked")
    desk.take(sub)
    for number in range(500):
        desk.publish("t", b"x")
        ((delivery, _, _),) = desk.take(sub)
        desk.ack(sub, (delivery, 1))
        assert delivery == number + 2
    state = desk.broker._subscriptions[sub]
    assert len(state.runs) == 1
    assert len(state.timers) < 100


def test_a_nack_may_make_dead_letters_at_once() -> None:
    desk = Desk()
    sub = ten(desk)
    desk.broker.nack(sub, [(3, 2)], owner=OWNER, reason="not a message", dead=True, now=desk.now)
    dead = [event for event in desk.sync() if event.event == Event.DEAD]
    assert [(event.reason, list(event.ranges)) for event in dead] == [("not a message", [Range(3, 2, 1)])]
    assert desk.log.count_from("$dead.t", 0) == 2
    assert in_flight(desk, sub) == 8
    desk.restart()
    assert in_flight(desk, sub) == 8


def test_what_was_delivered_anew_is_settled_only_by_who_has_it_now() -> None:
    desk = Desk()
    sub = ten(desk)
    desk.nack(sub, (1, 10))
    desk.now += SECOND
    assert {attempt for _, _, attempt in desk.take(sub)} == {2}
    for settle in (desk.broker.ack, desk.broker.nack):
        with pytest.raises(BrokerError):
            settle(sub, [(4, 2)], owner=OWNER, attempt=1, now=desk.now)
    desk.broker.ack(sub, [(4, 2)], owner=OWNER, attempt=2, now=desk.now)
    assert in_flight(desk, sub) == 8


def test_a_consumer_may_have_its_own_time_to_settle() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"one")
    desk.broker.take(sub, 1, owner=OWNER, consumer="ann", ack_wait_us=5 * SECOND, now=desk.now)
    desk.tick(5 * SECOND - 1)
    assert desk.take(sub) == []
    desk.tick(1)
    assert desk.take(sub) == [(1, b"one", 2)]
