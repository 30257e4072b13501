from headrace.broker.journal import Journal
from headrace.model.batch import Batch, build_batch
from headrace.model.events import Event, EventPart, Range
from headrace.model.parts import iter_parts


def events(payload: bytes) -> list[EventPart]:
    return [part[1] for part in iter_parts(payload, 0, len(payload), 0) if not isinstance(part, Batch)]


def test_nothing_recorded_is_nothing_to_write() -> None:
    assert Journal().drain() == []


def test_one_read_costs_one_record_with_two_parts() -> None:
    journal = Journal()
    for step in range(3):
        journal.acked(1, 10, [Range(100 + step, 1, 1)])
        journal.record(Event.DELIVERED, 1, 10, Range(200 + step, 1, 1))
    (payload,) = journal.drain()
    delivered, acked = events(payload)
    assert delivered.event == Event.DELIVERED
    assert [item.first for item in delivered.ranges] == [200, 201, 202]
    assert acked.event == Event.ACKED
    assert [item.first for item in acked.ranges] == [100, 101, 102]
    assert journal.drain() == []


def test_what_decides_about_time_or_settling_is_not_merged() -> None:
    journal = Journal()
    journal.record(Event.DELIVERED, 1, 10, Range(1, 1, 1))
    journal.record(Event.DELIVERED, 1, 11, Range(2, 1, 1))
    journal.record(Event.DELIVERED, 1, 11, Range(3, 1, 1), "at most once")
    journal.record(Event.NACKED, 1, 11, Range(1, 1, 1))
    journal.record(Event.DELIVERED, 1, 11, Range(4, 1, 1))
    (payload,) = journal.drain()
    assert [[item.first for item in event.ranges] for event in events(payload)] == [[1], [2], [3], [1], [4]]


def test_subscriptions_merge_apart() -> None:
    journal = Journal()
    for subscription in (1, 2, 1, 2):
        journal.record(Event.DELIVERED, subscription, 10, Range(5, 1, 1))
    (payload,) = journal.drain()
    assert [(event.subscription, len(event.ranges)) for event in events(payload)] == [(1, 2), (2, 2)]


def test_a_dead_letter_and_its_event_are_one_record_after_what_came_before() -> None:
    journal = Journal()
    copy = build_batch("$dead.t", [b"x"], timestamp_us=10)
    journal.record(Event.DELIVERED, 1, 10, Range(7, 2, 3))
    journal.dead(1, 10, Range(7, 1, 3), "nacked", copy)
    journal.acked(1, 10, [Range(8, 1, 3)])
    before, dead, after = journal.drain()
    assert [event.event for event in events(before)] == [Event.DELIVERED]
    (batch,) = [part for part in iter_parts(dead, 0, len(dead), 50) if isinstance(part, Batch)]
    assert batch.topic == "$dead.t"
    (event,) = events(dead)
    assert (event.event, event.reason, event.ranges) == (Event.DEAD, "nacked", [Range(7, 1, 3)])
    assert [event.event for event in events(after)] == [Event.ACKED]


def test_acks_come_before_the_end_of_their_subscription() -> None:
    journal = Journal()
    journal.acked(1, 10, [Range(8, 1, 1)])
    journal.subscription(Event.UNSUBSCRIBED, 1, 10, "asked")
    (payload,) = journal.drain()
    assert [event.event for event in events(payload)] == [Event.ACKED, Event.UNSUBSCRIBED]
