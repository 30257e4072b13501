"""What the session does beyond its vectors: how requests are put together, what is consumed, what is granted."""

from collections.abc import Callable

import pytest

from headrace.model.batch import ATTEMPTS_UNLIMITED, Batch, build_batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.requests import FOREVER_US, Ack, Fetch, Publish, Start, Subscribe
from headrace.protocols.sspq import SspqSession, SspqSettings, frames
from headrace.protocols.sspq.session import DEAD, QUEUE, RECEIVE

JOIN = Subscribe(QUEUE, "sspq", 1, name="sspq", start=Start.EARLIEST, tail=True)
JOIN_DEAD = Subscribe(DEAD, "$dead.sspq", 1, name="sspq", start=Start.EARLIEST, tail=True)
ASK = Fetch(RECEIVE, 7, 1, FOREVER_US)

receive, confirm, dead_receive = frames.encode_receive(), frames.encode_confirm(), frames.encode_dead_receive()


@pytest.fixture
def session() -> SspqSession:
    """A session whose queue is subscription 7."""
    joined = SspqSession(SspqSettings())
    joined.subscribed(QUEUE, 7)
    return joined


def portion(*, max_attempts: int = 0, attempt: int = 1, delivery: int = 1) -> Portion:
    part = build_batch("sspq", [b"skipped", b"value"], timestamp_us=0, max_attempts=max_attempts)
    return Portion(Batch(part, 0, 0), 1, 1, delivery, attempt)


@pytest.mark.parametrize("first", [frames.encode_send(3, b"hi"), receive, confirm, frames.encode_other()])
def test_the_first_packet_joins_the_queue_before_it_is_read(first: bytes) -> None:
    session = SspqSession(SspqSettings())
    assert session.receive(memoryview(first[:7]), 0) == (0, [])
    assert session.receive(memoryview(first), 0) == (0, [JOIN])
    session.subscribed(QUEUE, 7)
    assert session.receive(memoryview(first), 0)[0] == len(first)


def test_the_dead_letter_queue_is_joined_when_it_is_first_asked_for(session: SspqSession) -> None:
    data = frames.encode_send(3, b"hi") + dead_receive + receive
    consumed, (publish, join) = session.receive(memoryview(data), 0)
    assert isinstance(publish, Publish)
    assert (consumed, join) == (10, JOIN_DEAD)
    session.subscribed(DEAD, 8)
    assert session.receive(memoryview(data[10:]), 0) == (8, [Fetch(RECEIVE, 8, 1, FOREVER_US)])


def test_sends_become_one_batch_for_each_run_of_equal_retries(session: SspqSession) -> None:
    sent = [(3, b"a"), (3, b"bb"), (0, b""), (255, b"c"), (3, b"d")]
    _, requests = session.receive(memoryview(b"".join(frames.encode_send(*message) for message in sent)), 77)
    assert [request.count for request in requests if isinstance(request, Publish)] == [2, 1, 1, 1]
    batches = [Batch(request.record, 16, 0) for request in requests if isinstance(request, Publish)]
    assert [batch.max_attempts for batch in batches] == [4, 1, ATTEMPTS_UNLIMITED, 4]
    assert {(batch.timestamp_us, batch.qos, batch.topic) for batch in batches} == {(77, 1, "sspq")}


def test_forced_retries_make_one_batch() -> None:
    session = SspqSession(SspqSettings(topic="jobs", force_retries=9))
    session.subscribed(QUEUE, 7)
    data = frames.encode_send(3, b"a") + frames.encode_send(255, b"b")
    _, (request,) = session.receive(memoryview(data), 0)
    assert isinstance(request, Publish)
    assert (request.topic, Batch(request.record, 16, 0).max_attempts) == ("jobs", 10)


def test_a_confirm_is_an_ack_of_what_is_held(session: SspqSession) -> None:
    assert session.receive(memoryview(confirm + receive + confirm), 0) == (16, [ASK])
    session.fetched(RECEIVE, [portion(delivery=41)])
    assert session.data_to_send() == frames.encode_send(2, b"value")
    assert session.receive(memoryview(confirm + confirm + receive), 0) == (24, [Ack(7, [(41, 1)]), ASK])


@pytest.mark.parametrize(
    ("max_attempts", "attempt", "byte"),
    [(4, 1, 3), (4, 4, 0), (1, 1, 0), (ATTEMPTS_UNLIMITED, 9000, 255), (255, 1, 254)],
)
def test_the_retry_byte_is_what_is_left(session: SspqSession, max_attempts: int, attempt: int, byte: int) -> None:
    session.receive(memoryview(receive), 0)
    session.fetched(RECEIVE, [portion(max_attempts=max_attempts, attempt=attempt)])
    assert session.data_to_send() == frames.encode_send(byte, b"value")


@pytest.mark.parametrize(
    ("limit", "own", "attempt", "byte"),
    [(3, 0, 1, 2), (3, 0, 3, 0), (3, 0, 5, 0), (3, 1000, 1, 254), (ATTEMPTS_UNLIMITED, 0, 5, 255), (60000, 0, 1, 254)],
)
def test_the_retry_byte_of_what_another_protocol_published(limit: int, own: int, attempt: int, byte: int) -> None:
    session = SspqSession(SspqSettings(max_attempts=limit))
    session.subscribed(QUEUE, 7)
    session.receive(memoryview(receive), 0)
    session.fetched(RECEIVE, [portion(max_attempts=own, attempt=attempt)])
    assert session.data_to_send() == frames.encode_send(byte, b"value")


def test_nothing_is_consumed_behind_a_request_for_a_message(session: SspqSession) -> None:
    data = receive + confirm
    assert session.receive(memoryview(data), 0) == (8, [ASK])
    session.fetched(RECEIVE, [portion(delivery=1)])
    assert session.receive(memoryview(data[8:]), 0) == (8, [Ack(7, [(1, 1)])])


def test_a_refused_queue_is_declined_and_asked_for_again() -> None:
    session = SspqSession(SspqSettings())
    assert session.receive(memoryview(receive), 0) == (0, [JOIN])
    session.refused(QUEUE, BrokerError(Code.FORBIDDEN, "not allowed"))
    assert session.receive(memoryview(receive), 0) == (8, [])
    assert session.data_to_send() == frames.encode_no_receive()
    assert session.receive(memoryview(receive), 0) == (0, [JOIN])


def test_who_may_not_receive_may_still_send() -> None:
    session = SspqSession(SspqSettings())
    data = frames.encode_send(3, b"a")
    assert session.receive(memoryview(data), 0) == (0, [JOIN])
    session.refused(QUEUE, BrokerError(Code.FORBIDDEN, "not allowed"))
    for _ in range(3):
        consumed, (publish,) = session.receive(memoryview(data), 0)
        assert isinstance(publish, Publish)
        assert consumed == len(data)


def test_a_subscription_somebody_removed_is_joined_anew(session: SspqSession) -> None:
    session.receive(memoryview(receive), 0)
    session.refused(RECEIVE, BrokerError(Code.UNKNOWN, "no such subscription"))
    assert session.data_to_send() == frames.encode_no_receive()
    assert session.receive(memoryview(receive), 0) == (0, [JOIN])


def test_a_confirm_nobody_remembers_is_not_answered(session: SspqSession) -> None:
    session.receive(memoryview(receive), 0)
    session.fetched(RECEIVE, [portion(delivery=5)])
    session.data_to_send()
    session.receive(memoryview(confirm), 0)
    session.refused(5, BrokerError(Code.UNKNOWN, "no such delivery"))
    assert session.data_to_send() == b""
    assert session.receive(memoryview(receive), 0) == (8, [ASK])


def test_an_empty_answer_is_a_refusal(session: SspqSession) -> None:
    session.receive(memoryview(receive), 0)
    session.fetched(RECEIVE, [])
    assert session.data_to_send() == frames.encode_no_receive()


def test_a_message_that_was_not_stored_ends_the_connection(session: SspqSession) -> None:
    session.receive(memoryview(frames.encode_send(3, b"lost")), 0)
    session.publish_refused(b"", BrokerError(Code.STORAGE, "durable publish failed: No space left on device"))
    assert session.data_to_send() == b""
    with pytest.raises(PeerProtocolError, match="No space left"):
        session.receive(memoryview(receive), 0)


def test_requests_before_bad_bytes_come_out_first(session: SspqSession) -> None:
    data = frames.encode_send(3, b"a") + b"\x00"
    consumed, (publish,) = session.receive(memoryview(data), 0)
    assert isinstance(publish, Publish)
    assert consumed == 9
    with pytest.raises(PeerProtocolError, match="begins with 00"):
        session.receive(memoryview(data[9:]), 0)


def test_requests_do_not_refer_to_the_receive_buffer(session: SspqSession) -> None:
    arena = bytearray(frames.encode_send(3, b"value"))
    _, (publish,) = session.receive(memoryview(arena), 0)
    arena[:] = bytes(len(arena))
    assert isinstance(publish, Publish)
    assert Batch(publish.record, 16, 0).value(0) == b"value"


def test_payloads_nobody_wants_are_consumed_as_they_arrive(session: SspqSession) -> None:
    head = frames.HEAD.pack(0x5599, 0x77, 0, 10_000_000)
    assert session.receive(memoryview(head), 0) == (8, [])
    for _ in range(9):
        assert session.receive(memoryview(bytes(1_000_000)), 0) == (1_000_000, [])
        assert session.bytes_wanted(memoryview(b"")) == 8
    assert session.receive(memoryview(bytes(1_000_000) + receive), 0) == (1_000_008, [ASK])


def test_no_more_is_granted_than_a_payload_may_have(session: SspqSession) -> None:
    head = frames.HEAD.pack(0x5599, frames.PacketType.SEND, 0, 16 << 20)
    assert session.bytes_wanted(memoryview(head)) == 8 + (16 << 20)
    assert session.bytes_wanted(memoryview(head[:7])) == 8
    assert session.bytes_wanted(memoryview(b"")) == 8
    too_large = frames.HEAD.pack(0x5599, frames.PacketType.SEND, 0, (16 << 20) + 1)
    with pytest.raises(PeerProtocolError, match="larger"):
        session.receive(memoryview(too_large), 0)


def test_the_first_packet_that_means_nothing_is_reported_and_no_other() -> None:
    heard: list[int] = []
    session = SspqSession(SspqSettings(), heard.append)
    session.subscribed(QUEUE, 7)
    session.receive(memoryview(frames.encode_packet(0x01, 0, b"abc") + frames.encode_other()), 0)
    assert heard == [0x01]


@pytest.mark.parametrize(
    "wrong",
    [{"topic": ""}, {"topic": "$dead.x"}, {"topic": "a\n"}, {"force_retries": 256}, {"max_payload": 0}],
    ids=str,
)
def test_impossible_settings_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SspqSettings(**wrong)  # type: ignore[arg-type]


def test_what_was_never_asked_for_is_our_own_mistake(session: SspqSession) -> None:
    unasked: list[Callable[[], None]] = [
        lambda: session.authenticated(1),
        lambda: session.deliver(portion(), b""),
        lambda: session.published(b""),
        lambda: session.fence_passed(1),
        lambda: session.pushed(1, []),
        lambda: session.settled(1, [], []),
    ]
    for outcome in unasked:
        with pytest.raises(AssertionError):
            outcome()
    assert session.ended() == []
