"""The API of a real broker over real HTTP; what happened to messages is made to happen through its engine."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from headrace.log import Flush
from headrace.model.batch import build_batch
from headrace.model.errors import Code, StorageError
from headrace.model.names import REDRIVEN_TOPIC
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish, Start
from headrace.server.engine import Engine
from headrace.server.node import Node
from headrace.server.replies import STATUS
from headrace.testing import KEY, broker
from tests.harness.api import calling

OWNER = "tester"
SCOPED = "orders-only"


class Rig:
    """A running broker, a caller with a key, and hands on the engine."""

    def __init__(self, node: Node, http: httpx.AsyncClient) -> None:
        self.http = http
        self.engine: Engine = node.engine

    async def publish(self, topic: str, *values: bytes, **columns: Any) -> None:
        part = build_batch(topic, values, timestamp_us=self.engine.clock.now(), **columns)
        record = bytearray(RECORD_HEADER_SIZE) + part
        self.engine.publish(Publish(topic, 1, len(values), record, b""), _Deaf())
        await self.engine.drained(10)

    def subscribe(self, topic: str, qos: int = 1) -> int:
        engine = self.engine
        subscription = engine.broker.subscribe(
            topic, qos=qos, owner=OWNER, start=Start.EARLIEST, at=engine.log.next_offset, now=engine.clock.now()
        )
        engine.journal()
        return subscription

    def take(self, subscription: int, limit: int = 10) -> list[int]:
        """The delivery ids of what was taken."""
        portions = self.engine.broker.take(subscription, limit, owner=OWNER, now=self.engine.clock.now())
        self.engine.journal()
        return [portion.first_delivery + i for portion in portions for i in range(portion.count)]

    def ack(self, subscription: int, delivery: int) -> None:
        self.engine.broker.ack(subscription, [(delivery, 1)], owner=OWNER, now=self.engine.clock.now())
        self.engine.journal()

    def nack(self, subscription: int, delivery: int, reason: str = "bad") -> None:
        now = self.engine.clock.now()
        self.engine.broker.nack(subscription, [(delivery, 1)], owner=OWNER, reason=reason, now=now)
        self.engine.journal()

    async def bury(self, topic: str, *values: bytes, **columns: Any) -> list[int]:
        """Publish messages and let them die; the offsets of their dead letters."""
        await self.publish(topic, *values, **columns)
        subscription = self.subscribe(topic)
        for delivery in self.take(subscription):
            self.nack(subscription, delivery, "poison")
        await self.engine.drained(10)
        return [letter["offset"] for letter in (await self.get("/api/dead-letters", topic=topic))["dead_letters"]]

    async def get(self, path: str, **query: Any) -> Any:
        reply = await self.http.get(path, params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def redrive(self, *offsets: int, to: str | None = None) -> httpx.Response:
        return await self.http.post("/api/dead-letters/redrive", json={"offsets": offsets, "to": to})


class _Deaf:
    """A publisher that asks for nothing back."""

    def publish_refused(self, request: Publish, cause: StorageError) -> None:
        raise AssertionError(cause)

    def settled(self) -> None:
        raise AssertionError("it never waits")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    keys = [KEY, {"name": "scoped", "key": SCOPED, "publish": ["orders*"], "subscribe": ["orders*"]}]
    retry = {"max_attempts": 1, "backoff_ms": 3_600_000}
    async with (
        broker(tmp_path, auth={"api_keys": keys}, retry=retry) as node,
        calling(node.endpoints["http"]) as http,
    ):
        yield Rig(node, http)


def scoped() -> dict[str, str]:
    return {"authorization": f"Bearer {SCOPED}"}


async def test_the_probes_tell_whether_work_is_accepted(rig: Rig) -> None:
    assert (await rig.get("/healthz")) == {"status": "ok"}
    assert (await rig.get("/readyz")) == {"status": "ready"}
    rig.engine.log.failing = StorageError("/secret/path: No space left on device")
    reply = await rig.http.get("/readyz")
    assert (reply.status_code, reply.json()["cause"]) == (503, "the log cannot be written")
    assert "secret" in (await rig.get("/api/status"))["log"]["failing"]
    rig.engine.log.failing = None
    rig.engine.ready = False
    reply = await rig.http.get("/readyz")
    assert (reply.status_code, reply.json()["cause"]) == (503, "starting or draining")
    assert (await rig.http.get("/healthz")).status_code == 200


async def test_metrics_of_a_real_broker(rig: Rig) -> None:
    await rig.publish("orders", b"a", b"b")
    subscription = rig.subscribe("orders")
    rig.ack(subscription, rig.take(subscription)[0])
    await rig.engine.drained(10)
    text = (await rig.http.get("/metrics")).text
    for line in (
        "headrace_messages_published_total 2.0",
        "headrace_messages_acked_total 1.0",
        "headrace_messages_inflight 1.0",
        'headrace_topic_messages_published_total{topic="orders"} 2.0',
        "headrace_subscribers 1.0",
    ):
        assert line in text
    assert "headrace_sync_seconds_count 0.0" not in text
    assert "headrace_wal_appends_total 0.0" not in text


async def test_topics_and_subscriptions_are_listed_with_what_waits(rig: Rig) -> None:
    await rig.publish("orders", b"1", b"2", b"3")
    subscription = rig.subscribe("orders")
    rig.take(subscription, 1)
    (topic,) = (await rig.get("/api/topics"))["topics"]
    assert topic["topic"] == "orders"
    assert (topic["messages"], topic["subscriptions"], topic["pending"], topic["in_flight"]) == (3, 1, 2, 1)
    assert (topic["first_offset"], topic["next_offset"]) == (0, 3)
    (info,) = (await rig.get("/api/subscriptions"))["subscriptions"]
    assert (info["id"], info["topic"], info["owner"], info["pending"]) == (subscription, "orders", OWNER, 2)
    status = await rig.get("/api/status")
    assert (status["ready"], status["topics"], status["messages"]["published"]) == (True, 1, 3)


async def test_browsing_shows_every_message_and_its_state_and_consumes_nothing(rig: Rig) -> None:
    await rig.publish("orders", *(b"m%d" % n for n in range(5)))
    first, late = rig.subscribe("orders"), rig.subscribe("orders")
    rig.take(first, 4)
    rig.ack(first, 1)
    rig.nack(first, 2)
    await rig.engine.drained(10)
    before = (await rig.get("/api/subscriptions"))["subscriptions"]
    found = (await rig.get("/api/topics/orders/messages"))["messages"]
    states = [message["states"][str(first)] for message in found]
    assert states == ["acked", "dead", "in flight, attempt 1", "in flight, attempt 1", "pending"]
    assert {message["states"][str(late)] for message in found} == {"pending"}
    assert [message["text"] for message in found] == ["m0", "m1", "m2", "m3", "m4"]
    assert (await rig.get("/api/subscriptions"))["subscriptions"] == before


async def test_a_message_not_due_yet_shows_as_delayed_and_a_qos0_delivery_as_delivered(rig: Rig) -> None:
    await rig.publish("orders", b"later", due_us=rig.engine.clock.now() + 10**12)
    await rig.publish("orders", b"now")
    careful, careless = rig.subscribe("orders"), rig.subscribe("orders", qos=0)
    rig.take(careful)
    rig.take(careless)
    await rig.engine.drained(10)
    later, now = (await rig.get("/api/topics/orders/messages"))["messages"]
    assert later["states"] == {str(careful): "delayed", str(careless): "delayed"}
    assert now["states"] == {str(careful): "in flight, attempt 1", str(careless): "delivered"}


async def test_a_page_begins_where_the_last_one_ended(rig: Rig) -> None:
    await rig.publish("orders", *(b"%d" % n for n in range(7)))
    await rig.publish("other", b"x")
    await rig.publish("orders", b"7")
    seen: list[str] = []
    start = 0
    while page := (reply := await rig.get("/api/topics/orders/messages", **{"from": start, "limit": 3}))["messages"]:
        seen += [message["text"] for message in page]
        start = reply["next"]
    assert seen == [str(n) for n in range(8)]


async def test_bytes_are_base64_with_text_where_they_are_utf8_and_long_values_are_cut(rig: Rig) -> None:
    await rig.publish("orders", b"\xff\x00", "grüß".encode(), b"z" * 100_000, keys=[b"k", b"", b""])
    raw, text, long = (await rig.get("/api/topics/orders/messages"))["messages"]
    assert (base64.b64decode(raw["value"]), raw["text"], base64.b64decode(raw["key"])) == (b"\xff\x00", None, b"k")
    assert text["text"] == "grüß"
    assert (long["size"], long["truncated"], len(base64.b64decode(long["value"]))) == (100_000, True, 65536)
    (whole,) = (await rig.get("/api/topics/orders/messages", **{"from": 2, "limit": 1}))["messages"]
    assert (whole["truncated"], len(whole["text"])) == (False, 100_000)


async def test_topic_names_with_slashes_and_other_oddities_can_be_asked_for(rig: Rig) -> None:
    for topic in ("a/b", "a%2Fb", "ü ?&#", "$dead.x", "messages"):
        await rig.publish(topic, topic.encode())
        found = await rig.get(f"/api/topics/{quote(topic, safe='')}/messages")
        assert [message["text"] for message in found["messages"]] == [topic]


async def test_a_subscription_is_removed_by_its_owner_or_by_somebody_unrestricted(rig: Rig) -> None:
    subscription = rig.subscribe("orders")
    path = f"/api/subscriptions/{subscription}"
    assert (await rig.http.delete(path, headers=scoped())).status_code == 404
    assert (await rig.http.delete(path)).status_code == 204
    assert (await rig.get("/api/subscriptions"))["subscriptions"] == []
    assert (await rig.http.delete(path)).status_code == 404


async def test_readers_stand_beside_subscriptions_with_their_lag(rig: Rig) -> None:
    await rig.publish("orders", b"a", b"b", b"c")
    await rig.publish("mail", b"d")
    readers, now = rig.engine.broker.readers, rig.engine.clock.now()
    readers.report("scoped", "lake", ["orders"], 1, now)
    readers.report("ops", "archive", None, 2, now)
    await rig.engine.recorded()
    found = (await rig.get("/api/subscriptions"))["readers"]
    assert [(r["reader"], r["owner"], r["topics"], r["offset"], r["lag"]) for r in found] == [
        ("archive", "ops", None, 2, 2),
        ("lake", "scoped", ["orders"], 1, 2),
    ]
    text = (await rig.http.get("/metrics")).text
    assert 'headrace_reader_lag{owner="scoped",reader="lake"} 2.0' in text
    assert 'headrace_reader_offset{owner="ops",reader="archive"} 2.0' in text
    rig.http.headers.update(scoped())
    assert [r["reader"] for r in (await rig.get("/api/subscriptions"))["readers"]] == ["lake"]


async def test_a_reader_is_removed_by_its_owner_or_by_somebody_unrestricted(rig: Rig) -> None:
    readers, now = rig.engine.broker.readers, rig.engine.clock.now()
    readers.report("scoped", "my lake", None, 0, now)
    readers.report("ops", "archive", None, 0, now)
    await rig.engine.recorded()
    assert (await rig.http.delete("/api/readers/archive", headers=scoped())).status_code == 404
    assert (await rig.http.delete("/api/readers/my%20lake", headers=scoped())).status_code == 204
    assert (await rig.http.delete("/api/readers/archive")).status_code == 204
    assert (await rig.get("/api/subscriptions"))["readers"] == []
    assert (await rig.http.delete("/api/readers/archive")).status_code == 404


async def test_a_scoped_key_sees_and_does_only_what_it_may(rig: Rig) -> None:
    await rig.bury("orders", b"o")
    (billing,) = await rig.bury("billing", b"b")
    rig.http.headers.update(scoped())
    assert {topic["topic"] for topic in (await rig.get("/api/topics"))["topics"]} == {"orders", "$dead.orders"}
    assert {info["topic"] for info in (await rig.get("/api/subscriptions"))["subscriptions"]} == {"orders"}
    letters = (await rig.get("/api/dead-letters"))["dead_letters"]
    assert {letter["topic"] for letter in letters} == {"$dead.orders"}
    for path in ("/api/topics/billing/messages", "/api/dead-letters?topic=billing"):
        assert (await rig.http.get(path)).status_code == 403
    assert (await rig.http.get(f"/api/trace/{billing}")).status_code == 404
    assert (await rig.redrive(billing)).status_code == 409
    reply = await rig.redrive(letters[0]["offset"], to="billing")
    assert "not allowed to publish" in reply.json()["error"]


async def test_a_dead_letter_tells_where_it_came_from(rig: Rig) -> None:
    headers = [[("colour", b"red")]]
    (offset,) = await rig.bury("orders", b"bad", headers=headers, message_ids=["id-1"])
    (letter,) = (await rig.get("/api/dead-letters"))["dead_letters"]
    assert (letter["offset"], letter["topic"], letter["text"]) == (offset, "$dead.orders", "bad")
    assert (letter["origin_topic"], letter["origin_offset"], letter["attempts"]) == ("orders", 0, 1)
    assert (letter["reason"], letter["redriven"], letter["message_id"]) == ("poison", False, "id-1")


async def test_dead_letters_of_all_topics_come_in_order(rig: Rig) -> None:
    await rig.bury("b", b"1")
    await rig.bury("a", b"2", b"3")
    await rig.bury("b", b"4")
    letters = (await rig.get("/api/dead-letters"))["dead_letters"]
    offsets = [letter["offset"] for letter in letters]
    assert offsets == sorted(offsets)
    rest = (await rig.get("/api/dead-letters", **{"from": offsets[1], "limit": 2}))["dead_letters"]
    assert [letter["offset"] for letter in rest] == offsets[1:3]


async def test_a_redriven_letter_arrives_as_it_was_published_and_goes_only_once(rig: Rig) -> None:
    (offset,) = await rig.bury("orders", b"bad", headers=[[("colour", b"red")]], keys=[b"k"], message_ids=["id-1"])
    assert (await rig.redrive(offset)).json() == {"redriven": 1, "skipped": []}
    original, copy = (await rig.get("/api/topics/orders/messages"))["messages"]
    assert {h["name"]: h["text"] for h in copy["headers"]} == {"colour": "red", "headrace-redriven-from": str(offset)}
    for field in ("text", "key", "message_id"):
        assert copy[field] == original[field]
    again = await rig.redrive(offset)
    assert (again.status_code, "already redriven" in again.json()["error"]) == (409, True)
    assert len((await rig.get("/api/topics/orders/messages"))["messages"]) == 2
    assert (await rig.get("/api/dead-letters"))["dead_letters"][0]["redriven"] is True


async def test_one_redrive_takes_letters_of_many_topics_and_names_what_it_skipped(rig: Rig) -> None:
    (a,) = await rig.bury("a", b"1")
    (b,) = await rig.bury("b", b"2")
    reply = (await rig.redrive(a, b, b, 0, 10**15)).json()
    assert reply["redriven"] == 2
    assert {skip["offset"]: skip["cause"] for skip in reply["skipped"]} == {
        0: "no dead letter",
        10**15: "no dead letter",
    }
    assert [m["text"] for m in (await rig.get("/api/topics/a/messages"))["messages"]] == ["1", "1"]
    assert [m["text"] for m in (await rig.get("/api/topics/b/messages"))["messages"]] == ["2", "2"]


async def test_a_redrive_may_go_to_another_topic(rig: Rig) -> None:
    (offset,) = await rig.bury("orders", b"bad")
    assert (await rig.redrive(offset, to="repair")).json()["redriven"] == 1
    assert [m["text"] for m in (await rig.get("/api/topics/repair/messages"))["messages"]] == ["bad"]


async def test_a_letter_stays_redriven_after_a_restart(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, retry={"max_attempts": 1}) as node,
        calling(node.endpoints["http"]) as http,
    ):
        (offset,) = await Rig(node, http).bury("orders", b"bad")
        assert (await Rig(node, http).redrive(offset)).status_code == 200
    async with (
        broker(tmp_path, retry={"max_attempts": 1}) as node,
        calling(node.endpoints["http"]) as http,
    ):
        assert (await Rig(node, http).redrive(offset)).status_code == 409


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"offsets": ["x"]}', "application/json", 400),
        (b'{"offsets": [1], "extra": 1}', "application/json", 400),
        (b'{"offsets": [1], "to": ""}', "application/json", 400),
        (b'{"offsets": []}', "text/plain", 415),
        (b'{"offsets": [' + b"1," * 1000 + b"1]}", "application/json", 429),
        (b'{"offsets": [-1]}', "application/json", 400),
    ],
)
async def test_a_redrive_that_makes_no_sense_is_refused(rig: Rig, content: bytes, kind: str, status: int) -> None:
    reply = await rig.http.post("/api/dead-letters/redrive", content=content, headers={"content-type": kind})
    assert reply.status_code == status, reply.text
    assert "error" in reply.json()


async def test_a_trace_tells_a_messages_life_in_order(rig: Rig) -> None:
    await rig.publish("other", b"noise")
    (letter,) = await rig.bury("orders", b"bad")
    await rig.redrive(letter)
    life = await rig.get("/api/trace/1")
    assert (life["message"]["offset"], life["message"]["topic"], life["message"]["text"]) == (1, "orders", "bad")
    assert [step["event"] for step in life["events"]] == ["delivered", "dead", "redriven"]
    delivered, dead, redriven = life["events"]
    assert (delivered["attempt"], dead["reason"], dead["copy_topic"], dead["copy_offset"]) == (
        1, "poison", "$dead.orders", letter,
    )  # fmt: skip
    assert redriven["copy_topic"] == "orders"
    assert (await rig.get(f"/api/trace/{redriven['copy_offset']}"))["message"]["text"] == "bad"
    assert 0 <= delivered["after_us"] <= dead["after_us"] <= redriven["after_us"]
    assert life["complete"] is True
    assert [step["event"] for step in (await rig.get(f"/api/trace/{letter}"))["events"]] == ["redriven"]


async def test_a_trace_tells_every_subscriptions_part(rig: Rig) -> None:
    await rig.publish("orders", b"1", b"2")
    subscriptions = [rig.subscribe("orders"), rig.subscribe("orders")]
    for subscription in subscriptions:
        rig.take(subscription)
        rig.ack(subscription, 2)
        await rig.engine.drained(10)
    life = await rig.get("/api/trace/1")
    assert [(step["event"], step["subscription"]) for step in life["events"]] == [
        (event, subscription) for subscription in subscriptions for event in ("delivered", "acked")
    ]


async def test_a_trace_finds_a_message_by_its_publishers_id(rig: Rig) -> None:
    await rig.publish("orders", b"1", b"2", message_ids=["17", "order-9/ü"])
    assert (await rig.get("/api/trace/order-9/ü"))["message"]["offset"] == 1
    assert (await rig.get("/api/trace/17", by="id"))["message"]["offset"] == 0
    for path in ("/api/trace/order-8", "/api/trace/17", f"/api/trace/{10**30}"):
        assert (await rig.http.get(path)).status_code == 404


async def test_a_walk_that_costs_too_much_says_how_far_it_came(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        await rig.publish("orders", b"x" * 1000, message_ids=[f"id-{number}"])
    rig.subscribe("orders")
    monkeypatch.setattr("headrace.server.trace.WALK_COST_MAX", 30_000)
    life = await rig.get("/api/trace/2")
    assert life["complete"] is False
    assert 2 < life["walked_to"] < 20
    reply = await rig.http.get("/api/trace/id-19")
    assert (reply.status_code, "below offset" in reply.json()["error"]) == (404, True)
    assert (await rig.get("/api/trace/id-19", **{"from": 17}))["message"]["offset"] == 19


async def test_a_walk_lets_others_work_and_goes_on_where_it_was(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.walk.SLICE_S", 0.0)
    await rig.publish("orders", b"1")
    subscription = rig.subscribe("orders")
    await rig.publish("other", b"noise")
    rig.ack(subscription, rig.take(subscription)[0])
    await rig.engine.drained(10)
    life = await rig.get("/api/trace/0")
    assert [step["event"] for step in life["events"]] == ["delivered", "acked"]


async def test_a_redrive_the_disk_refuses_changes_nothing_and_may_be_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (offset,) = await rig.bury("orders", b"bad")

    def full(flush: Flush) -> None:
        flush.error = StorageError("No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Flush, "order", lambda _: None)
        broken.setattr(Flush, "run", full)
        reply = await rig.redrive(offset)
        assert (reply.status_code, "No space left" in reply.json()["error"]) == (503, True)
        assert (await rig.http.get("/readyz")).status_code == 503
    assert (await rig.get("/api/dead-letters"))["dead_letters"][0]["redriven"] is False
    await rig.engine.drained(10)
    assert (await rig.redrive(offset)).json()["redriven"] == 1
    assert len((await rig.get("/api/topics/orders/messages"))["messages"]) == 2


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/topics/x/messages?limit=501", 400),
        ("/api/topics/x/messages?limit=-1", 400),
        ("/api/topics/x/messages?from=x", 400),
        ("/api/topics/x/messages?from=99999999999999999999999999", 400),
        ("/api/topics//messages", 400),
        ("/api/dead-letters?topic=", 400),
        ("/api/dead-letters/redrive", 405),
        ("/api/subscriptions/x", 404),
        ("/api", 404),
    ],
)
async def test_what_cannot_be_answered_is_refused_as_json(rig: Rig, path: str, status: int) -> None:
    reply = await rig.http.get(path)
    assert reply.status_code == status
    assert reply.json().keys() == {"error"}


async def test_nobody_gets_at_anything_without_a_key(rig: Rig) -> None:
    del rig.http.headers["authorization"]
    for path in ("/metrics", "/api/status", "/api/topics", "/api/trace/0", "/nowhere"):
        assert (await rig.http.get(path)).status_code == 401
    assert (await rig.redrive(1)).status_code == 401


async def test_an_error_of_ours_is_told_without_details(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(rig.engine.broker), "topic_names", lambda *_: 1 / 0)
    reply = await rig.http.get("/api/topics")
    assert (reply.status_code, "ZeroDivision" in reply.text, reply.json().keys()) == (500, False, {"error"})


def test_every_code_has_a_status_and_the_marks_have_a_topic_no_client_would_choose() -> None:
    assert STATUS.keys() == set(Code)
    assert REDRIVEN_TOPIC.startswith("$")
