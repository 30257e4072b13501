"""The feed process over real Flight: rows, questions, keys, scopes, TLS, and everything that is refused."""

import asyncio
import base64
import json
import pickle
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from headrace.config import CertificateEntry, KeyEntry
from headrace.feed.client import DataLoss, FeedClient, FeedError, Part, Span, TopicSpan
from headrace.feed.messages import Keys, Listening
from headrace.feed.schema import EVENTS, MESSAGES
from headrace.feed.ticket import Ticket
from headrace.feed.whereabouts import whereabouts
from headrace.log import Log, LogSettings, OsDisk
from headrace.log.walk import ROWS_MAX
from headrace.model.batch import Protocol, build_batch
from headrace.model.events import Event, EventPart, Range
from tests.harness.authority import Authority
from tests.harness.eventually import eventually
from tests.harness.feed import KEY, Feeding, feeding, opening, started
from tests.unit.log.records import batch, flushed, record

SETTINGS = LogSettings(fill_bytes=0)
CLERK = KeyEntry(name="clerk", key="clerk-key", subscribe=("orders",), publish=())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data") / "log"


@pytest.fixture(scope="module")
def log(directory: Path) -> Iterator[Log]:
    """Two messages of `orders` with everything a message can have, five of `stock`, an event: offsets 0 to 8."""
    with closing(Log.open(directory, OsDisk(), SETTINGS)) as log:
        rich = build_batch(
            "orders",
            [b"one", b"two"],
            timestamp_us=1_000_000,
            protocol=Protocol.FUJIN,
            keys=[b"k", b""],
            headers=[[("trace", b"\1"), ("", b"")], []],
            message_ids=["id-1", ""],
        )
        log.append(record(rich), refusable=True)
        log.append(record(batch("stock", 5, timestamp_us=2_000_000)), refusable=True)
        log.append(record(EventPart(Event.ACKED, 3_000_000, 7, [Range(0, 2, 1)]).encode()), refusable=False)
        flushed(log)
        yield log


@pytest.fixture(scope="module")
def feed(log: Log, directory: Path) -> Iterator[Feeding]:
    with feeding(directory, api_keys=(KEY, CLERK)) as process:
        process.subscriptions.append({"id": 7, "name": "billing", "topic": "orders", "owner": "a"})
        yield process


@pytest.fixture
def client(feed: Feeding) -> Iterator[FeedClient]:
    with feed.client() as client:
        yield client


def table(client: FeedClient, ticket: Ticket) -> "pa.Table":
    return pa.Table.from_batches(client.read(ticket), client.schema(ticket))


def rows(client: FeedClient, **ticket: Any) -> list[dict[str, Any]]:
    return table(client, Ticket(**ticket)).to_pylist()


def test_messages_come_with_everything_they_have(client: FeedClient) -> None:
    found = table(client, Ticket(topics=("orders",)))
    assert found.schema == MESSAGES
    first, second = found.drop_columns(["timestamp"]).to_pylist()
    assert first == {
        "key": b"k",
        "value": b"one",
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "headers": [{"key": "trace", "value": b"\1"}, {"key": "", "value": b""}],
        "protocol": "fujin",
        "message_id": "id-1",
    }
    assert (second["key"], second["headers"], second["message_id"]) == (None, None, None)
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [1_000_000, 1_000_000]


def test_events_come_with_the_names_the_broker_gives(feed: Feeding, client: FeedClient) -> None:
    found = table(client, Ticket(stream="events"))
    assert found.schema == EVENTS
    assert found.drop_columns(["timestamp"]).to_pylist() == [
        {
            "offset": 7,
            "event": "acked",
            "topic": "orders",
            "subscription": "billing",
            "message_offset": message,
            "attempt": 1,
            "reason": None,
            "latency_ms": 2000.0,
            "subscription_id": 7,
        }
        for message in (0, 1)
    ]
    assert len(feed.asked) == 1


def test_a_range_and_columns_in_any_order(client: FeedClient) -> None:
    assert rows(client, start=1, end=4, columns=("offset", "value")) == [
        {"offset": 1, "value": b"two"},
        {"offset": 2, "value": b"0........."},
        {"offset": 3, "value": b"1........."},
    ]
    assert rows(client, start=3, end=3) == []


def test_questions(client: FeedClient) -> None:
    assert client.span() == Span(0, 8)
    assert client.topics() == [TopicSpan("orders", 0, 2, 2), TopicSpan("stock", 2, 7, 5)]
    assert client.offset_at(1_000_001) == 2
    assert client.offset_at(9_000_000) == 8
    assert client.wait(3, 30) == 8
    assert client.wait(8, 0) == 8
    (part,) = client.split(Ticket(), 4)
    assert part == Part(0, 8, 8, part.bytes)
    assert client.split(Ticket(start=5, end=5), 3) == []


def test_who_waits_is_told_when_something_was_written(tmp_path: Path) -> None:
    with (
        closing(Log.open(tmp_path / "log", OsDisk(), SETTINGS)) as log,
        feeding(tmp_path / "log") as feed,
        feed.client() as client,
    ):
        assert client.topics() == []
        assert client.span() == Span(0, 0)
        log.append(record(batch(count=3)), refusable=True)
        flush = log.begin_flush()
        assert flush is not None
        flush.run()
        assert client.wait(0, 0.01) == 0
        log.end_flush(flush)
        assert client.wait(0, 30) == 3
        assert len(rows(client)) == 3


def test_a_client_can_be_pickled(client: FeedClient) -> None:
    client.span()
    with pickle.loads(pickle.dumps(client)) as other:
        assert other.span() == client.span()


def test_any_flight_client_finds_the_topics(feed: Feeding) -> None:
    plain: Any = flight.FlightClient(feed.url)
    options = flight.FlightCallOptions(headers=[plain.authenticate_basic_token(b"anybody", KEY.encode())])
    found = {info.descriptor.path[0]: info for info in plain.list_flights(options=options)}
    assert sorted(found) == [b"orders", b"stock"]
    info = plain.get_flight_info(flight.FlightDescriptor.for_path("stock"), options)
    assert info.schema == MESSAGES
    assert plain.do_get(info.endpoints[0].ticket, options).to_reader().read_all().num_rows == 5
    command = flight.FlightDescriptor.for_command(json.dumps({"topics": ["orders"], "columns": ["value"]}))
    assert plain.get_schema(command, options).schema.names == ["value"]
    info = plain.get_flight_info(command, options)
    assert plain.do_get(info.endpoints[0].ticket, options).to_reader().read_all().num_rows == 2
    assert {action.type for action in plain.list_actions(options)} >= {"topics", "span", "wait", "split", "commit"}


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", "Basic !!", "Basic eDp5", "Nonsense test-key", ""])
def test_without_a_key_nothing_is_told(feed: Feeding, header: str | None) -> None:
    plain: Any = flight.FlightClient(feed.url)
    headers = [] if header is None else [(b"authorization", header.encode())]
    options = flight.FlightCallOptions(headers=headers)  # type: ignore[arg-type]  # bytes is what is taken
    for call in (
        lambda: list(plain.do_action(flight.Action("span", b""), options)),
        lambda: plain.do_get(flight.Ticket(b"{}"), options).read_chunk(),
        lambda: list(plain.list_flights(options=options)),
        lambda: plain.list_actions(options),
        lambda: plain.get_flight_info(flight.FlightDescriptor.for_path("orders"), options),
    ):
        with pytest.raises(flight.FlightUnauthenticatedError):
            call()
    with pytest.raises(flight.FlightUnauthenticatedError):
        plain.authenticate_basic_token(b"anybody", b"wrong")


def test_a_key_in_a_basic_header_works_on_any_call(feed: Feeding) -> None:
    plain: Any = flight.FlightClient(feed.url)
    header = b"Basic " + base64.b64encode(b"me:" + KEY.encode())
    options = flight.FlightCallOptions(headers=[(b"authorization", header)])  # type: ignore[list-item]
    (answer,) = plain.do_action(flight.Action("span", b"{}"), options)
    assert json.loads(answer.body.to_pybytes()) == {"earliest": 0, "latest": 8}


def test_a_key_for_some_topics_is_for_those(feed: Feeding) -> None:
    with feed.client("clerk-key") as clerk:
        assert [each.topic for each in clerk.topics()] == ["orders"]
        assert [row["offset"] for row in rows(clerk)] == [0, 1]
        assert [row["offset"] for row in rows(clerk, pattern=".*")] == [0, 1]
        assert len(rows(clerk, stream="events")) == 2
        for ask in (lambda: rows(clerk, topics=("stock",)), lambda: clerk.split(Ticket(topics=("stock",)), 2)):
            with pytest.raises(FeedError, match="not allowed to read stock") as refused:
                ask()
            assert refused.value.code == "forbidden"


def test_where_the_log_is_is_told_to_those_who_may_read_all_of_it(feed: Feeding, directory: Path) -> None:
    with feed.client() as client, feed.client("clerk-key") as clerk:
        assert client.whereabouts() == whereabouts(directory)
        assert clerk.whereabouts() is None


def test_callers_without_a_key_may_be_let_in(log: Log, directory: Path) -> None:
    with feeding(directory, api_keys=(), allow_unauthenticated=True) as feed, feed.client(None) as client:
        assert client.span() == Span(0, 8)
        with pytest.raises(FeedError, match="not known"):
            feed.client("wrong").span()


def test_keys_can_be_replaced(log: Log, directory: Path) -> None:
    with feeding(directory) as feed, feed.client() as old, feed.client("fresh", retry_s=0) as fresh:
        assert old.span() == Span(0, 8)
        feed.say(Keys(api_keys=("fresh",)))
        while True:
            try:
                fresh.span()
                break
            except FeedError as error:
                assert error.code == "unauthenticated"  # noqa: PT017 - not there yet
        with pytest.raises(FeedError, match="not known"):
            old.span()


def test_tls_and_client_certificates(log: Log, directory: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue_for_a_server()
    stranger = Authority(tmp_path, "stranger")
    certified = authority.issue("reader").read_bytes()
    with feeding(directory, cert=str(server), key=str(server)) as feed:
        url = f"grpc+tls://localhost:{feed.port}"
        assert FeedClient(url, key=KEY, ca=authority.pem).span() == Span(0, 8)
        for client in (FeedClient(url, key=KEY, ca=stranger.pem, retry_s=0), feed.client(retry_s=0)):
            with pytest.raises(FeedError) as refused:
                client.span()
            assert refused.value.code == "unavailable"
    unnamed = authority.issue("somebody").read_bytes()
    named = (CertificateEntry(name="reader", subscribe=("orders",)),)
    tls = {"cert": str(server), "key": str(server), "client_ca": str(authority.path)}
    with feeding(directory, certificates=named, **tls) as feed:
        url = f"grpc+tls://localhost:{feed.port}"
        known = FeedClient(url, key=KEY, ca=authority.pem, cert=certified, cert_key=certified)
        assert known.span() == Span(0, 8)
        by_certificate = FeedClient(url, ca=authority.pem, cert=certified, cert_key=certified)
        assert [each.topic for each in by_certificate.topics()] == ["orders"]
        with pytest.raises(FeedError, match="named in no entry") as refused:
            FeedClient(url, key=KEY, ca=authority.pem, cert=unnamed, cert_key=unnamed).span()
        assert refused.value.code == "unauthenticated"
        with pytest.raises(FeedError) as refused:
            FeedClient(url, key=KEY, ca=authority.pem, retry_s=0).span()
        assert refused.value.code == "unavailable"
        reading = by_certificate.read(Ticket())
        assert next(reading).num_rows == 2


def test_nothing_older_than_tls_1_3_is_spoken(log: Log, directory: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue_for_a_server()
    with feeding(directory, cert=str(server), key=str(server)) as feed:
        for version, is_spoken in ((ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context(cadata=authority.pem.decode())
            context.maximum_version = version
            context.set_alpn_protocols(["h2"])
            with socket.create_connection(("localhost", feed.port), 60) as raw:
                if is_spoken:
                    with context.wrap_socket(raw, server_hostname="localhost") as tunnel:
                        assert tunnel.version() == "TLSv1.3"
                else:
                    with pytest.raises(ssl.SSLError):
                        context.wrap_socket(raw, server_hostname="localhost")


@pytest.mark.parametrize("how", ["stage", "wait"])
def test_a_key_that_is_revoked_ends_what_was_begun_with_it(log: Log, directory: Path, how: str) -> None:
    """An upload and a question that wait end at once, and nothing of the upload is left."""
    with feeding(directory, api_keys=(KEY, "other-key")) as feed, feed.client(retry_s=0) as client:
        begun = threading.Event()

        def _rows() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"value": [b"x"]})
            begun.set()
            ended.wait(60)
            yield pa.record_batch({"value": [b"x"]})

        def _begin() -> None:
            if how == "stage":
                client.stage("w", 0, "0", "out", _rows())
            else:
                client.span()
                begun.set()
                client.wait(8, 30)

        ended = threading.Event()
        found: list[BaseException] = []

        def _run() -> None:
            try:
                _begin()
            except FeedError as error:
                found.append(error)

        thread = threading.Thread(target=_run)
        thread.start()
        assert begun.wait(60)
        feed.say(Keys(api_keys=("other-key",)))
        with feed.client("other-key") as other:
            assert other.span() == Span(0, 8)
        ended.set()
        thread.join(20)
        assert not thread.is_alive()
        assert found
        asyncio.run(eventually(lambda: not list((directory.parent / "staging").iterdir())))


@pytest.mark.parametrize(
    ("ticket", "reason"),
    [
        (b"orders", "not JSON"),
        (b'{"columns":["colour"]}', "unknown columns colour"),
        (b'{"topic":"orders"}', "unknown fields topic"),
        (b'{"pattern":"["}', "pattern"),
        (b'{"start":9,"end":1}', "before start"),
    ],
)
def test_bad_tickets_are_refused_with_a_reason_and_nothing_else(feed: Feeding, ticket: bytes, reason: str) -> None:
    plain: Any = flight.FlightClient(feed.url)
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + KEY.encode())])  # type: ignore[list-item]
    with pytest.raises(flight.FlightServerError, match=reason) as refused:
        plain.do_get(flight.Ticket(ticket), options).read_chunk()
    assert json.loads(refused.value.extra_info)["code"] == "invalid"
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize(
    ("action", "body", "code", "reason"),
    [
        ("dance", b"", "unknown", "no action 'dance'"),
        ("wait", b"{}", "invalid", "beyond"),
        ("wait", b'{"beyond":1,"timeout_s":31}', "invalid", "timeout_s"),
        ("wait", b"\xff", "invalid", "bad body"),
        ("span", b'{"a":1}', "invalid", "unknown field"),
        ("offset_at", b'{"timestamp_us":"now"}', "invalid", "timestamp_us"),
        ("split", b'{"parts":0}', "invalid", "parts is 0"),
        ("split", b'{"parts":1,"colour":"red"}', "invalid", "unknown fields colour"),
        ("split", b"[]", "invalid", "bad body"),
        ("topics", b" " * (2 << 20), "limit", "at most"),
    ],
)
def test_bad_questions_are_refused_with_a_reason(
    feed: Feeding, action: str, body: bytes, code: str, reason: str
) -> None:
    plain: Any = flight.FlightClient(feed.url)
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + KEY.encode())])  # type: ignore[list-item]
    with pytest.raises(flight.FlightError, match=reason) as refused:
        list(plain.do_action(flight.Action(action, body), options))
    assert json.loads(refused.value.extra_info)["code"] == code
    assert "Traceback" not in str(refused.value)


def test_offsets_that_are_not_there(client: FeedClient) -> None:
    with pytest.raises(DataLoss) as lost:
        rows(client, start=5, end=20)
    assert (lost.value.first, lost.value.count) == (8, 12)
    assert pickle.loads(pickle.dumps(lost.value)).count == 12
    assert [row["offset"] for row in rows(client, start=5, end=20, lossy=True)] == [5, 6]


def test_a_broker_that_hangs_up_ends_it(log: Log, directory: Path) -> None:
    with feeding(directory) as feed:
        assert feed.client().span() == Span(0, 8)
        assert feed.hang_up() == 0


def test_what_it_cannot_serve_it_says(tmp_path: Path, feed: Feeding, directory: Path) -> None:
    for wrong in (opening(tmp_path / "nothing"), opening(directory, port=feed.port)):
        with started() as process:
            said = process.open(wrong)
            assert isinstance(said, Listening)
            assert said.failure
            assert process.process.wait(60) == 1


def test_a_big_log_is_streamed_not_loaded(tmp_path: Path) -> None:
    with closing(Log.open(tmp_path / "log", OsDisk(), SETTINGS)) as log:
        for _ in range(12):
            log.append(record(batch(count=80_000, size=100)), refusable=True)
            flushed(log)
        with feeding(tmp_path / "log") as feed, feed.client() as client:
            assert len(rows(client, start=0, end=10)) == 10
            before = feed.resident_bytes()
            seen = [each.num_rows for each in client.read(Ticket())]
            assert sum(seen) == 960_000
            assert max(seen) <= ROWS_MAX
            assert feed.resident_bytes("VmHWM") - before < 64 << 20


def test_a_reader_that_leaves_early_leaves_nothing_behind(tmp_path: Path) -> None:
    with closing(Log.open(tmp_path / "log", OsDisk(), SETTINGS)) as log:
        log.append(record(batch(count=200_000, size=50)), refusable=True)
        flushed(log)
        with feeding(tmp_path / "log") as feed, feed.client() as client:
            for _ in range(20):
                reading = client.read(Ticket())
                assert next(reading).num_rows
                reading.close()  # type: ignore[attr-defined]
            assert client.span() == Span(0, 200_000)


def test_reading_goes_on_when_the_feed_comes_back(tmp_path: Path) -> None:
    with closing(Log.open(tmp_path / "log", OsDisk(), SETTINGS)) as log:
        for _ in range(8):
            log.append(record(batch(count=50_000, size=50)), refusable=True)
        flushed(log)
        with feeding(tmp_path / "log") as first:
            port = first.port
            client = first.client(retry_s=60)
            reading = client.read(Ticket(columns=("offset",)))
            offsets = next(reading).column(0).to_pylist()
            first.process.kill()
            first.process.wait()
        with feeding(tmp_path / "log", port=port):
            for each in reading:
                offsets += each.column(0).to_pylist()
        assert offsets == list(range(400_000))
        with pytest.raises(FeedError) as refused:
            FeedClient(client.endpoint, key=KEY, retry_s=0).span()
        assert refused.value.code == "unavailable"
