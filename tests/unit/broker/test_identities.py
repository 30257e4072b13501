"""What a topic knows of the ids of its messages: what of a record is left out, for how long, and across restarts."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker import Broker, BrokerSettings, TopicSettings
from headrace.broker.identities import Identities
from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.events import Event, EventPart
from headrace.model.parts import RECORD_HEADER_SIZE, iter_parts
from tests.simulation.memory_log import MemoryLog

SECOND = 1_000_000
ROOM = bytes(RECORD_HEADER_SIZE)
SETTINGS = BrokerSettings(
    dedup_door_s={Protocol.GRPCQ: 10},
    topics={"all": TopicSettings(dedup_s=20), "none": TopicSettings(dedup_s=0)},
)


def part(topic: str, ids: Sequence[str], now: int, door: Protocol = Protocol.GRPCQ) -> bytes:
    """A batch in which each message's value and key are its id."""
    values = [each.encode() for each in ids]
    headers = [[("id", value)] for value in values]
    return build_batch(
        topic, values, timestamp_us=now, protocol=door, max_attempts=7, keys=values, headers=headers, message_ids=ids
    )


def record(*parts: bytes) -> bytearray:
    return bytearray(ROOM + b"".join(parts))


def stored(found: bytearray) -> list[tuple[str, list[str]]]:
    """The topics and ids of the batches of a record, every cell of each message being what it should."""
    told = []
    for each in iter_parts(found, RECORD_HEADER_SIZE, len(found), 0):
        if isinstance(each, Batch):
            messages = [each.message(i) for i in range(each.count)]
            for message in messages:
                name = (message.message_id or "").encode()
                assert (message.value, message.key or b"", dict(message.headers)["id"]) == (name, name, name)
            assert each.max_attempts == 7
            told.append((each.topic, [message.message_id or "" for message in messages]))
    return told


def test_a_repeat_is_left_out_and_the_rest_is_stored() -> None:
    ids = Identities(SETTINGS)
    first = record(part("q", ["a", "b"], SECOND))
    assert ids.admit(first).record is first
    again = ids.admit(record(part("q", ["c", "a", "d", "c"], 2 * SECOND)))
    assert (stored(again.record), again.count, again.repeated) == ([("q", ["c", "d"])], 2, 2)
    nothing = ids.admit(record(part("q", ["a", "d"], 2 * SECOND)))
    assert (nothing.is_empty, nothing.topics, nothing.count, nothing.repeated) == (True, ("q",), 0, 2)
    assert (ids.repeated, ids.remembered) == (4, 4)


def test_messages_without_an_id_never_repeat_one() -> None:
    ids = Identities(SETTINGS)
    for _ in range(2):
        assert ids.admit(record(part("q", ["", ""], SECOND))).count == 2
    assert ids.remembered == 0


def test_topics_are_told_apart_and_so_are_doors_without_a_window() -> None:
    ids = Identities(SETTINGS)
    assert ids.admit(record(part("q", ["a"], SECOND), part("r", ["a"], SECOND))).count == 2
    for topic, door in (("q", Protocol.SPARK), ("none", Protocol.GRPCQ), ("$dead.q", Protocol.GRPCQ)):
        for _ in range(2):
            assert ids.admit(record(part(topic, ["a"], SECOND, door))).count == 1
    assert ids.admit(record(part("all", ["a"], SECOND, Protocol.SPARK))).count == 1
    assert ids.admit(record(part("all", ["a"], SECOND, Protocol.GRPCQ))).is_empty


def test_an_event_stays_in_its_record_whatever_is_left_out() -> None:
    ids = Identities(SETTINGS)
    event = EventPart(Event.COMMITTED, SECOND, 0, detail=b'{"writer": "w"}').encode()
    ids.admit(record(part("all", ["a"], SECOND, Protocol.SPARK)))
    left = ids.admit(record(part("all", ["a"], SECOND, Protocol.SPARK), event))
    assert not left.is_empty
    assert bytes(left.record[RECORD_HEADER_SIZE:]) == event


def test_what_the_log_refused_may_come_again_and_nothing_else() -> None:
    ids = Identities(SETTINGS)
    ids.admit(record(part("q", ["kept"], SECOND)))
    refused = ids.admit(record(part("q", ["kept", "lost"], SECOND)))
    ids.take_back(refused.record)
    again = ids.admit(record(part("q", ["kept", "lost"], SECOND)))
    assert stored(again.record) == [("q", ["lost"])]


def test_the_topic_that_remembers_most_forgets_first_and_it_is_counted() -> None:
    ids = Identities(BrokerSettings(dedup_s=100, dedup_ids_max=100))
    ids.admit(record(part("calm", ["a", "b"], SECOND)))
    for n in range(50):
        ids.admit(record(part("loud", [f"{n}-{i}" for i in range(10)], SECOND + n)))
        assert ids.remembered <= 100
    assert ids.admit(record(part("calm", ["a", "b"], 2 * SECOND))).is_empty
    assert ids.admit(record(part("loud", ["49-9"], 2 * SECOND))).is_empty
    assert ids.admit(record(part("loud", ["0-0"], 2 * SECOND))).count == 1
    assert ids.forgotten >= 402


def test_what_is_past_its_window_makes_room_before_anything_is_forgotten_early() -> None:
    ids = Identities(BrokerSettings(dedup_s=10, dedup_ids_max=4))
    ids.admit(record(part("old", ["a", "b", "c"], SECOND)))
    ids.admit(record(part("new", ["a", "b", "c"], 20 * SECOND)))
    assert (ids.remembered, ids.forgotten) == (3, 0)


names = st.lists(st.sampled_from([*"abcdefgh", ""]), min_size=1, max_size=5)
publishes = st.tuples(
    st.sampled_from(["q", "all", "none"]),
    names,
    st.sampled_from([Protocol.GRPCQ, Protocol.SPARK]),
    st.integers(0, 8 * SECOND),
    st.sampled_from(["stored", "stored", "stored", "refused", "restart", "snapshot", "copied"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(publishes, max_size=40))
def test_the_memory_is_that_of_a_dict_with_a_window_whatever_restarts(
    story: list[tuple[str, list[str], Protocol, int, str]],
) -> None:
    """The plain model: for each topic when each id was first stored, and the window of topic and door."""
    log, now = MemoryLog(), SECOND
    broker = Broker(log, SETTINGS)
    snapshot, covered = broker.snapshot(), 0
    model: dict[tuple[str, str], int] = {}
    for topic, ids, door, pause, end in story:
        now += pause
        longest = {"q": 10, "all": 20, "none": 0}[topic] * SECOND
        takes_part = longest and (door is Protocol.GRPCQ or topic == "all")
        if end == "copied":
            log.append(part(topic, ids, now, door) + part("$redriven", ["mark"], now, Protocol.INTERNAL))
            log.sync()
            continue
        admitted = broker.identities.admit(record(part(topic, ids, now, door)))
        expected, added = [], []
        for each in ids:
            seen = model.get((topic, each))
            if takes_part and each and seen is not None and seen > now - longest:
                continue
            expected.append(each)
            if takes_part and each:
                model[topic, each] = now
                added.append((topic, each))
        assert stored(admitted.record) == ([(topic, expected)] if expected else [])
        assert (admitted.count, admitted.repeated) == (len(expected), len(ids) - len(expected))
        if end == "refused":
            broker.identities.take_back(admitted.record)
            for key in added:
                del model[key]
            continue
        if not admitted.is_empty:
            log.append(bytes(admitted.record[RECORD_HEADER_SIZE:]))
            log.sync()
        if end == "snapshot":
            snapshot, covered = broker.snapshot(), log.next_offset
        elif end == "restart":
            broker = Broker.restore(snapshot, log, SETTINGS)
            for parts in (list(found.parts()) for found in log.records if found.base >= covered):
                copied = any(isinstance(each, Batch) and each.topic == "$redriven" for each in parts)
                for each_part in parts:
                    if isinstance(each_part, Batch):
                        broker.apply_batch(each_part, copied=copied)
