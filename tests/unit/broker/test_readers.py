"""Readers outside the broker: their reports are events, survive a restart, and hold retention back."""

import msgspec
import pytest

from headrace.broker import Broker
from headrace.broker.alarms import NEVER
from headrace.broker.readers import READERS_MAX, TOPICS_MAX, Reader
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event
from tests.unit.broker.desk import Desk


def test_a_report_is_an_event_and_the_last_one_counts() -> None:
    desk = Desk()
    desk.broker.readers.report("ann", "lake", ["a"], 5, desk.now)
    desk.broker.readers.report("ann", "lake", ["a", "b"], 3, desk.now)
    events = desk.sync()
    assert [event.event for event in events] == [Event.REPORTED, Event.REPORTED]
    assert msgspec.json.decode(events[1].detail) == {
        "owner": "ann", "reader": "lake", "topics": ["a", "b"], "offset": 3, "reported_us": desk.now,
    }  # fmt: skip
    assert [reader.offset for reader in desk.broker.readers.all()] == [3]


def test_retention_waits_for_the_slowest_until_it_is_removed() -> None:
    desk = Desk()
    assert desk.broker.needed_from() == NEVER
    desk.broker.readers.report("ann", "lake", None, 40, desk.now)
    desk.broker.readers.report("bob", "lake", None, 7, desk.now)
    assert desk.broker.needed_from() == 7
    desk.broker.readers.remove("bob", "lake", desk.now)
    desk.broker.readers.remove("bob", "never heard of", desk.now)
    assert desk.broker.needed_from() == 40


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_readers_survive_a_restart(with_snapshot: bool) -> None:
    desk = Desk()
    desk.broker.readers.report("ann", "lake", ["a"], 5, desk.now)
    desk.broker.readers.report("ann", "gone", None, 6, desk.now)
    desk.broker.readers.remove("ann", "gone", desk.now)
    desk.sync()
    if with_snapshot:
        desk.broker = Broker.restore(desk.broker.snapshot(), desk.log, desk.settings)
    else:
        desk.restart()
    assert desk.broker.readers.all() == [
        Reader(owner="ann", reader="lake", topics=("a",), offset=5, reported_us=desk.now)
    ]


def test_readers_are_found_in_order_and_by_name() -> None:
    desk = Desk()
    for owner, name in (("bob", "lake"), ("ann", "lake"), ("ann", "archive"), ("cid", "lake")):
        desk.broker.readers.report(owner, name, None, 1, desk.now)
    desk.broker.readers.remove("cid", "lake", desk.now)
    page = desk.broker.readers.page(("b", ""), 10)
    assert [(reader.reader, reader.owner) for reader in page] == [("lake", "ann"), ("lake", "bob")]
    assert desk.broker.readers.owners("lake") == {"ann", "bob"}
    assert desk.broker.readers.owners("la") == set()


def test_a_snapshot_of_an_older_broker_has_neither() -> None:
    desk = Desk()
    desk.broker.readers.report("ann", "lake", None, 5, desk.now)
    saved = msgspec.msgpack.decode(desk.broker.snapshot())
    del saved["writers"], saved["readers"]
    restored = Broker.restore(msgspec.msgpack.encode(saved), desk.log, desk.settings)
    assert restored.readers.all() == []
    assert restored.writers.items() == []


def test_there_is_room_for_so_many() -> None:
    desk = Desk()
    for number in range(READERS_MAX):
        desk.broker.readers.reported(Reader(owner="ann", reader=str(number), offset=0))
    desk.broker.readers.report("ann", "0", None, 1, desk.now)
    with pytest.raises(BrokerError) as refused:
        desk.broker.readers.report("ann", "one more", None, 0, desk.now)
    assert refused.value.code is Code.LIMIT
    with pytest.raises(BrokerError):
        desk.broker.readers.report("ann", "0", ["a"] * (TOPICS_MAX + 1), 0, desk.now)
