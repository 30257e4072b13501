"""What a request may cost: bytes of its answer, and steps for which it holds the event loop, whatever is stored.

Steps are counted where the work is done (records and batches read, subscriptions and topics looked at), and from one
turn of the loop to the next: no clock is asked.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headrace.broker import Broker
from headrace.broker.deadletters import ORIGIN_TOPIC
from headrace.log import Log
from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.marks import MARKED_MAX, mark_part, packed_offsets
from headrace.model.names import REDRIVEN_TOPIC
from headrace.server.lists import COUNTED_MAX
from headrace.server.walk import SLICE_STEPS, STEP_BYTES
from tests.harness.web import Hand, Web, targets
from tests.hostile.test_http_peers import ALL, BOUND, JSON, READER, world

LARGE = 3 << 20
TOPICS = 3000
SUBSCRIPTIONS = 2500
READERS = 250
STEPS_MAX = 4 * SLICE_STEPS + 4 * LARGE // STEP_BYTES
"""A slice, of which a thing may be looked at from some sides, and the large batches it begins and ends with."""


class Meter:
    """Counts steps between two turns of the loop; `worst` is the most there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worst = 0
        self.total = 0
        self._now = 0
        for name in ("count_from", "next_in", "topic_end"):
            self._each(monkeypatch, Log, name)
        for name in ("subscription", "status_of", "topic", "definition"):
            self._each(monkeypatch, Broker, name)
        self._each(monkeypatch, Batch, "message")
        self._each(monkeypatch, Log, "batch_at", lambda batch: batch.size if batch is not None else 0)
        self._records(monkeypatch)
        monkeypatch.setattr("headrace.server.walk.SLICE_S", 1e9)

    def _step(self, size: int = 0) -> None:
        steps = 1 + size // STEP_BYTES
        self._now += steps
        self.total += steps
        self.worst = max(self.worst, self._now)

    def _each(
        self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, size: Callable[[Any], int] = lambda _: 0
    ) -> None:
        usual = getattr(kind, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found = usual(*args, **kwargs)
            self._step(size(found))
            return found

        monkeypatch.setattr(kind, name, counted)

    def _records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        usual = Log.iter_records

        def counted(log: Log, *args: Any) -> Iterator[Any]:
            for record in usual(log, *args):
                self._step(record.end - record.start)
                yield record

        monkeypatch.setattr(Log, "iter_records", counted)

    async def turning(self) -> None:
        """Notice every turn of the loop."""
        while True:
            await asyncio.sleep(0)
            self._now = 0


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[tuple[Hand, Web]]:
    """A broker with much of everything: large messages, many topics, subscriptions, readers and dead letters."""
    async with world(tmp_path, limits={"pending_bytes_max": 1 << 30}) as (hand, web):
        names = ['"' * 900 + str(number) for number in range(TOPICS)]
        parts = [build_batch(name, [b"x"], timestamp_us=1) for name in names]
        await hand.store("many", b"".join(parts), TOPICS)
        for _ in range(8):
            await hand.publish("own", b"\0" * LARGE)
        await hand.publish("own", b"v", keys=[b"\xff" * (1 << 20)], message_ids=["\0" * (1 << 20)])
        await hand.publish("own", b"v", headers=[[("\1" * 60_000, b"\2" * 60_000)] * 30 + [("", b"")] * 100_000])
        await hand.publish("own", *[b""] * 1000, message_ids=["id" * 20] * 1000)
        for number in range(SUBSCRIPTIONS):
            hand.subscribe("own", name='"' * 500 + str(number))
        await hand.bury("own.bad", *[b"\0" * 20_000] * 300)
        await hand.bury("other.bad", *[b"dead"] * 300)
        readers, now = hand.engine.broker.readers, hand.engine.clock.now()
        for number in range(READERS):
            readers.report("reader", f"lake {number}", names[:300] if number < 20 else None, 0, now)
        await hand.engine.recorded()
        await hand.engine.drained(60)
        yield hand, web


async def test_every_page_is_bounded_and_nothing_holds_the_loop(
    full: tuple[Hand, Web], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, web = full
    meter = Meter(monkeypatch)
    turning = asyncio.create_task(meter.turning())
    queries = ("", "value_max=16777216&limit=500", "value_max=0&limit=500", "topic=own.bad", "by=id")
    questions = [("", READER), *((query, ALL) for query in queries)]
    for route in web.routes:
        for which in ("own", "0", str(TOPICS), str(TOPICS + 8), str(TOPICS + 9)) if "{" in route.path else ("",):
            for method, path in targets(route, {"": which, "topic": "own"}):
                for query, key in questions if method == "GET" else ():
                    answer = await web.ask(method, f"{path}?{query}", key)
                    assert answer.status < 500
                    assert len(answer.body) <= BOUND, (path, query)
                    assert meter.worst <= STEPS_MAX, (path, query, meter.worst)
                    await asyncio.sleep(0)
    turning.cancel()
    assert meter.total > 10 * STEPS_MAX, "there was enough to do"


async def everything(web: Web, path: str, items: str, key: str = ALL) -> list[Any]:
    """A whole list, page by page."""
    found: list[Any] = []
    query = ""
    while True:
        page = (await web.ask("GET", f"{path}?{query}", key)).json
        assert page[items], "no page but the only one is empty"
        found += page[items]
        if not page.get("more", page["next"] is not None):
            return found
        following = quote(str(page["next"]))
        query = f"from={following}" if "more" in page else f"after={following}"


async def test_pages_lead_through_everything_once(full: tuple[Hand, Web]) -> None:
    hand, web = full
    topics = [row["topic"] for row in await everything(web, "/api/topics", "topics")]
    assert len(topics) == len(set(topics)) == hand.engine.broker.topic_count
    assert topics == sorted(topics)
    subscriptions = [row["id"] for row in await everything(web, "/api/subscriptions", "subscriptions")]
    assert len(subscriptions) == len(set(subscriptions)) == hand.engine.broker.subscription_count
    readers = [row["reader"] for row in await everything(web, "/api/readers", "readers")]
    assert len(readers) == len(set(readers)) == READERS
    messages = await everything(web, "/api/topics/own/messages", "messages")
    assert [row["offset"] for row in messages] == list(range(TOPICS, TOPICS + 1010))
    letters = [row["offset"] for row in await everything(web, "/api/dead-letters", "dead_letters")]
    assert len(letters) == 600
    assert letters == sorted(set(letters))
    own = await everything(web, "/api/dead-letters", "dead_letters", READER)
    assert {row["topic"] for row in own} == {"$dead.own.bad"}
    assert len(own) == 300


async def test_what_is_left_out_is_told_and_a_large_value_is_had_in_parts(full: tuple[Hand, Web]) -> None:
    _, web = full
    page = (await web.ask("GET", f"/api/topics/own/messages?from={TOPICS}&limit=1", READER)).json
    (large,) = page["messages"]
    assert (large["size"], large["truncated"], page["more"]) == (LARGE, True, True)
    assert large["states_left_out"] == SUBSCRIPTIONS - len(large["states"])
    found = b""
    while part := (await web.ask("GET", f"/api/messages/{TOPICS}/value?from={len(found)}", READER)).body:
        found += part
    assert found == b"\0" * LARGE
    path = f"/api/topics/own/messages?from={TOPICS + 8}&limit=2"
    keyed, headed = (await web.ask("GET", path, READER)).json["messages"]
    assert keyed["left_out"] > 1 << 20
    assert headed["left_out"] > 3_000_000
    last = (await web.ask("GET", "/api/subscriptions", ALL)).json["subscriptions"][-1]
    states = (await web.ask("GET", f"/api/topics/own/messages?limit=1&subscription={last['id']}", ALL)).json
    assert list(states["messages"][0]["states"]) == [str(last["id"])]
    (own,) = [
        row for row in (await web.ask("GET", "/api/topics?prefix=own", ALL)).json["topics"] if row["topic"] == "own"
    ]
    assert (own["partial"], own["subscriptions"]) == (True, SUBSCRIPTIONS)
    assert own["pending"] <= COUNTED_MAX * 1010


LETTERS = 12


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[tuple[Hand, Web, list[int]]]:
    """Dead letters, and their offsets."""
    async with world(tmp_path) as (hand, web):
        await hand.bury("own.bad", *(b"%d" % number for number in range(LETTERS)))
        page = (await web.ask("GET", "/api/dead-letters", ALL)).json
        yield hand, web, [letter["offset"] for letter in page["dead_letters"]]


async def redrive(web: Web, *offsets: int, to: str | None = None) -> tuple[int, Any]:
    body = json.dumps({"offsets": offsets, "to": to}).encode()
    answer = await web.ask("POST", "/api/dead-letters/redrive", ALL, body, JSON)
    return answer.status, answer.json


@pytest.mark.parametrize(
    "to", [REDRIVEN_TOPIC, "$dead.other", "$dead.own.bad", "$", "$anything", "", "a\0b", "x" * 1025]
)
async def test_no_redrive_writes_where_nobody_may_publish(shop: tuple[Hand, Web, list[int]], to: str) -> None:
    hand, web, letters = shop
    before = hand.engine.log.next_offset
    if to:
        assert (await redrive(web, *letters, to=to))[0] == 400
    headers = [[(ORIGIN_TOPIC, to.encode())]]
    await hand.publish("$dead.own.bad", b"forged", headers=headers)
    status, told = await redrive(web, before)
    assert status == 409, told
    assert (await web.ask("GET", f"/api/topics/{REDRIVEN_TOPIC}/messages", ALL)).json["messages"] == []
    assert hand.engine.log.next_offset == before + 1


FORGED = [
    (Protocol.BLIPMQ, lambda letters: packed_offsets(letters)),
    (Protocol.GRPCQ, lambda letters: packed_offsets(letters) + b"x"),
    (Protocol.INTERNAL, lambda letters: packed_offsets(letters) + b"xyz"),
    (Protocol.SPARK, lambda letters: b"1234567"),
    (Protocol.INTERNAL, lambda letters: b""),
    (Protocol.INTERNAL, lambda letters: packed_offsets([letters[0], *[2**64 - 1] * MARKED_MAX])),
]


@pytest.mark.parametrize(("door", "forge"), FORGED)
async def test_a_mark_that_is_none_says_nothing_and_stops_nobody(
    shop: tuple[Hand, Web, list[int]], door: Protocol, forge: Callable[[list[int]], bytes]
) -> None:
    hand, web, letters = shop
    await hand.publish(REDRIVEN_TOPIC, b"", forge(letters), b"\xff" * 9, protocol=door)
    page = (await web.ask("GET", "/api/dead-letters", ALL)).json["dead_letters"]
    assert not any(letter["redriven"] for letter in page)
    status, told = await redrive(web, *letters)
    assert (status, told["redriven"]) == (200, LETTERS)
    page = (await web.ask("GET", "/api/dead-letters", ALL)).json["dead_letters"]
    assert all(letter["redriven"] for letter in page)
    assert (await redrive(web, *letters))[0] == 409


async def test_a_mark_marks_only_what_came_before_it(shop: tuple[Hand, Web, list[int]]) -> None:
    hand, web, letters = shop
    ahead = hand.engine.log.next_offset + 1000
    await hand.store(REDRIVEN_TOPIC, mark_part(packed_offsets(range(letters[-1], ahead)), 1), 1)
    page = (await web.ask("GET", "/api/dead-letters", ALL)).json["dead_letters"]
    assert [letter["offset"] for letter in page if letter["redriven"]] == letters[-1:]
    await hand.bury("own.bad", b"later")
    last = (await web.ask("GET", "/api/dead-letters", ALL)).json["dead_letters"][-1]
    assert not last["redriven"]


async def test_marks_are_read_once_however_often_they_are_asked_for(
    shop: tuple[Hand, Web, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, web, letters = shop
    for letter in letters:
        await redrive(web, letter)
    await web.ask("GET", "/api/dead-letters", ALL)
    read: Counter[str] = Counter()
    usual = Log.batch_at

    def counted(log: Log, topic: str, offset: int) -> Batch | None:
        read[topic] += 1
        return usual(log, topic, offset)

    monkeypatch.setattr(Log, "batch_at", counted)
    for _ in range(5):
        await web.ask("GET", "/api/dead-letters", ALL)
    assert read[REDRIVEN_TOPIC] <= 5


async def test_a_message_that_makes_no_sense_is_shown_as_such_among_the_others(
    shop: tuple[Hand, Web, list[int]],
) -> None:
    hand, web, _ = shop
    part = bytearray(build_batch("own", [b"1", b"2"], timestamp_us=1, message_ids=["fine", "bad!"]))
    part[part.rindex(b"bad!")] = 0xFF
    await hand.store("own", bytes(part), 2)
    rows = (await web.ask("GET", "/api/topics/own/messages", READER)).json["messages"]
    assert [(row["message_id"], row["unreadable"]) for row in rows] == [("fine", False), (None, True)]
    assert (await web.ask("GET", f"/api/trace/{rows[1]['offset']}", READER)).json["message"]["text"] in ("2", "")
    assert (await web.ask("GET", "/api/trace/ad!", READER)).status == 404
    assert (await web.ask("GET", "/api/trace/fine", READER)).status == 200
