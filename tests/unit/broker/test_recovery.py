"""What survives a restart, a crash, and damage."""

import pytest

from headrace.broker import Broker, BrokerSettings, RetryPolicy
from headrace.broker.snapshot import BadSnapshot
from headrace.broker.views import Status
from headrace.model.batch import build_batch
from headrace.model.errors import BrokerError
from headrace.model.events import Event
from headrace.model.requests import Start
from tests.simulation.memory_log import Record
from tests.simulation.world import normalised, replay
from tests.unit.broker.desk import MS, OWNER, SECOND, Desk


def test_acked_stays_acked_and_attempts_go_on() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b", b"c")
    desk.take(sub, 2)
    desk.ack(sub, (1, 1))
    desk.restart()
    assert desk.take(sub) == [(3, b"c", 1)]
    desk.now += 100 * MS
    assert desk.take(sub) == [(2, b"b", 2), (3, b"c", 2)]


def test_a_nacked_message_stays_nacked_until_it_is_due() -> None:
    desk = Desk(BrokerSettings(retry=RetryPolicy(ack_wait_ms=5000)))
    sub = desk.subscribe("t")
    desk.publish("t", b"a")
    desk.take(sub)
    desk.nack(sub, (1, 1))
    desk.restart()
    with pytest.raises(BrokerError):
        desk.ack(sub, (1, 1))
    desk.now += 100 * MS
    assert desk.take(sub) == [(1, b"a", 2)]


def test_a_deferred_message_stays_deferred() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", due=desk.now + SECOND)
    desk.take(sub)
    desk.restart()
    assert desk.broker.status_of(sub, 1) is Status.DEFERRED
    desk.now += SECOND
    assert desk.take(sub) == [(1, b"a", 1)]


def test_lost_deliveries_come_again_under_the_same_ids_and_old_acks_are_unknown() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b")
    desk.take(sub, 1)
    desk.sync()
    assert desk.take(sub) == [(2, b"b", 1)]
    desk.broker.drain()
    desk.restart()
    desk.ack(sub, (1, 1))
    with pytest.raises(BrokerError):
        desk.ack(sub, (2, 1))
    assert desk.take(sub) == [(2, b"b", 1)]


def test_a_subscription_made_behind_refused_messages_misses_nothing() -> None:
    desk = Desk()
    desk.log.append(build_batch("t", [b"refused"] * 5, timestamp_us=desk.now))
    sub = desk.broker.subscribe("t", qos=1, owner=OWNER, at=desk.log.next_offset, now=desk.now)
    for payload in desk.broker.drain():
        desk.log.append(payload)
    desk.log.refuse()
    desk.broker.rewound(desk.log.next_offset)
    desk.publish("t", b"next")
    assert desk.take(sub) == [(1, b"next", 1)]
    desk.broker.drain()
    desk.restart()
    assert desk.take(sub) == [(1, b"next", 1)]


def test_an_unused_subscription_is_handed_back_once() -> None:
    desk = Desk()
    first, second = desk.subscribe("t"), desk.subscribe("t")
    desk.subscribe("t", qos=0)
    desk.subscribe("u")
    desk.publish("t", b"a")
    desk.restart()
    assert desk.subscribe("t", owner="stranger") > second
    assert desk.subscribe("t") == first
    assert desk.subscribe("t") == second
    assert desk.subscribe("t") > second
    assert desk.take(first) == [(1, b"a", 1)]


def test_a_subscription_somebody_polled_is_not_handed_back() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.restart()
    desk.take(sub)
    assert desk.subscribe("t") != sub


def test_ids_are_not_used_again() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.broker.unsubscribe(sub, "asked", desk.now)
    desk.restart()
    assert desk.subscribe("t") == sub + 1


def test_a_shared_subscription_is_found_by_name_after_a_restart() -> None:
    desk = Desk()
    sub = desk.subscribe("t", name="team")
    desk.restart()
    assert desk.subscribe("t") != sub
    assert desk.subscribe("t", name="team") == sub


def test_the_time_a_broker_was_down_does_not_expire_a_subscription() -> None:
    desk = Desk(BrokerSettings(subscription_expiry_s=10))
    sub = desk.subscribe("t")
    desk.restart()
    desk.tick(100 * SECOND)
    assert desk.broker.subscription(sub) is not None
    desk.tick(10 * SECOND)
    assert desk.broker.subscription(sub) is None


def test_a_snapshot_and_the_records_after_it_are_the_whole_log() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b", b"c")
    desk.take(sub, 2)
    desk.sync()
    state, records = desk.broker.snapshot(), len(desk.log.records)
    desk.ack(sub, (2, 1))
    desk.take(sub)
    desk.publish("u", b"x")
    desk.sync()
    restored = Broker.restore(state, desk.log, desk.settings)
    replay(restored, desk.log.records, records, records)
    assert normalised(restored.snapshot(), desk.log) == normalised(desk.broker.snapshot(), desk.log)
    assert restored.counters == desk.broker.counters


@pytest.mark.parametrize("state", [b"", b"nonsense", b"\x81\xa7version\x01"])
def test_bytes_that_are_no_snapshot_are_refused(state: bytes) -> None:
    with pytest.raises(BadSnapshot):
        Broker.restore(state, Desk().log, BrokerSettings())


def test_a_snapshot_of_another_version_is_refused() -> None:
    state = Desk().broker.snapshot().replace(b"\xa7version\x01", b"\xa7version\x63")
    with pytest.raises(BadSnapshot, match="version 99"):
        Broker.restore(state, Desk().log, BrokerSettings())


def without(desk: Desk, kind: Event) -> list[Record]:
    """The log's records but for those that begin with an event of this kind."""
    kept = []
    for record in desk.log.records:
        part = next(record.parts())
        if not isinstance(part, tuple) or part[1].event != kind:
            kept.append(record)
    return kept


def test_messages_whose_delivery_was_lost_in_damage_are_delivered_again() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a", b"b")
    desk.publish("t", b"c", b"d")
    desk.take(sub, 1)
    desk.sync()
    lost = len(desk.log.records)
    desk.take(sub, 2)
    desk.sync()
    desk.take(sub, 1)
    desk.sync()
    del desk.log.records[lost]
    desk.restart()
    assert desk.take(sub) == [(2, b"b", 1), (3, b"c", 1)]


def test_settling_what_damage_made_unknown_changes_nothing() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a")
    desk.take(sub)
    desk.sync()
    desk.ack(sub, (1, 1))
    desk.sync()
    desk.log.records = without(desk, Event.DELIVERED)
    desk.restart()
    assert desk.take(sub) == [(1, b"a", 1)]
    desk.log.records = without(desk, Event.SUBSCRIBED)
    desk.restart()
    assert desk.broker.subscriptions() == []


def test_hard_retention_drops_exactly_what_is_deleted() -> None:
    desk = Desk()
    behind, holding = desk.subscribe("t"), desk.subscribe("t")
    desk.publish("t", b"a", b"b")
    desk.publish("u", b"x")
    desk.take(holding)
    desk.sync()
    kept = desk.publish("t", b"c")
    desk.broker.forget_before(kept.base, desk.now)
    desk.sync()
    desk.log.delete_before(kept.base)
    for sub in (behind, holding):
        info = desk.broker.subscription(sub)
        assert info is not None
        assert (info.dropped, info.pending) == (2, 1)
        assert desk.take(sub) == [(3, b"c", 1)]


def test_retention_that_dropped_but_did_not_delete_is_not_undone() -> None:
    desk = Desk()
    sub = desk.subscribe("t")
    desk.publish("t", b"a")
    desk.publish("u", b"x")
    desk.publish("t", b"b")
    kept = desk.publish("t", b"c")
    desk.broker.forget_before(kept.base, desk.now)
    desk.restart()
    assert desk.take(sub) == [(3, b"c", 1)]


def test_nothing_is_needed_of_what_is_settled() -> None:
    desk = Desk()
    nothing = desk.broker.needed_from()
    sub, other = desk.subscribe("t"), desk.subscribe("quiet")
    assert desk.broker.needed_from() == nothing
    first = desk.publish("t", b"a", b"b")
    assert desk.broker.needed_from() <= first.base
    desk.take(sub)
    desk.ack(sub, (1, 1))
    assert desk.broker.needed_from() == first.base + 1
    desk.ack(sub, (2, 1))
    assert desk.broker.needed_from() == nothing
    assert desk.broker.subscription(other) is not None


def test_a_batch_on_its_way_while_a_snapshot_was_taken_is_counted_once() -> None:
    desk = Desk()
    desk.publish("t", b"a")
    state = desk.broker.snapshot()
    desk.publish("t", b"b")
    desk.publish("u", b"c")
    restored = Broker.restore(state, desk.log, desk.settings)
    replay(restored, desk.log.records)
    assert restored.counters.published == 3


def test_earliest_after_a_restart_reads_what_was_stored_before() -> None:
    desk = Desk()
    desk.publish("t", b"a")
    desk.restart()
    sub = desk.broker.subscribe("t", qos=1, owner=OWNER, start=Start.EARLIEST, at=desk.log.next_offset, now=desk.now)
    assert desk.take(sub) == [(1, b"a", 1)]
