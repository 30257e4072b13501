"""A publish call into its batch."""

import uuid

import pytest

from headrace.http2.status import STATUS
from headrace.kernels.grpcq_envelope import Reason
from headrace.model.batch import Batch, Column, Protocol
from headrace.model.errors import BrokerError, Code
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.protocols.grpcq.envelope import check_message, check_queue, check_source, foreign_character, refusal
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.publishing import COUNT_MAX, Publishing, uuids
from headrace.protocols.grpcq.queues_pb2 import PublishRequest

NOW = 1_704_067_200_123_456


def call(*messages: Message | bytes, queue: str = "orders") -> bytes:
    serialized = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]
    return PublishRequest(queue=queue, messages=serialized).SerializeToString()


def stored(*messages: Message | bytes, max_attempts: int = 0) -> Batch:
    publishing = Publishing.read(call(*messages), 1000)
    entropy = bytes(range(16)) * (publishing.entropy_size // 16)
    record = publishing.record(now=NOW, entropy=entropy, max_attempts=max_attempts)
    return Batch(record, RECORD_HEADER_SIZE, 5)


def test_a_batch_says_where_and_when_and_by_which_door() -> None:
    batch = stored(Message(topic="a", action="b"), max_attempts=7)
    assert (batch.topic, batch.count, batch.qos, batch.protocol) == ("orders", 1, 1, Protocol.GRPCQ)
    assert (batch.timestamp_us, batch.max_attempts) == (NOW, 7)
    assert batch.columns == Column.HEADERS | Column.MESSAGE_ID
    assert batch.size == len(batch.buffer) - RECORD_HEADER_SIZE
    assert batch.size % 8 == 0


def test_a_complete_message_is_stored_byte_for_byte() -> None:
    message = Message(topic="a", action="b", payload=b"p", message_id="m", timestamp_ms=1, metadata={"k": "v"})
    message.MergeFromString(b"\x42\x03new")
    batch = stored(message)
    assert batch.value(0) == message.SerializeToString()
    assert batch.message(0).message_id == "m"
    assert dict(batch.message(0).headers) == {"grpcq-topic": b"a", "grpcq-action": b"b", "k": b"v"}


def test_what_is_missing_is_appended() -> None:
    sent = Message(topic="a", action="b", originator="o").SerializeToString()
    value = stored(sent).value(0)
    assert value.startswith(sent)
    kept = Message.FromString(value)
    assert kept.timestamp_ms == NOW // 1000
    assert uuid.UUID(kept.message_id) == uuid.UUID(bytes=bytes(range(16)), version=4)


def test_an_empty_id_and_a_zero_timestamp_are_missing_too() -> None:
    kept = Message.FromString(stored(b"\x12\x01a\x1a\x01b\x2a\x00\x30\x00").value(0))
    assert kept.message_id
    assert kept.timestamp_ms == NOW // 1000


def test_the_last_field_of_a_kind_counts() -> None:
    message = stored(b"\x12\x00\x12\x01a\x1a\x01x\x1a\x01b\x2a\x01i\x2a\x01j\x30\x05").message(0)
    assert (message.message_id, dict(message.headers)) == ("j", {"grpcq-topic": b"a", "grpcq-action": b"b"})


def test_many_messages_keep_their_order() -> None:
    batch = stored(*(Message(topic="a", action="b", payload=b"%d" % i, message_id=str(i)) for i in range(300)))
    assert [batch.message(i).message_id for i in range(300)] == [str(i) for i in range(300)]
    assert [Message.FromString(batch.value(i)).payload for i in range(300)] == [b"%d" % i for i in range(300)]


@pytest.mark.parametrize(
    ("bad", "code", "text"),
    [
        (b"\xff", Code.INVALID, "message 1: not a grpcq.Message"),
        (b"\x0a\x01\xff", Code.INVALID, "message 1: not a grpcq.Message: a text that is not UTF-8"),
        (Message(action="b"), Code.INVALID, "message 1: topic must not be empty"),
        (Message(topic=" a", action="b"), Code.INVALID, "message 1: topic must not begin or end with white space"),
        (Message(topic="a"), Code.INVALID, "message 1: action must not be empty"),
        (Message(topic="a", action="b "), Code.INVALID, "message 1: action must not begin or end with white space"),
        (
            Message(topic="a.B", action="C", payload=bytes(1001)),
            Code.LIMIT,
            "message 1: payload of a.B.C has 1001 bytes, more than the 1000 allowed",
        ),
        (
            Message(topic="a", action="b", metadata={"k" * 65536: "v"}),
            Code.INVALID,
            "message 1: a metadata key is longer than 65535 bytes",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_message_is_named_by_its_place(bad: Message | bytes, code: Code, text: str) -> None:
    with pytest.raises(BrokerError) as refused:
        Publishing.read(call(Message(topic="a", action="b"), bad), 1000)
    assert (refused.value.code, refused.value.detail) == (code, text)


@pytest.mark.parametrize("request_bytes", [b"\xff", b"\x12\x05a", b"\x0b\x0c", b"\x00\x01"])
def test_a_call_that_is_none(request_bytes: bytes) -> None:
    with pytest.raises(BrokerError, match="not a PublishRequest"):
        Publishing.read(request_bytes, 1000)


def test_a_call_holds_so_many_messages_and_no_more() -> None:
    tiny = b"\x12\x06" + b"\x12\x01a\x1a\x01b"
    assert Publishing.read(b"\x0a\x01q" + tiny * COUNT_MAX, 1000).count == COUNT_MAX
    with pytest.raises(BrokerError, match="more than 65536 messages"):
        Publishing.read(b"\x0a\x01q" + tiny * (COUNT_MAX + 1), 1000)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 1024])
def test_names_a_queue_may_have(name: str) -> None:
    assert check_queue(name) == check_source(name) == name


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "a\n", "é", "$dead.a", "a$", "x" * 1025, "a\x00"])
def test_names_no_queue_may_have(name: str) -> None:
    with pytest.raises(BrokerError):
        check_queue(name)


def test_dead_letters_are_read_under_a_name_nobody_can_publish_to() -> None:
    assert check_source("$dead.orders") == "$dead.orders"
    with pytest.raises(BrokerError):
        check_source("$dead.")


def test_a_message_is_judged_the_same_by_producer_and_broker() -> None:
    for fields in ({"topic": "", "action": "b"}, {"topic": "a", "action": "\tb"}, {"topic": "a", "action": "b"}):
        message = Message(**fields)  # type: ignore[arg-type]
        verdicts = []
        for judge in (lambda m: check_message(m, 10), lambda m: Publishing.read(call(m), 10)):
            try:
                judge(message)
                verdicts.append("fine")
            except BrokerError as error:
                verdicts.append(error.detail.removeprefix("message 0: "))
        assert verdicts[0] == verdicts[1]


def test_every_reason_has_a_text() -> None:
    named = {Reason.PAYLOAD_TOO_LARGE, Reason.TOPIC_CHARACTER, Reason.ACTION_CHARACTER}
    for reason in set(Reason) - {Reason.FINE, Reason.TOO_MANY} - named:
        assert refusal(reason).detail


@pytest.mark.parametrize(("topic", "action"), [("a b", "c"), ("a", "c/d"), ("\x00", "c"), ("a", "ü")])
def test_a_foreign_character_is_named(topic: str, action: str) -> None:
    data = Message(topic=topic, action=action).SerializeToString()
    wrong = next(each for each in topic + action if not (each.isascii() and each.isalnum()))
    assert f"has {wrong!r}" in foreign_character(data).detail


def test_every_code_has_a_status() -> None:
    assert set(STATUS) == set(Code)


def test_uuids_are_random_ones() -> None:
    texts = uuids(bytes(range(256)))
    found = [uuid.UUID(texts[at : at + 36].decode()) for at in range(0, len(texts), 36)]
    assert len(found) == 16
    assert {each.version for each in found} == {4}
    assert {each.variant for each in found} == {uuid.RFC_4122}
    assert uuids(b"") == b""
