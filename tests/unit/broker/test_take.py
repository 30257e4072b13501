"""What a take delivers: order, limits, QoS, time."""

import pytest

from headrace.broker import BrokerSettings, RetryPolicy, TopicSettings
from headrace.broker.dispatch import WARM_MAX
from headrace.model.batch import Batch
from headrace.model.events import Event, Range
from headrace.model.requests import Start
from tests.unit.broker.desk import LITERAL, MS, OWNER, SECOND, Desk


def test_messages_come_in_order_with_ids_from_one() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b")
    desk.publish("other", b"x")
    desk.publish("t", b"c")
    assert desk.take(sub) == [(1, b"a", 1), (2, b"b", 1), (3, b"c", 1)]
    assert desk.take(sub) == []


def test_a_limit_cuts_a_batch() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b", b"c")
    assert desk.take(sub, 2) == [(1, b"a", 1), (2, b"b", 1)]
    assert desk.take(sub, 2) == [(3, b"c", 1)]


def test_a_take_is_bounded_by_bytes_but_gives_one_message_of_any_size() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", *[b"x" * 100] * 10)

    def taken(size_max: int) -> int:
        portions = desk.broker.take(sub, 100, owner=OWNER, size_max=size_max, now=desk.now)
        return sum(portion.count for portion in portions)

    assert taken(350) == 3
    assert taken(1) == 1
    desk.now += 100 * MS
    assert taken(250) == 2
    assert taken(1000) == 8


def test_a_portion_is_a_part_of_one_batch() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    first = desk.publish("t", b"a", b"b", b"c")
    second = desk.publish("t", b"d")
    portions = desk.broker.take(sub, 9, owner=OWNER, now=desk.now)
    assert [(p.batch.base, p.index, p.count, p.first_delivery) for p in portions] == [
        (first.base, 0, 3, 1),
        (second.base, 0, 1, 4),
    ]
    assert desk.sync()[-1].ranges == [Range(first.base, 3, 1), Range(second.base, 1, 1)]


def test_latest_begins_behind_what_is_on_its_way_and_earliest_at_the_beginning() -> None:
    desk = Desk()
    desk.publish("t", b"old")
    latest, earliest = desk.subscribe("t"), desk.subscribe("t", start=Start.EARLIEST)
    desk.publish("t", b"new")
    assert desk.take(latest) == [(1, b"new", 1)]
    assert desk.take(earliest) == [(1, b"old", 1), (2, b"new", 1)]


def test_every_subscription_gets_every_message_and_consumers_of_a_shared_one_compete() -> None:
    desk = Desk()
    one, two = desk.subscribe("t"), desk.subscribe("t")
    shared = desk.subscribe("t", name="team")
    assert desk.subscribe("t", name="team") == shared
    assert one != two
    desk.publish("t", b"a", b"b")
    assert desk.take(one) == desk.take(two)
    assert desk.take(shared, 1, "ann") == [(1, b"a", 1)]
    assert desk.take(shared, 1, "bob") == [(2, b"b", 1)]


def test_an_unknown_subscription_or_somebody_elses_has_nothing() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a")
    assert desk.broker.take(sub, 1, owner="stranger", now=desk.now) == []
    assert desk.broker.take(sub + 1, 1, owner=OWNER, now=desk.now) == []


def test_the_in_flight_limit_holds_the_cursor_until_acks() -> None:
    desk = Desk(BrokerSettings(retry=LITERAL, inflight_max=3))
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b", b"c", b"d")
    assert len(desk.take(sub)) == 3
    assert desk.take(sub) == []
    desk.ack(sub, (2, 1))
    assert desk.take(sub) == [(4, b"d", 1)]


@pytest.mark.parametrize(("sub_qos", "message_qos"), [(0, 0), (0, 1), (1, 0)])
def test_a_delivery_at_most_once_is_settled_by_itself(sub_qos: int, message_qos: int) -> None:
    desk = Desk()
    sub = desk.subscribe("t", qos=sub_qos)
    desk.publish("t", b"a", qos=message_qos)
    assert desk.take(sub) == [(1, b"a", 1)]
    info = desk.broker.subscription(sub)
    assert info is not None
    assert (info.in_flight, info.delivered) == (0, 1)
    desk.tick(10 * SECOND)
    assert desk.take(sub) == []


def test_a_delayed_batch_is_passed_and_comes_when_it_is_due() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"late", due=desk.now + 50 * MS)
    desk.publish("t", b"soon")
    assert desk.take(sub) == [(2, b"soon", 1)]
    assert desk.kinds() == [Event.DEFERRED, Event.DELIVERED]
    desk.now += 50 * MS
    assert desk.take(sub) == [(1, b"late", 1)]


def test_a_topic_may_delay_everything() -> None:
    desk = Desk(BrokerSettings(topics={"t": TopicSettings(delay_ms=20)}))
    sub = desk.subscribe("t", qos=0)
    desk.publish("t", b"a")
    assert desk.take(sub) == []
    desk.now += 20 * MS
    assert desk.take(sub) == [(1, b"a", 1)]


def test_delayed_messages_cannot_fill_the_memory() -> None:
    desk = Desk(BrokerSettings(retry=LITERAL, inflight_max=2))
    sub = desk.subscribe("t")
    for value in (b"a", b"b", b"c"):
        desk.publish("t", value, due=desk.now + SECOND)
    assert desk.take(sub) == []
    info = desk.broker.subscription(sub)
    assert info is not None
    assert (info.deferred, info.pending) == (2, 1)
    desk.now += SECOND
    assert len(desk.take(sub)) == 2


def test_what_has_expired_is_passed_and_counted() -> None:
    desk = Desk(BrokerSettings(topics={"t": TopicSettings(ttl_s=1)}))
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b")
    desk.publish("t", b"c", expires=desk.now + 5 * SECOND)
    desk.now += SECOND
    assert desk.take(sub) == [(3, b"c", 1)]
    assert desk.kinds() == [Event.EXPIRED, Event.DELIVERED]


def test_the_rest_of_a_batch_expires_while_it_is_being_read() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b", expires=desk.now + SECOND)
    assert desk.take(sub, 1) == [(1, b"a", 1)]
    desk.ack(sub, (1, 1))
    desk.now += SECOND
    assert desk.take(sub, 1) == []
    info = desk.broker.subscription(sub)
    assert info is not None
    assert info.expired == 1


def test_a_message_that_expired_is_not_delivered_again() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", expires=desk.now + SECOND)
    desk.take(sub)
    desk.nack(sub, (1, 1))
    desk.now += SECOND
    assert desk.take(sub) == []
    assert desk.kinds()[-1] == Event.EXPIRED


def test_a_qos0_subscription_keeps_the_newest() -> None:
    desk = Desk(BrokerSettings(qos0_pending_max=2))
    sub = desk.subscribe("t", qos=0)
    desk.publish("t", b"a", b"b")
    info = desk.broker.subscription(sub)
    assert info is not None
    assert info.pending == 2
    desk.publish("t", b"c")
    assert desk.take(sub) == [(2, b"b", 1), (3, b"c", 1)]
    dropped = next(event for event in desk.events + desk.sync() if event.event == Event.DROPPED)
    assert (dropped.reason, dropped.ranges[0].count) == ("overflow", 1)


def test_an_abandoned_qos0_subscription_is_trimmed_without_a_take() -> None:
    desk = Desk(BrokerSettings(qos0_pending_max=4))
    sub = desk.subscribe("t", qos=0)
    for _ in range(10):
        desk.publish("t", b"a", b"b")
    info = desk.broker.subscription(sub)
    assert info is not None
    assert info.pending <= 6
    assert info.dropped == 20 - info.pending


def test_redeliveries_come_before_new_messages() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b", b"c")
    desk.take(sub, 2)
    desk.now += 100 * MS
    assert desk.take(sub) == [(1, b"a", 2), (2, b"b", 2), (3, b"c", 1)]


def test_a_redelivery_may_split_a_run() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", *[b"%d" % i for i in range(6)])
    desk.take(sub)
    desk.now += 100 * MS
    assert desk.take(sub, 2) == [(1, b"0", 2), (2, b"1", 2)]
    desk.ack(sub, (4, 1))
    assert desk.take(sub) == [(3, b"2", 2), (5, b"4", 2), (6, b"5", 2)]
    desk.ack(sub, (1, 3), (5, 2))
    info = desk.broker.subscription(sub)
    assert info is not None
    assert info.in_flight == 0


def test_only_the_subscriptions_read_last_keep_their_batch() -> None:
    desk = Desk()
    subs = [desk.subscribe("t") for _ in range(WARM_MAX + 20)]
    desk.publish("t", b"a", b"b")
    lookups = CountingSource(desk)
    for sub in subs:
        desk.take(sub, 1)
    assert lookups.count == len(subs)
    for sub in reversed(subs):
        assert desk.take(sub, 1) == [(2, b"b", 1)]
    assert lookups.count == len(subs) + 20


class CountingSource:
    """Counts how often the log is asked for a batch."""

    def __init__(self, desk: Desk) -> None:
        self.count = 0
        self._batch_at = desk.log.batch_at
        desk.log.batch_at = self.batch_at  # type: ignore[method-assign]

    def batch_at(self, topic: str, offset: int) -> Batch | None:
        self.count += 1
        return self._batch_at(topic, offset)


def test_a_batch_that_is_gone_is_dropped_when_it_would_be_delivered_again() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a")
    desk.take(sub)
    desk.log.delete_before(desk.publish("t", b"b").base)
    desk.now += 100 * MS
    assert desk.take(sub) == [(2, b"b", 1)]
    info = desk.broker.subscription(sub)
    assert info is not None
    assert (info.dropped, info.in_flight) == (1, 1)


def test_the_retry_timer_is_the_literal_one_with_the_ack_wait_on_top() -> None:
    desk = Desk(BrokerSettings(retry=RetryPolicy(max_attempts=3, backoff_ms=100, ack_wait_ms=30)))
    sub = desk.subscribe("t")
    desk.publish("t", b"a")
    desk.take(sub)
    desk.now += 130 * MS - 1
    assert desk.take(sub) == []
    desk.now += 1
    assert desk.take(sub) == [(1, b"a", 2)]
    desk.now += 230 * MS - 1
    assert desk.take(sub) == []
    desk.now += 1
    assert desk.take(sub) == [(1, b"a", 3)]
