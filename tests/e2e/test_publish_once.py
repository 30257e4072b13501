"""A publisher who repeats after a lost reply does not double: over every door that carries ids, across kill -9."""

import asyncio
import base64
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.feed.client import FeedClient
from headrace.model.errors import HeadraceError
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.testing import KEY, broker
from tests.e2e.test_transactions import feed_of, values
from tests.harness.api import calling
from tests.harness.clock import StillClock
from tests.harness.served import Served, served

ANY = "127.0.0.1:0"
KILLS, CALL = 6, 20


def message(number: int | str, message_id: str | None = None) -> Message:
    return Message(
        topic="a.B",
        action="C",
        payload=str(number).encode(),
        message_id=f"id-{number}" if message_id is None else message_id,
    )


async def queued(client: GrpcqClient, queue: str) -> list[str]:
    """The payloads in a queue, settled."""
    found: list[str] = []
    while deliveries := await client.consume(queue, 1000):
        found += [Message.FromString(delivery.message).payload.decode() for delivery in deliveries]
        assert await client.ack([delivery.receipt for delivery in deliveries]) == []
    return found


async def test_grpc_and_http_store_an_id_once_within_the_window(tmp_path: Path) -> None:
    clock = StillClock()
    async with (
        broker(tmp_path, clock=clock, listen={"grpc": ANY}, topics={"off": {"dedup_s": 0}}) as node,
        GrpcqClient(node.endpoints["grpc"], KEY) as client,
        calling(node.endpoints["http"]) as http,
    ):

        async def post(queue: str, *messages: Message) -> int:
            encoded = [base64.b64encode(each.SerializeToString()).decode() for each in messages]
            return (await http.post(f"/queues/{queue}/messages", json={"messages": encoded})).status_code

        await client.publish("q", [message(1), message(2)])
        await client.publish("q", [message(1), message(2)])
        assert await post("q", message(2), message(3), message(3)) == 204
        await client.publish("q", [message(3), message("x", ""), message("x", "")])
        assert sorted(await queued(client, "q")) == ["1", "2", "3", "x", "x"]
        for _ in range(2):
            await client.publish("off", [message(1)])
            await client.publish("other", [message(1)])
        assert (await queued(client, "off"), await queued(client, "other")) == (["1", "1"], ["1"])
        metrics = (await http.get("/metrics")).text
        assert "headrace_duplicates_total 6.0" in metrics
        clock.turn(599)
        await client.publish("q", [message(1)])
        assert await queued(client, "q") == []
        clock.turn(2)
        await client.publish("q", [message(1)])
        assert await queued(client, "q") == ["1"]


async def test_a_redriven_copy_has_the_same_id_and_is_stored(tmp_path: Path) -> None:
    for restart in (False, True):
        async with (
            broker(tmp_path / str(restart), listen={"grpc": ANY}) as node,
            GrpcqClient(node.endpoints["grpc"], KEY) as client,
            calling(node.endpoints["http"]) as http,
        ):
            await client.publish("q", [message(1)])
            (delivery,) = await client.consume("q", 1, wait_s=10)
            assert await client.nack([delivery.receipt], dead=True) == []
            (letter,) = (await http.get("/api/dead-letters")).json()["dead_letters"]
            reply = await http.post("/api/dead-letters/redrive", json={"offsets": [letter["offset"]]})
            assert reply.json()["redriven"] == 1, reply.text
            assert await queued(client, "q") == ["1"]
            await client.publish("q", [message(1)])
            assert await queued(client, "q") == []


def rows(*numbers: int) -> list[pa.RecordBatch]:
    ids = [f"id-{n}" if n else "" for n in numbers]
    columns: dict[str, list[Any]] = {"value": [b"%d" % n for n in numbers], "message_id": ids}
    return [pa.record_batch(columns)]


@pytest.mark.parametrize("killed", [False, True])
def test_ids_in_rows_count_where_a_topic_has_a_window(tmp_path: Path, killed: bool) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[topics."out"]\ndedup_s = 3600\n')
    with served(tmp_path, "--config", str(config), LISTEN__FLIGHT=ANY) as running, feed_of(running) as client:
        assert committed(client, 0, rows(1, 2, 0), "out") == {"replayed": False, "rows": 3, "skipped": 0}
        assert committed(client, 1, rows(1, 2), "plain")["rows"] == 2
        if killed:
            running.process.kill()
        else:
            running.process.send_signal(signal.SIGTERM)
            running.process.wait()
    with served(tmp_path, "--config", str(config), LISTEN__FLIGHT=ANY) as running, feed_of(running) as client:
        assert committed(client, 2, rows(2, 3, 0, 1), "out") == {"replayed": False, "rows": 2, "skipped": 2}
        assert committed(client, 3, rows(1, 2, 3), "out") == {"replayed": False, "rows": 0, "skipped": 3}
        assert committed(client, 4, rows(1, 2), "plain")["rows"] == 2
        assert committed(client, 3, rows(9), "out")["replayed"]
        assert values(client, "out") == [b"1", b"2", b"0", b"3", b"0"]


def committed(client: FeedClient, batch: int, batches: list[pa.RecordBatch], topic: str) -> dict[str, Any]:
    return dict(client.commit("job", batch, [client.stage("job", batch, "0", topic, batches)]))


def test_a_publisher_that_repeats_until_it_is_answered_is_stored_once_across_kill_9(tmp_path: Path) -> None:
    """Killed while calls are out, again and again: what was stored and not answered comes again, and is left out."""
    chance = random.Random(int(os.environ.get("HEADRACE_SEED", "7")))
    todo = [list(range(first, first + CALL)) for first in range(0, 4000, CALL)]
    for cycle in range(KILLS):
        with served(tmp_path, LISTEN__GRPC=ANY, LOG__SNAPSHOT_BYTES="65536") as running:
            last = cycle == KILLS - 1
            asyncio.run(publish_until_killed(running, todo, None if last else chance.randrange(5, 25)))
            if last:
                assert asyncio.run(all_of(running)) == sorted(range(4000))
    assert not todo


async def publish_until_killed(running: Served, todo: list[list[int]], answered_max: int | None) -> None:
    """Eight calls out at a time, each taken off the list only when it is answered; then kill -9."""
    out = asyncio.Semaphore(8)
    answered: list[int] = []

    async def publish(call: list[int]) -> None:
        async with out:
            await client.publish("q", [message(number) for number in call])
        todo.remove(call)
        answered.append(call[0])
        if len(answered) == answered_max:
            running.process.kill()

    async with GrpcqClient(running.endpoints["grpc"], "dev-key") as client:
        outcomes = await asyncio.gather(*map(publish, list(todo)), return_exceptions=True)
    assert all(each is None or isinstance(each, HeadraceError) for each in outcomes), outcomes


async def all_of(running: Served) -> list[int]:
    async with GrpcqClient(running.endpoints["grpc"], "dev-key") as client:
        return sorted(map(int, await queued(client, "q")))


def test_the_state_says_how_many_repeats_there_were(tmp_path: Path) -> None:
    """The count survives a restart, as the ids do."""
    with served(tmp_path, LISTEN__GRPC=ANY) as running:
        asyncio.run(twice(running))
        running.process.send_signal(signal.SIGTERM)
        running.process.wait()
    with served(tmp_path, LISTEN__GRPC=ANY) as running:
        assert asyncio.run(status(running))["duplicates"] == 1
        asyncio.run(twice(running))
        assert asyncio.run(status(running))["duplicates"] == 3


async def twice(running: Served) -> None:
    async with GrpcqClient(running.endpoints["grpc"], "dev-key") as client:
        for _ in range(2):
            await client.publish("q", [message(1)])


async def status(running: Served) -> dict[str, Any]:
    async with calling(running.endpoints["http"], "dev-key") as http:
        found: dict[str, Any] = json.loads((await http.get("/api/status")).text)
        return found
