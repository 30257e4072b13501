"""What the session does beyond its vectors: how requests are put together, what is consumed, what is granted."""

import struct

import pytest

from headrace.model.batch import Batch, build_batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.requests import Ack, Authenticate, Exchange, Fence, Publish, Refuse, Take
from headrace.protocols.blipmq import frames
from headrace.protocols.blipmq.frames import FrameType
from headrace.protocols.blipmq.session import EARLY_FRAMES_MAX, LEGAL, LENGTH_MAX_STRANGER, BlipmqSession, State


@pytest.fixture
def session() -> BlipmqSession:
    """A session that has been authenticated."""
    ready = BlipmqSession()
    ready.receive(memoryview(frames.encode_hello(1) + frames.encode_auth(2, "key")), 0)
    ready.authenticated(2)
    ready.data_to_send()
    return ready


def tags(*ids: int) -> bytes:
    return struct.pack(f">{len(ids)}Q", *ids)


def test_nothing_behind_auth_is_read_before_its_answer() -> None:
    session = BlipmqSession()
    data = frames.encode_hello(1) + frames.encode_auth(2, "key") + frames.encode_ping(3)
    consumed, requests = session.receive(memoryview(data), 0)
    assert (consumed, requests) == (len(data) - 13, [Authenticate(2, b"key")])
    assert session.receive(memoryview(data[consumed:]), 0) == (0, [])
    session.authenticated(2)
    assert session.receive(memoryview(data[consumed:]), 0) == (13, [Fence(3)])


def test_publishes_between_two_other_frames_are_one_batch_for_each_topic(session: BlipmqSession) -> None:
    names = ["a", "b", "a", "a"]
    data = b"".join(frames.encode_publish(i, name, b"%d" % i) for i, name in enumerate(names))
    _, requests = session.receive(memoryview(data + frames.encode_ping(9) + data), 77)
    first, second, fence, *rest = requests
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert (first.topic, first.count, first.tags) == ("a", 3, tags(0, 2, 3))
    assert (second.topic, second.count, second.tags) == ("b", 1, tags(1))
    assert Batch(first.record, 16, 0).timestamp_us == 77
    assert fence == Fence(9)
    assert rest == [first, second]


def test_a_run_of_polls_and_acks_is_one_exchange(session: BlipmqSession) -> None:
    poll, ack = frames.encode_poll, frames.encode_ack
    data = ack(1, 7) + poll(50, 7) + ack(2, 7) + ack(3, 7) + poll(51, 7) + ack(9, 7)
    _, (request,) = session.receive(memoryview(data), 0)
    assert isinstance(request, Exchange)
    assert request.acks == Ack(7, [(1, 3), (9, 1)])
    assert request.takes == Take(7, 2, tags(50, 51))
    assert request.steps == [
        Ack(7, [(1, 1)]),
        Take(7, 1, tags(50)),
        Ack(7, [(2, 1), (3, 1)]),
        Take(7, 1, tags(51)),
        Ack(7, [(9, 1)]),
    ]
    assert session.receive(memoryview(poll(1, 7) + poll(2, 8)), 0)[1] == [Take(7, 1, tags(1)), Take(8, 1, tags(2))]
    assert session.receive(memoryview(ack(4, 7) + ack(5, 7)), 0)[1] == [Ack(7, [(4, 2)])]


def test_a_refusal_waits_its_turn_as_a_request(session: BlipmqSession) -> None:
    data = frames.encode_ping(1) + frames.encode_poll(2, 0)
    _, (fence, refusal) = session.receive(memoryview(data), 0)
    assert fence == Fence(1)
    assert isinstance(refusal, Refuse)
    assert session.data_to_send() == b""
    session.fence_passed(1)
    session.refused(refusal.tag, refusal.error)
    assert session.data_to_send() == frames.encode_pong(1) + frames.encode_nack(
        2, 400, "subscription_id must be non-zero"
    )


def test_requests_before_a_bad_frame_come_out_first(session: BlipmqSession) -> None:
    data = frames.encode_ping(1) + bytes(4)
    assert session.receive(memoryview(data), 0) == (13, [Fence(1)])
    with pytest.raises(PeerProtocolError):
        session.receive(memoryview(data[13:]), 0)


def test_requests_do_not_refer_to_the_receive_buffer(session: BlipmqSession) -> None:
    arena = bytearray(frames.encode_publish(1, "t", b"value") + frames.encode_poll(2, 7) + frames.encode_ack(3, 7))
    _, (publish, exchange) = session.receive(memoryview(arena), 0)
    arena[:] = bytes(len(arena))
    assert isinstance(publish, Publish)
    assert isinstance(exchange, Exchange)
    assert Batch(publish.record, 16, 0).value(0) == b"value"
    assert exchange.steps == [Take(7, 1, tags(2)), Ack(7, [(3, 1)])]


def test_a_stranger_is_granted_no_more_than_64_kib(session: BlipmqSession) -> None:
    stranger = BlipmqSession()
    largest = memoryview(LENGTH_MAX_STRANGER.to_bytes(4))
    assert stranger.bytes_wanted(largest) == 4 + LENGTH_MAX_STRANGER
    too_large = memoryview((LENGTH_MAX_STRANGER + 1).to_bytes(4))
    assert stranger.bytes_wanted(too_large) == 4
    assert session.bytes_wanted(too_large) == 4 + LENGTH_MAX_STRANGER + 1
    assert session.bytes_wanted(memoryview((frames.LENGTH_MAX + 1).to_bytes(4))) == 4
    assert session.bytes_wanted(memoryview(b"\x00\x00")) == 4
    with pytest.raises(PeerProtocolError):
        stranger.receive(too_large, 0)


@pytest.mark.parametrize("size", [1, 13, 17, 100, 1 << 20])
def test_a_flood_before_auth_is_refused_so_far_and_cut_off(size: int) -> None:
    session = BlipmqSession()
    data = frames.encode_hello(1) + frames.encode_ping(2) * 1000
    rest, ended = b"", False
    for at in range(0, len(data), size):
        rest += data[at : at + size]
        try:
            consumed, requests = session.receive(memoryview(rest), 0)
        except PeerProtocolError:
            ended = True
            break
        assert not requests
        rest = rest[consumed:]
    assert ended
    assert session.data_to_send().count(b"unauthenticated") == EARLY_FRAMES_MAX - 1


def test_a_client_may_be_wrong_at_first() -> None:
    session = BlipmqSession()
    session.receive(memoryview(frames.encode_hello(1) + frames.encode_ping(2) * (EARLY_FRAMES_MAX - 3)), 0)
    session.receive(memoryview(frames.encode_auth(3, "key")), 0)
    session.authenticated(3)
    assert session.receive(memoryview(frames.encode_ping(4) * 1000), 0)[1] == [Fence(4)] * 1000


@pytest.mark.parametrize(
    ("subscription_qos", "batch_qos", "expected_qos", "expected_tags"),
    [(1, 1, 1, [5, 6]), (0, 1, 0, [90, 91]), (1, 0, 0, [90, 91]), (0, 0, 0, [90, 91])],
)
def test_a_delivery_is_tagged_by_its_qos(
    session: BlipmqSession, subscription_qos: int, batch_qos: int, expected_qos: int, expected_tags: list[int]
) -> None:
    batch = Batch(build_batch("t", [b"a", b"b", b"c"], timestamp_us=0, qos=batch_qos), 0, 100)
    session.deliver(Portion(batch, 1, 2, 5, 1, subscription_qos), tags(90, 91))
    assert session.data_to_send() == b"".join(
        frames.encode_publish(tag, "t", value, expected_qos)
        for tag, value in zip(expected_tags, [b"b", b"c"], strict=True)
    )
    assert session.data_to_send() == b""


def test_every_refused_message_is_named(session: BlipmqSession) -> None:
    session.publish_refused(tags(4, 9), BrokerError(Code.STORAGE, "durable publish failed: full"))
    assert session.data_to_send() == b"".join(
        frames.encode_nack(tag, 500, "durable publish failed: full") for tag in (4, 9)
    )


def test_a_ready_session_has_an_answer_to_every_frame() -> None:
    assert set(LEGAL) == {State.NEW, State.GREETED, State.READY}
    assert set(LEGAL[State.READY]) == set(FrameType)
