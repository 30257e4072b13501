"""The feed of a real broker: what clients do appears as rows, across rolls, restarts and the life of a message."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from headrace.feed.client import FeedClient
from headrace.feed.ticket import Ticket
from headrace.server.node import Node
from headrace.testing import KEY, broker
from tests.harness.clock import TurnedClock
from tests.harness.peer import publish
from tests.harness.stream import connected

T = TypeVar("T")
FLIGHT = {"flight": "127.0.0.1:0"}


async def asked(call: Callable[[FeedClient], T], node: Node) -> T:
    """What a client of the node's feed gets; the node goes on meanwhile."""

    def _ask() -> T:
        with FeedClient(node.endpoints["flight"], key=KEY) as client:
            return call(client)

    return await asyncio.to_thread(_ask)


async def rows(node: Node, **ticket: Any) -> list[dict[str, Any]]:
    def _read(client: FeedClient) -> list[dict[str, Any]]:
        wanted = Ticket(**ticket)
        return pa.Table.from_batches(client.read(wanted), client.schema(wanted)).to_pylist()

    return await asked(_read, node)


async def test_the_life_of_a_message_is_in_its_events() -> None:
    clock = TurnedClock()
    async with (
        broker(clock=clock, listen=FLIGHT, retry={"max_attempts": 2, "ack_wait_ms": 0}) as node,
        connected(node) as peer,
    ):
        subscription = await peer.subscribe(b"demo")
        peer.send(publish(b"demo", b"good") + publish(b"demo", b"bad"))
        await peer.fence()
        good, bad = (row["offset"] for row in await rows(node, topics=("demo",)))
        assert [tag for tag, _ in await peer.take(subscription, 2)] == [1, 2]
        clock.turn(0.05)
        peer.ack(subscription, 1)
        await peer.fence()
        clock.turn(1)
        assert [tag for tag, _ in await peer.take(subscription, 2)] == [2]
        clock.turn(1)
        assert await peer.take(subscription, 2) == []
        await node.engine.drained(10)
        columns = ("event", "message_offset", "attempt", "topic", "subscription_id", "latency_ms")
        found = await rows(node, stream="events", columns=columns)
        assert found[0] | {"latency_ms": None} == dict.fromkeys(columns) | {
            "event": "subscribed", "topic": "demo", "subscription_id": subscription,
        }  # fmt: skip
        story = [(row["event"], row["message_offset"], row["attempt"]) for row in found[1:]]
        assert story == [
            ("delivered", good, 1),
            ("delivered", bad, 1),
            ("acked", good, 1),
            ("delivered", bad, 2),
            ("dead", bad, 2),
        ]
        assert all(row["topic"] == "demo" and row["subscription_id"] == subscription for row in found)
        acked = next(row for row in found if row["event"] == "acked")
        assert 50 <= acked["latency_ms"] < 60_000
        dead = await rows(node, pattern=r"\$dead\..*")
        assert [(row["topic"], row["value"]) for row in dead] == [("$dead.demo", b"bad")]


async def test_a_reader_follows_through_rolls_and_a_restart(tmp_path: Path) -> None:
    seen: list[bytes] = []
    start = 0
    for life in range(3):
        async with broker(tmp_path, listen=FLIGHT, log={"segment_bytes": 65_536}) as node, connected(node) as peer:
            for number in range(30):
                peer.send(publish(b"demo", b"%d-%d" % (life, number) + b"." * 5000))
                await peer.fence()
                if number % 7 == 6:
                    latest = await asked(partial(FeedClient.wait, beyond=start, timeout_s=30), node)
                    found = await rows(node, topics=("demo",), start=start, end=latest, columns=("value",))
                    seen += [row["value"].rstrip(b".") for row in found]
                    start = latest
        assert len(list((tmp_path / "log").glob("*.seg"))) > life + 1
    assert seen == [b"%d-%d" % (life, number) for life in range(3) for number in range(30)][: len(seen)]
    assert len(seen) >= 88


async def test_who_waits_hears_of_a_message_published_later() -> None:
    async with broker(listen=FLIGHT) as node, connected(node) as peer:
        before = (await asked(FeedClient.span, node)).latest
        waiting = asyncio.create_task(asked(lambda client: client.wait(before, 30), node))
        await asked(FeedClient.topics, node)
        peer.send(publish(b"demo", b"now"))
        await peer.fence()
        latest = await waiting
        assert latest > before
        assert [row["value"] for row in await rows(node, start=before, end=latest)] == [b"now"]
