"""Time and views: what the broker does by itself and what it tells."""

from headrace.broker import BrokerSettings, Status, TopicSettings
from headrace.model.events import Event
from tests.unit.broker.desk import MS, SECOND, Desk


def test_an_empty_broker_has_no_deadline() -> None:
    assert Desk().broker.next_deadline() is None


def test_the_next_deadline_is_that_of_the_oldest_delivery() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b")
    desk.take(sub, 1)
    first = desk.now + 100 * MS
    desk.now += 10 * MS
    desk.take(sub, 1)
    assert desk.broker.next_deadline() == first
    desk.tick(90 * MS)
    assert desk.broker.next_deadline() == first + 10 * MS


def test_an_abandoned_subscription_is_removed_and_a_used_one_is_not() -> None:
    desk = Desk(BrokerSettings(subscription_expiry_s=10))
    used, abandoned = desk.subscribe("t"), desk.subscribe("t")
    desk.tick(9 * SECOND)
    desk.take(used)
    desk.tick(1 * SECOND)
    assert [info.id for info in desk.broker.subscriptions()] == [used]
    assert desk.sync()[-1].reason == "not used for too long"
    desk.tick(9 * SECOND)
    assert desk.broker.subscription(used) is None
    assert desk.broker.subscription(abandoned) is None


def test_what_expires_is_noticed_without_a_take() -> None:
    desk = Desk(BrokerSettings(topics={"t": TopicSettings(ttl_s=1)}))
    sub = desk.subscribe("t")
    desk.publish("t", b"a")
    desk.now += 200 * MS
    desk.publish("t", b"b")
    desk.sync()
    desk.tick(800 * MS)
    assert desk.kinds() == [Event.EXPIRED]
    desk.tick(1 * SECOND)
    assert desk.kinds() == [Event.EXPIRED]
    info = desk.broker.subscription(sub)
    assert info is not None
    assert (info.expired, info.pending) == (2, 0)


def test_what_expired_while_the_broker_was_down_is_noticed_at_the_first_tick() -> None:
    desk = Desk(BrokerSettings(topics={"t": TopicSettings(ttl_s=1)}))
    desk.subscribe("t")
    desk.publish("t", b"a")
    desk.restart()
    desk.tick(5 * SECOND)
    assert desk.kinds() == [Event.EXPIRED]


def test_a_publish_looks_at_no_subscription_that_does_not_wait() -> None:
    desk = Desk()
    subs = [desk.subscribe("t") for _ in range(50)]
    before = [desk.broker._subscriptions[sub].cursor for sub in subs]
    desk.publish("t", b"a")
    assert [desk.broker._subscriptions[sub].cursor for sub in subs] == before
    assert desk.sync() == []


def test_where_a_message_stands() -> None:
    desk = Desk()
    outside = desk.publish("t", b"before").base
    sub = desk.subscribe("t")
    batch = desk.publish("t", b"a", b"b", b"c", b"d")
    late = desk.publish("t", b"late", due=desk.now + SECOND)
    desk.take(sub)
    pending = desk.publish("t", b"e")
    desk.ack(sub, (1, 1))
    desk.nack(sub, (2, 1))
    status = {offset: desk.broker.status_of(sub, offset) for offset in (outside, *range(batch.base, batch.end))}
    assert status == {
        outside: Status.OUTSIDE,
        batch.base: Status.SETTLED,
        batch.base + 1: Status.WAITING,
        batch.base + 2: Status.IN_FLIGHT,
        batch.base + 3: Status.IN_FLIGHT,
    }
    assert desk.broker.status_of(sub, late.base) is Status.DEFERRED
    assert desk.broker.status_of(sub, pending.base) is Status.PENDING
    assert desk.broker.status_of(sub + 1, pending.base) is None
    desk.tick(100 * MS)
    assert desk.broker.status_of(sub, batch.base + 2) is Status.WAITING


def test_views_count() -> None:
    desk = Desk()
    sub = desk.subscribe("t", name="team")
    desk.publish("t", b"a", b"b", b"c")
    desk.take(sub, 2)
    desk.ack(sub, (1, 1))
    desk.now += 100 * MS
    desk.take(sub, 1)
    (info,) = desk.broker.subscriptions()
    assert (info.topic, info.name, info.pending, info.in_flight, info.attempts) == ("t", "team", 1, 1, 2)
    assert (info.delivered, info.redelivered, info.acked) == (3, 1, 1)
    (topic,) = desk.broker.topics()
    assert (topic.name, topic.published, topic.subscriptions) == ("t", 3, 1)


def test_counters_outlive_their_subscription() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b")
    desk.take(sub)
    desk.ack(sub, (1, 1))
    before = desk.broker.counters
    assert (before.published, before.delivered, before.acked, before.inflight) == (2, 2, 1, 1)
    desk.broker.unsubscribe(sub, "asked", desk.now)
    desk.broker.unsubscribe(sub, "asked", desk.now)
    after = desk.broker.counters
    assert (after.published, after.delivered, after.acked, after.inflight) == (2, 2, 1, 0)
    desk.restart()
    assert desk.broker.counters == after
