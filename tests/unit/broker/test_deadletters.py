from headrace.broker.deadletters import dead_letters
from headrace.model.batch import Batch, Message, Protocol, build_batch


def buried(batch: Batch, index: int, count: int) -> list[Message]:
    part = dead_letters(batch, index, count, subscription=7, attempts=3, reason="nacked", now=99)
    copy = Batch(part, 0, 1000)
    assert copy.topic == "$dead.orders"
    return [copy.message(i) for i in range(copy.count)]


def test_the_message_is_kept_and_its_origin_is_told() -> None:
    batch = Batch(
        build_batch(
            "orders",
            [b"a", b"b", b"c"],
            timestamp_us=5,
            protocol=Protocol.GRPCQ,
            keys=[b"", b"k", b""],
            headers=[[], [("colour", b"red")], []],
            message_ids=["", "id-b", ""],
        ),
        0,
        40,
    )
    first, second = buried(batch, 1, 2)
    assert (first.value, first.key, first.message_id, first.protocol) == (b"b", b"k", "id-b", Protocol.GRPCQ)
    assert (first.timestamp_us, first.qos) == (99, 1)
    assert dict(first.headers) == {
        "colour": b"red",
        "headrace-origin-topic": b"orders",
        "headrace-origin-offset": b"41",
        "headrace-origin-subscription": b"7",
        "headrace-reason": b"nacked",
        "headrace-attempts": b"3",
    }
    assert (second.value, second.key, second.message_id) == (b"c", None, None)
    assert dict(second.headers)["headrace-origin-offset"] == b"42"


def test_a_second_death_replaces_the_origin_of_the_first() -> None:
    old = [("headrace-origin-topic", b"elsewhere"), ("colour", b"red")]
    batch = Batch(build_batch("orders", [b"a"], timestamp_us=5, headers=[old]), 0, 40)
    (message,) = buried(batch, 0, 1)
    assert [value for name, value in message.headers if name == "headrace-origin-topic"] == [b"orders"]


def test_there_is_no_copy_of_a_copy() -> None:
    batch = Batch(build_batch("$dead.orders", [b"a"], timestamp_us=5), 0, 40)
    assert dead_letters(batch, 0, 1, subscription=7, attempts=3, reason="nacked", now=99) == b""
