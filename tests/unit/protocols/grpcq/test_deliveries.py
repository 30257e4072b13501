"""Stored messages as deliveries: those of this door as they are, those of others in envelopes."""

import base64
from typing import Any

import pytest

from headrace.kernels.grpcq_envelope import RECEIPT
from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.delivery import Portion
from headrace.protocols.grpcq.deliveries import encoded
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import ConsumeResponse, Delivery

TIMESTAMP_US = 1_704_067_200_123_456


def delivered(topic: str, values: list[bytes], *, qos: int = 1, **columns: Any) -> list[Delivery]:
    part = build_batch(topic, values, timestamp_us=TIMESTAMP_US, qos=qos, **columns)
    portion = Portion(Batch(part, 0, 1000), 0, len(values), 41, 2)
    return list(ConsumeResponse.FromString(encoded(7, [portion])).deliveries)


def test_an_envelope_is_delivered_as_it_is() -> None:
    values = [b"\xff not even a message", b"", Message(topic="a").SerializeToString()]
    found = delivered("q", values, protocol=Protocol.GRPCQ, headers=[[("k", b"v")]] * 3)
    assert [delivery.message for delivery in found] == values
    assert [RECEIPT.unpack(delivery.receipt) for delivery in found] == [(7, 2, 41), (7, 2, 42), (7, 2, 43)]
    assert [(delivery.attempt, delivery.offset) for delivery in found] == [(2, 1000), (2, 1001), (2, 1002)]


@pytest.mark.parametrize("door", [Protocol.BLIPMQ, Protocol.SSPQ, Protocol.FUJIN, Protocol.SPARK, Protocol.INTERNAL])
def test_a_message_of_another_door_becomes_a_payload(door: Protocol) -> None:
    first, second = (Message.FromString(d.message) for d in delivered("q", [b"one", b""], protocol=door))
    assert first == Message(
        originator=door.name.lower(), payload=b"one", message_id="headrace-1000", timestamp_ms=TIMESTAMP_US // 1000
    )
    assert (second.payload, second.message_id) == (b"", "headrace-1001")


def test_headers_of_another_door_name_the_call_and_become_metadata() -> None:
    headers = [
        ("grpcq-topic", b"shop.Orders"),
        ("grpcq-action", b"Place"),
        ("trace_id", b"abc"),
        ("raw", b"\xff\x00"),
    ]
    (found,) = delivered(
        "q", [b"v"], protocol=Protocol.FUJIN, headers=[headers], keys=[b"k"], message_ids=["its-own-id"]
    )
    message = Message.FromString(found.message)
    assert (message.originator, message.topic, message.action) == ("fujin", "shop.Orders", "Place")
    assert (message.payload, message.message_id) == (b"v", "its-own-id")
    assert message.metadata == {
        "trace_id": "abc",
        "raw-bin": base64.b64encode(b"\xff\x00").decode(),
        "headrace-key": "k",
    }


def test_another_door_can_say_that_its_value_is_an_envelope() -> None:
    marked = [[("content-type", b"application/grpcq")]] * 2
    value = Message(topic="a", action="b").SerializeToString()
    found = delivered("q", [value, b"\xff"], protocol=Protocol.FUJIN, headers=marked)
    assert [delivery.message for delivery in found] == [value, b"\xff"]


def test_a_dead_letter_carries_its_reason_as_metadata() -> None:
    value = Message(topic="a", action="b", metadata={"k": "v"}).SerializeToString()
    headers = [[("grpcq-topic", b"a"), ("k", b"v"), ("headrace-reason", b"boom"), ("headrace-attempts", b"3")]]
    (found,) = delivered("$dead.q", [value], protocol=Protocol.GRPCQ, headers=headers)
    assert found.message.startswith(value)
    assert Message.FromString(found.message).metadata == {"k": "v", "headrace-reason": "boom", "headrace-attempts": "3"}


def test_what_is_delivered_at_most_once_has_no_receipt() -> None:
    (found,) = delivered("q", [b"x"], protocol=Protocol.BLIPMQ, qos=0)
    assert found.receipt == b""
    assert Message.FromString(found.message).payload == b"x"


def test_a_part_of_a_batch() -> None:
    part = build_batch("q", [b"%d" % i for i in range(10)], timestamp_us=1, protocol=Protocol.GRPCQ)
    batch = Batch(b"\0" * 16 + part, 16, 500)
    found = ConsumeResponse.FromString(encoded(1, [Portion(batch, 3, 2, 9, 1), Portion(batch, 8, 2, 30, 4)])).deliveries
    assert [(d.message, d.offset, d.attempt) for d in found] == [
        (b"3", 503, 1),
        (b"4", 504, 1),
        (b"8", 508, 4),
        (b"9", 509, 4),
    ]
