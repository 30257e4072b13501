"""Hostile callers of the HTTP side, over every route there is: a new one is covered by being one.

What a key may not read it hears nothing of; no value of a parameter breaks anything; no answer is bigger, and nothing
holds the event loop for longer, than is stated, whatever is stored.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from headrace.auth import Keyring
from headrace.config import KeyEntry
from headrace.server.pages import PAGE_BYTES_MAX
from headrace.testing import broker
from tests.harness.clock import StillClock
from tests.harness.properties import tried
from tests.harness.web import Answer, Hand, Web, parameters, targets

T = TypeVar("T")

ALL, READER, WRITER, SCRAPER = "key-of-all", "key-of-reader", "key-of-writer", "key-of-scraper"
KEYS = Keyring.from_settings(
    [
        KeyEntry(name="all", key=ALL),
        KeyEntry(name="reader", key=READER, publish=("own*",), subscribe=("own*",)),
        KeyEntry(name="writer", key=WRITER, publish=("own*",)),
        KeyEntry(name="scraper", key=SCRAPER, metrics=True),
    ]
)
BOUND = PAGE_BYTES_MAX + (64 << 10)
FOREIGN = "hidden"
HUGE = "9" * 5000


@asynccontextmanager
async def world(tmp_path: Path, name: str = "one", **settings: Any) -> AsyncIterator[tuple[Hand, Web]]:
    directory = tmp_path / name
    directory.mkdir()
    async with broker(directory, clock=StillClock(), **settings) as node:
        yield Hand(node.engine), Web(node, KEYS)


async def settle_own(hand: Hand) -> None:
    """What belongs to the scoped keys: the same in every world, at the same offsets."""
    await hand.publish("own", b"1", b"2", message_ids=["id-own", "shared-id"], keys=[b"k", b""])
    await hand.bury("own.bad", b"letter", headers=[[("colour", b"red")]])
    hand.subscribe("own", name="queue")
    now = hand.engine.clock.now()
    readers = hand.engine.broker.readers
    readers.report("reader", "own-lake", ["own"], 1, now)
    readers.report("reader", "all-lake", None, 0, now)
    await hand.engine.recorded()


async def settle_foreign(hand: Hand) -> None:
    """What belongs to others, made to look as much like the scoped keys' own as can be."""
    await hand.publish(f"{FOREIGN}.orders", b"secret", message_ids=["shared-id"], headers=[[(FOREIGN, b"x")]])
    await hand.publish(f"{FOREIGN}.orders", b"secret", message_ids=[f"{FOREIGN}-id"])
    await hand.bury(f"{FOREIGN}.bad", b"secret letter", b"another")
    await hand.publish("ow", b"the beginning of a name")
    for number in range(5):
        hand.subscribe(f"{FOREIGN}.orders", name=f"{FOREIGN}-{number}", owner=f"{FOREIGN}-owner")
    now = hand.engine.clock.now()
    readers = hand.engine.broker.readers
    readers.report(f"{FOREIGN}-owner", f"{FOREIGN}-lake", [f"{FOREIGN}.orders"], 3, now)
    readers.report(f"{FOREIGN}-owner", "own-lake", None, 3, now)
    readers.report(f"{FOREIGN}-owner", "mixed", ["own", f"{FOREIGN}.orders"], 3, now)
    await hand.engine.recorded()
    await hand.engine.drained(10)


class Question(NamedTuple):
    """A request to some route: what its path is filled with, its query, its body."""

    route: int
    filled: dict[str, str]
    query: str
    body: bytes = b""


PLACES = ["own", "own.bad", "$dead.own.bad", "ow", f"{FOREIGN}.orders", f"$dead.{FOREIGN}.bad", "$redriven"]
NUMBERS = [str(number) for number in range(26)]
NAMES = ["id-own", "shared-id", f"{FOREIGN}-id", f"{FOREIGN}-lake", "mixed", "nobody"]
USUAL = ["", "500", "id", FOREIGN, "$dead.", "z"]
HARMLESS = [*PLACES, *NUMBERS, *NAMES, *USUAL]
DEEP = b"[" * 100_000
BODIES = [
    b"", b"{}", b"null", b"[]", DEEP, b'{"offsets":' + DEEP, b"\xff\xfe", b'{"offsets":[' + HUGE.encode() + b"]}",
    b'{"offsets":[-1]}', b'{"offsets":[1e999]}', b'{"offsets":[NaN]}', b'{"offsets":"1"}', b'{"offsets":[3],"to":7}',
    b'{"offsets":[3],"to":"\\ud800"}', b'{"offsets":[3],"to":"$redriven"}', b'{"offsets":[3],"to":"$dead.own"}',
    b'{"offsets":[3],"to":""}', b'{"offsets":[3],"to":"' + b"x" * 5000 + b'"}', b'{"offsets":[3],"to":"a\\u0000b"}',
    json.dumps({"offsets": list(range(3000))}).encode(), b'{"messages":[7]}', b'{"messages":["%%%"]}',
    b'{"messages":["\\u00e9"]}', b'{"messages":["////"]}', b'{"messages":' + HUGE.encode() + b"}",
]  # fmt: skip
HOSTILE = [
    "", HUGE, "-1", "1e9", "NaN", "Infinity", "0x10", "1_0", " 1", "+1", "00001", "%00", "%ff%fe", "%ed%a0%80",
    "%D9%A3", "%C2%B2", "x" * 5000, "..", "../..", "%2e%2e%2f", "[", "(a*)*b", "$redriven", "$dead.own", "own", "7",
    "9223372036854775808", "18446744073709551616", "%F0%9F%92%A5", "a%0d%0ab", "'", '"', "{", "null", "gA", "kaNvd24B",
]  # fmt: skip
JSON = {"content-type": "application/json"}
ROUTES_MAX = 1000


def filled(text: str) -> str:
    """A value as a part of a path or a query; what is encoded already stays so."""
    return quote(text, safe="%")


def questions(values: list[str], bodies: list[bytes]) -> st.SearchStrategy[Question]:
    """Any of these values anywhere: in every part of a path, in any parameters of the query."""
    value = st.sampled_from(values).map(filled)
    query = st.dictionaries(st.sampled_from(parameters()), value, max_size=3)
    return st.builds(
        Question,
        st.integers(0, ROUTES_MAX),
        st.fixed_dictionaries(dict.fromkeys(("topic", "name", "which", "queue", "offset", "id", ""), value)),
        query.map(lambda given: "&".join(f"{name}={text}" for name, text in given.items())),
        st.sampled_from(bodies),
    )


def each_alone(routes: int, values: list[str]) -> Iterator[Question]:
    """Every value in the path of every route, and in every parameter of its query, one at a time."""
    for route in range(routes):
        for value in map(filled, values):
            yield Question(route, {"": value}, "")
            for name in parameters():
                yield Question(route, {"": "1", "topic": "own", "name": "x"}, f"{name}={value}")


async def answers(web: Web, question: Question, key: str | None) -> list[tuple[str, str, Answer]]:
    """What every method of the route says."""
    route = web.routes[question.route % len(web.routes)]
    return [
        (method, path, await web.ask(method, f"{path}?{question.query}", key, question.body, JSON))
        for method, path in targets(route, question.filled)
    ]


def test_hostile_values_are_refused_on_every_route(tmp_path: Path) -> None:
    async def ask(question: Question, *keys: str | None) -> None:
        for key in keys:
            for method, path, answer in await answers(web, question, key):
                about = (
                    method,
                    path[:100],
                    question.query[:100],
                    question.body[:100],
                    answer.status,
                    answer.body[:200],
                )
                assert 200 <= answer.status < 500, about
                assert len(answer.body) <= BOUND, about
                if answer.status >= 400 and method != "HEAD":
                    assert "error" in answer.json, about

    with running() as (run, enter):
        hand, web = enter(world(tmp_path))
        run(settle_own(hand))
        for question in each_alone(len(web.routes), HOSTILE):
            run(ask(question, ALL))

        @tried(300)
        @given(question=questions(HOSTILE, BODIES))
        def check(question: Question) -> None:
            run(ask(question, ALL, READER, WRITER, SCRAPER, None))

        check()


def test_a_key_hears_nothing_of_what_it_may_not_read(tmp_path: Path) -> None:
    """Two brokers with the same things of its own, one with things of others besides: every answer is the same."""

    async def ask(question: Question) -> None:
        for key in (READER, WRITER):
            one, other = await answers(alone, question, key), await answers(among, question, key)
            for (method, path, here), (_, _, there) in zip(one, other, strict=True):
                about = (key, method, path, question.query, here.status, there.status, here.body, there.body)
                assert (here.status, here.headers, here.body) == (there.status, there.headers, there.body), about
                assert method in ("GET", "HEAD") or here.status >= 400, ("it must change nothing", about)

    with running() as (run, enter):
        hand, alone = enter(world(tmp_path, "alone"))
        other, among = enter(world(tmp_path, "among"))
        other.engine.clock = hand.engine.clock
        for each in (hand, other):
            run(settle_own(each))
        run(settle_foreign(other))
        for question in each_alone(len(alone.routes), HARMLESS):
            run(ask(question))

        @tried(200)
        @given(question=questions(HARMLESS, [b""]))
        def check(question: Question) -> None:
            run(ask(question))

        check()
        for offset in range(other.engine.log.next_offset + 3):
            for target in ("own", f"{FOREIGN}.orders", "$redriven", f"$dead.{FOREIGN}"):
                body = json.dumps({"offsets": [offset], "to": target}).encode()
                path = "/api/dead-letters/redrive"
                mine = offset < hand.engine.log.next_offset and target == "own"
                if not mine:
                    here, there = (run(web.ask("POST", path, READER, body, JSON)) for web in (alone, among))
                    assert (here.status, here.body) == (there.status, there.body)


@contextmanager
def running() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """A loop that runs one thing after the other, for properties that keep their world from example to example.

    The second function enters what is left in the end.
    """
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run, lambda context: runner.run(stack.enter_async_context(context))
        finally:
            runner.run(stack.aclose())
