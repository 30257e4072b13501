"""One stream's session by itself: what it asks for, how much it wants, what it keeps."""

import struct

import pytest

from headrace.model.batch import Batch, Column, build_batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.parts import RECORD_HEADER_SIZE, batches_in
from headrace.model.requests import Fence, Fetch, Follow, Leave, Publish, Refuse, Request, Settle, Start, Subscribe
from headrace.protocols.fujin import FUJIN, Dialect, FujinSession, FujinSettings
from headrace.protocols.fujin.frames import (
    Command,
    ReaderType,
    encode_command,
    encode_connect_reader,
    encode_connect_writer,
    encode_fetch,
    encode_settle,
    encode_write,
)
from headrace.protocols.fujin.reader import FETCHES_MAX, REFERENCE_PAUSE_US
from headrace.protocols.fujin.session import State
from headrace.protocols.spec import Transport

NOW = 1_700_000_000_000_000
SUBSCRIPTION = 7


def ask(session: FujinSession, data: bytes) -> list[Request]:
    """What the session asks for when all of this arrives at once, subscribing it if need be."""
    found: list[Request] = []
    while True:
        done, requests = session.receive(memoryview(data), NOW)
        data = data[done:]
        found += requests
        if not (requests and isinstance(requests[-1], Subscribe)):
            return found
        session.subscribed(requests[-1].tag, SUBSCRIPTION)


def writer(settings: FujinSettings | None = None) -> FujinSession:
    session = FujinSession(settings)
    ask(session, encode_connect_writer() + encode_write(0, "first", b""))
    session.data_to_send()
    return session


def reader(
    kind: ReaderType = ReaderType.PULL, *, auto_commit: bool = False, settings: FujinSettings | None = None
) -> FujinSession:
    session = FujinSession(settings)
    ask(session, encode_connect_reader(kind, auto_commit, "t"))
    session.data_to_send()
    return session


def portion(*values: bytes, first: int = 1, qos: int = 1) -> Portion:
    return Portion(Batch(build_batch("t", values, timestamp_us=1, qos=qos), 0, 0), 0, len(values), first, 1)


def test_the_door_is_one_value() -> None:
    assert (FUJIN.name, FUJIN.transport) == ("fujin", Transport.QUIC)
    assert isinstance(FUJIN.new_session(), FujinSession)


def test_writes_of_one_read_to_one_topic_are_one_batch_to_be_confirmed() -> None:
    session = writer()
    writes = [encode_write(i, topic, b"%d" % i) for i, topic in enumerate(("a", "b", "a", "a"))]
    first, second = ask(session, b"".join(writes))
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert (first.topic, first.count, first.confirm, first.qos) == ("a", 3, True, 1)
    batch = Batch(first.record, RECORD_HEADER_SIZE, 0)
    assert ([batch.value(i) for i in range(3)], batch.timestamp_us) == ([b"0", b"2", b"3"], NOW)
    session.published(first.tags)
    session.publish_refused(second.tags, BrokerError(Code.FORBIDDEN, "no"))
    assert (
        session.data_to_send() == bytes.fromhex("020000000000 020000000200 020000000300 0200000001 01 00000002") + b"no"
    )


def test_headers_are_stored_as_pairs() -> None:
    (publish,) = ask(writer(), encode_write(1, "a", b"x", [("k", b"v"), ("k", b"w")]))
    assert isinstance(publish, Publish)
    batch = Batch(publish.record, RECORD_HEADER_SIZE, 0)
    assert batch.columns == Column.HEADERS
    assert batch.message(0).headers == [("k", b"v"), ("k", b"w")]


def test_a_transaction_becomes_one_record_with_a_batch_for_each_topic() -> None:
    session = writer()
    requests = ask(session, encode_command(Command.BEGIN, 1))
    for i, topic in enumerate(("a", "b", "a"), 2):
        requests += ask(session, encode_write(i, topic, b"%d" % i))
    assert [type(request) for request in requests] == [Fence] * 4
    (publish,) = ask(session, encode_command(Command.COMMIT, 9))
    assert isinstance(publish, Publish)
    assert (publish.topic, publish.topics, publish.count, publish.confirm) == ("a", ("a", "b"), 3, True)
    batches = batches_in(publish.record, RECORD_HEADER_SIZE, len(publish.record), 0)
    assert [(batch.topic, batch.count) for batch in batches] == [("a", 2), ("b", 1)]
    for request in requests:
        assert isinstance(request, Fence)
        session.fence_passed(request.tag)
    session.data_to_send()
    session.published(publish.tags)
    assert session.data_to_send() == bytes.fromhex("04 00000009 00")


def test_a_transaction_of_one_topic_is_a_batch_like_any_other() -> None:
    session = writer()
    *_, publish = ask(
        session,
        b"".join((encode_command(Command.BEGIN, 1), encode_write(2, "a", b"x"), encode_command(Command.COMMIT, 3))),
    )
    assert isinstance(publish, Publish)
    assert Batch(publish.record, RECORD_HEADER_SIZE, 0).size == len(publish.record) - RECORD_HEADER_SIZE


def test_a_transaction_keeps_no_more_than_it_may() -> None:
    session = writer(FujinSettings(transaction_size_max=1000))
    write = encode_write(1, "a", b"x" * 100)
    requests = ask(session, encode_command(Command.BEGIN, 1) + write * 50)
    assert sum(isinstance(request, Refuse) for request in requests) == 50 - 1000 // len(write)
    assert len(session._writer._transaction.writes) <= 1000  # type: ignore[union-attr]


def test_a_reader_shares_its_topic_and_begins_at_the_beginning() -> None:
    session = FujinSession()
    done, (subscribe,) = session.receive(memoryview(encode_connect_reader(ReaderType.PULL, True, "t")), NOW)
    assert done == 0
    assert isinstance(subscribe, Subscribe)
    assert (subscribe.topic, subscribe.qos, subscribe.name, subscribe.start) == ("t", 1, "fujin", Start.EARLIEST)
    assert session.receive(memoryview(b"anything"), NOW) == (0, [])
    session.subscribed(subscribe.tag, 1)
    assert session.data_to_send() == b"\1\0"


@pytest.mark.parametrize(("dialect", "pause"), [(Dialect.DOCUMENT, 0), (Dialect.REFERENCE, REFERENCE_PAUSE_US)])
@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_push_reader_follows(dialect: Dialect, pause: int, auto_commit: bool) -> None:
    session = FujinSession(FujinSettings(dialect=dialect, push_window=5))
    *_, follow = ask(session, encode_connect_reader(ReaderType.PUSH, auto_commit, "t"))
    assert isinstance(follow, Follow)
    assert (follow.subscription, follow.window, follow.settle, follow.after_us) == (SUBSCRIPTION, 5, auto_commit, pause)


def test_a_fetch_asks_for_as_many_and_waits_as_long_as_it_is_told() -> None:
    session = reader(auto_commit=True, settings=FujinSettings(fetch_wait_ms=20))
    (fetch,) = ask(session, encode_fetch(5, 4_000_000_000))
    assert isinstance(fetch, Fetch)
    assert (fetch.subscription, fetch.count, fetch.wait_us, fetch.settle) == (SUBSCRIPTION, 4_000_000_000, 20_000, True)


def test_fetches_with_the_same_correlation_id_are_told_apart() -> None:
    first, second = ask(reader(), encode_fetch(5, 1) * 2)
    assert isinstance(first, Fetch)
    assert isinstance(second, Fetch)
    assert first.tag != second.tag


def test_no_more_fetches_wait_than_there_is_room_for() -> None:
    session = reader()
    requests = ask(session, encode_fetch(5, 1) * (FETCHES_MAX + 1))
    assert isinstance(requests[-1], Refuse)
    first = requests[0]
    assert isinstance(first, Fetch)
    session.fetched(first.tag, [])
    assert isinstance(ask(session, encode_fetch(6, 1))[0], Fetch)


def test_a_fetch_refused_while_draining_makes_room() -> None:
    session = reader()
    for request in ask(session, encode_fetch(5, 1) * FETCHES_MAX):
        assert isinstance(request, Fetch)
        session.refused(request.tag, BrokerError(Code.DRAINING, "stop"))
    assert session.data_to_send() == (struct.pack(">BIBI", 7, 5, 1, 4) + b"stop") * FETCHES_MAX
    assert isinstance(ask(session, encode_fetch(6, 1))[0], Fetch)


def test_a_run_of_acks_is_one_settle() -> None:
    session = reader()
    acks = b"".join(encode_settle(Command.ACK, i, [i.to_bytes(8), (i + 50).to_bytes(8)]) for i in range(1, 4))
    (settle,) = ask(session, acks)
    assert settle == Settle(settle.tag, SUBSCRIPTION, [1, 51, 2, 52, 3, 53])  # type: ignore[union-attr]
    (nack,) = ask(session, encode_settle(Command.NACK, 9, [bytes(7) + b"\x09"]))
    assert nack == Settle(nack.tag, SUBSCRIPTION, [9], True, "NACK")  # type: ignore[union-attr]


def test_a_settle_refused_as_a_whole_is_refused_to_each_command() -> None:
    session = reader()
    (settle,) = ask(session, encode_settle(Command.ACK, 1, [bytes(8)]) + encode_settle(Command.ACK, 2, [bytes(8)] * 3))
    assert isinstance(settle, Settle)
    session.refused(settle.tag, BrokerError(Code.STORAGE, "full"))
    assert session.data_to_send() == b"".join(struct.pack(">BIBI", 8, tag, 1, 4) + b"full" for tag in (1, 2))


def test_a_delivery_that_settled_itself_is_acknowledged_with_success() -> None:
    """A QoS 0 message of another door needs no ACK; a client that sends one all the same has done nothing wrong."""
    session = reader(ReaderType.PUSH)
    session.pushed(0, [portion(b"x", first=3, qos=0), portion(b"y", first=4)])
    pushed = session.data_to_send()
    ids = pushed[5:13], pushed[23:31]
    assert ids[1] == (4).to_bytes(8)
    (settle,) = ask(session, encode_settle(Command.ACK, 1, ids))
    assert isinstance(settle, Settle)
    assert settle.deliveries == [4]
    session.settled(settle.tag, [4], [True])
    assert session.data_to_send().count(b"\1") == 3
    (alone,) = ask(session, encode_settle(Command.ACK, 2, ids[:1]))
    assert isinstance(alone, Fence)


def test_nothing_is_said_after_the_last_word() -> None:
    session = reader(ReaderType.PUSH)
    (leave,) = ask(session, b"\x0a")
    assert isinstance(leave, Leave)
    assert session.state is State.LEAVING
    session.pushed(0, [portion(b"on its way")])
    session.fence_passed(leave.tag)
    assert session.data_to_send().endswith(b"on its way\x0a")
    session.pushed(0, [portion(b"too late")])
    session.draining()
    assert session.data_to_send() == b""
    assert session.ended() == []


def test_a_write_before_the_farewell_is_answered_even_if_its_outcome_comes_later() -> None:
    session = writer()
    publish, leave = ask(session, encode_write(1, "a", b"x") + b"\x0a")
    assert isinstance(publish, Publish)
    assert isinstance(leave, Leave)
    session.fence_passed(leave.tag)
    assert session.data_to_send() == b"\x0a"
    session.published(publish.tags)
    assert session.data_to_send() == bytes.fromhex("02 00000001 00")


def test_bytes_wanted_grows_to_the_whole_command_and_no_further() -> None:
    for session, command in (
        (writer(), encode_write(1, "topic", b"x" * 300, [("k", b"v")])),
        (writer(), encode_command(Command.BEGIN, 1)),
        (reader(), encode_settle(Command.ACK, 1, [bytes(8)] * 9)),
        (reader(), encode_fetch(1, 1)),
        (FujinSession(), encode_connect_reader(ReaderType.PULL, True, "topic")),
        (FujinSession(), encode_connect_writer("writer")),
    ):
        for end in range(1, len(command)):
            view = memoryview(command)[:end]
            assert session.receive(view, NOW) == (0, [])
            assert end < session.bytes_wanted(view) <= len(command)
        assert session.bytes_wanted(memoryview(b"")) == 1


def test_a_large_write_is_asked_for_whole() -> None:
    session = writer()
    command = encode_write(1, "topic", bytes(1 << 20))
    view = memoryview(command)[:24]
    session.receive(view, NOW)
    assert session.bytes_wanted(view) == len(command)


def test_what_comes_before_a_bad_beginning_is_done_first() -> None:
    session = FujinSession()
    done, requests = session.receive(memoryview(b"\2\0\0\0\0\0\1t\xff"), NOW)
    assert (done, [type(request) for request in requests]) == (8, [Refuse])
    with pytest.raises(PeerProtocolError, match="begins with 255"):
        session.receive(memoryview(b"\xff"), NOW)


def test_an_earlier_refusal_does_not_answer_for_the_subscribe() -> None:
    session = FujinSession()
    data = b"\2\0\0\0\0\0\1t" + encode_connect_reader(ReaderType.PULL, True, "t")
    done, (refuse, subscribe) = session.receive(memoryview(data), NOW)
    assert isinstance(refuse, Refuse)
    assert isinstance(subscribe, Subscribe)
    session.refused(refuse.tag, refuse.error)
    assert session.state is State.JOINING
    session.refused(subscribe.tag, BrokerError(Code.FORBIDDEN, "no"))
    assert session.receive(memoryview(data)[done:], NOW) == (len(data) - done, [])
    assert session.state.name == "NEW"


@pytest.mark.parametrize("routes", [{"": "t"}, {"r": ""}, {"r": "\n"}, {"x" * 1025: "t"}])
def test_routes_are_names(routes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="routes: "):
        FujinSettings(routes=routes)


def test_what_nobody_asks_a_stream_for_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        FujinSession().authenticated(1)
    with pytest.raises(AssertionError):
        FujinSession().deliver(portion(b"x"), b"")


@pytest.mark.parametrize(
    ("hello", "dialect", "met"),
    [
        (encode_connect_writer("w"), Dialect.DOCUMENT, 1),
        (encode_connect_writer("four"), Dialect.DOCUMENT, 1),
        (encode_connect_writer(""), Dialect.DOCUMENT, 0),
        (encode_connect_writer(0), Dialect.DOCUMENT, 0),
        (encode_connect_writer(7), Dialect.DOCUMENT, 0),
        (encode_connect_writer("w"), Dialect.REFERENCE, 0),
    ],
)
def test_the_original_client_is_told_by_a_writer_id_that_is_a_string(hello: bytes, dialect: Dialect, met: int) -> None:
    told: list[None] = []
    session = FujinSession(FujinSettings(dialect=dialect), lambda: told.append(None))
    ask(session, hello + encode_command(Command.BEGIN, 1))
    assert session.state is State.WRITER
    assert len(told) == met
