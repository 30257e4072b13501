"""Names of queues, topics and actions: the document's characters, wherever a name enters, compiled and interpreted."""

from functools import partial
from string import ascii_letters, digits

import pytest
from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest
from google.protobuf.descriptor_pb2 import (
    FileDescriptorProto,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)
from hypothesis import given
from hypothesis import strategies as st

from headrace.grpcq import MemoryAdapter, Producer, Registry, Rejected
from headrace.grpcq.plugin import generate
from headrace.model.errors import BrokerError, Code
from headrace.protocols.grpcq.envelope import check_message, check_queue
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.publishing import Publishing
from headrace.protocols.grpcq.queues_pb2 import PublishRequest

ALLOWED = ascii_letters + digits + "._-"
good_names = st.text(ALLOWED, min_size=1, max_size=40)
foreign = st.characters(exclude_characters=ALLOWED, exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc"))


@st.composite
def bad_names(draw: st.DrawFn) -> tuple[str, str]:
    """A name with one character that may not be there, and that character."""
    before, after = draw(st.text(ALLOWED, max_size=10)), draw(st.text(ALLOWED, max_size=10))
    character = draw(foreign)
    return before + character + after, character


def published(queue: str, *messages: Message) -> None:
    """As over gRPC, and over HTTP behind its JSON."""
    request = PublishRequest(queue=queue, messages=[message.SerializeToString() for message in messages])
    Publishing.read(request.SerializeToString(), 1000)


@given(good_names, good_names, good_names)
def test_the_documents_characters_pass_everywhere(queue: str, topic: str, action: str) -> None:
    message = Message(topic=topic, action=action)
    published(queue, message)
    check_queue(queue)
    check_message(message)
    Registry().register(topic, action, print)


@given(bad_names(), good_names, st.booleans())
def test_any_other_is_refused_by_name_everywhere(bad: tuple[str, str], good: str, in_topic: bool) -> None:
    name, character = bad
    topic, action = (name, good) if in_topic else (good, name)
    message = Message(topic=topic, action=action)
    for entering in (partial(check_message, message), partial(published, "q", Message(topic="t", action="a"), message)):
        with pytest.raises(BrokerError) as caught:
            entering()
        assert caught.value.code is Code.INVALID
        assert f"{'topic' if in_topic else 'action'} {name!r} has {character!r}" in caught.value.detail
    assert "message 1: " in caught.value.detail
    with pytest.raises(ValueError, match="digits"):
        Registry().register(topic, action, print)
    with pytest.raises(BrokerError) as caught:
        check_queue(name)
    assert repr(character) in caught.value.detail
    with pytest.raises(BrokerError):
        published(name, Message(topic="t", action="a"))


async def test_the_producer_refuses_before_anything_is_sent() -> None:
    adapter = MemoryAdapter()
    producer = Producer(adapter)
    for queue, topic, action in (("q/", "t", "a"), ("q", "t t", "a"), ("q", "t", "a:b"), ("q", "é", "a")):
        with pytest.raises(Rejected, match="digits"):
            await producer.send(queue, topic, action, b"")
    assert adapter.size("q") == 0


def test_the_plugin_reports_a_name_that_no_call_can_have() -> None:
    method = MethodDescriptorProto(name="Place order", input_type=".Request", output_type=".Request")
    file = FileDescriptorProto(name="shop.proto", service=[ServiceDescriptorProto(name="Orders", method=[method])])
    file.message_type.add(name="Request")
    response = generate(CodeGeneratorRequest(file_to_generate=["shop.proto"], proto_file=[file]))
    assert "Place order" in response.error
    assert not response.file
