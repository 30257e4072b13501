"""What the producer puts around a request."""

import time
import uuid

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from headrace.grpcq import PAYLOAD_MAX, Call, MemoryAdapter, Message, Producer, Rejected


async def sent(adapter: MemoryAdapter, queue: str = "q") -> list[Message]:
    return [item.message() for item in (await adapter.consume(queue, 100)).items]


async def test_a_call_becomes_a_message_with_everything_filled_in() -> None:
    adapter = MemoryAdapter()
    before = time.time_ns() // 1_000_000
    identity = await Producer(adapter, "shop-1").send("q", "user.UserService", "CreateUser", StringValue(value="ann"))
    (message,) = await sent(adapter)
    assert (message.originator, message.topic, message.action) == ("shop-1", "user.UserService", "CreateUser")
    assert StringValue.FromString(message.payload).value == "ann"
    assert message.message_id == identity
    assert uuid.UUID(identity).version == 4
    assert before <= message.timestamp_ms <= time.time_ns() // 1_000_000


async def test_ids_and_serialized_requests_are_taken_as_given() -> None:
    adapter = MemoryAdapter()
    assert await Producer(adapter).send("q", "a", "b", b"raw", message_id="mine") == "mine"
    (message,) = await sent(adapter)
    assert (message.payload, message.message_id, message.originator) == (b"raw", "mine", "")


async def test_metadata_is_copied() -> None:
    adapter = MemoryAdapter()
    metadata = {"tenant_id": "t"}
    await Producer(adapter).send("q", "a", "b", b"", metadata)
    metadata["tenant_id"] = "changed"
    (message,) = await sent(adapter)
    assert message.metadata["tenant_id"] == "t"


async def test_a_batch_goes_all_or_nothing() -> None:
    adapter = MemoryAdapter()
    producer = Producer(adapter)
    good, bad = Call(topic="a", action="b", request=b"1"), Call(topic="a", action="", request=b"2")
    with pytest.raises(Rejected, match="action must not be empty"):
        await producer.send_batch("q", [good, bad])
    assert await sent(adapter) == []
    ids = await producer.send_batch("q", [good, good])
    assert [message.message_id for message in await sent(adapter)] == ids
    assert len(set(ids)) == 2


@pytest.mark.parametrize(("topic", "action"), [("", "b"), ("a", ""), (" a", "b"), ("a", "b\t"), ("\u2003a", "b")])
async def test_topic_and_action_must_be_there_and_trimmed(topic: str, action: str) -> None:
    adapter = MemoryAdapter()
    with pytest.raises(Rejected):
        await Producer(adapter).send("q", topic, action, b"")
    assert await sent(adapter) == []


async def test_a_payload_over_the_limit_names_the_call_and_both_sizes() -> None:
    adapter = MemoryAdapter()
    producer = Producer(adapter)
    await producer.send("q", "a.B", "C", bytes(PAYLOAD_MAX))
    with pytest.raises(Rejected, match=r"a\.B\.C has 262145 bytes, more than the 262144 allowed"):
        await producer.send("q", "a.B", "C", bytes(PAYLOAD_MAX + 1))
    assert len(await sent(adapter)) == 1


async def test_a_bad_queue_name_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Rejected, match="bad queue name"):
        await Producer(MemoryAdapter()).send("no spaces", "a", "b", b"")
