"""Sixteen crossings over real sockets: in by one door, out by another, dead, redriven, and across kill -9."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.config import DEV_KEY
from headrace.model.batch import Protocol
from headrace.protocols.blipmq.client import BlipmqClient
from headrace.protocols.crossing import Field, passage, survives
from headrace.testing import KEY, broker
from tests.harness.api import calling
from tests.harness.doors import ATTEMPTS, DOORS, PATIENCE_S, Door, Letter, Received, Site, value_of
from tests.harness.served import served

TOPIC = "orders"
EVERY_DOOR = dict.fromkeys(("sspq", "fujin", "grpc"), "127.0.0.1:0")
Found = TypeVar("Found")
OpenDoor = Callable[[Site, AsyncExitStack], Door]

crossings = pytest.mark.parametrize(
    ("entering", "leaving"),
    [pytest.param(a, b, id=f"{a.__name__}-{b.__name__}") for a in DOORS for b in DOORS],
)


def letter(text: str) -> Letter:
    return Letter(text.encode(), {"trace": f"of {text}"}, f"id of {text}", 1_700_000_000_123)


@crossings
async def test_what_the_table_says_survives_does(entering: OpenDoor, leaving: OpenDoor, tmp_path: Path) -> None:
    async with broker(tmp_path, listen=EVERY_DOOR, sspq={"topic": TOPIC}) as node, AsyncExitStack() as stack:
        site = Site(node.endpoints, KEY, tmp_path, TOPIC)
        publisher, consumer = entering(site, stack), leaving(site, stack)
        await consumer.join()
        letters = [letter(f"{n}") for n in range(3)]
        before_ms = time.time_ns() // 1_000_000
        for each in letters:
            await publisher.publish(each)
        for each in letters:
            received = await consumer.receive()
            assert value_of(publisher.name, received) == each.value
            check_known(publisher.name, consumer.name, each, received, before_ms)
            await received.settle()

        async def all_acked() -> bool:
            return any(each.acked == len(letters) for each in node.engine.broker.subscriptions())

        await eventually(all_acked)
        (settled,) = (each for each in node.engine.broker.subscriptions() if each.acked)
        assert (settled.pending, settled.in_flight, settled.redelivered) == (0, 0, 0)


def check_known(entered: Protocol, left: Protocol, sent: Letter, received: Received, before_ms: int) -> None:
    """A field that survives is what was sent; one that a door can say by itself is what the broker knows."""
    known = received.known
    assert set(known) == set(passage(left).gives)
    if Field.TOPIC in known:
        assert known[Field.TOPIC] == TOPIC
    if Field.HEADERS in known:
        expected = dict(sent.headers) if survives(Field.HEADERS, entered, left) else {}
        assert {key: value for key, value in known[Field.HEADERS].items() if key == "trace"} == expected
    if Field.MESSAGE_ID in known:
        same = known[Field.MESSAGE_ID] == sent.message_id
        assert same is survives(Field.MESSAGE_ID, entered, left)
        assert known[Field.MESSAGE_ID]
    if Field.TIMESTAMP in known:
        if survives(Field.TIMESTAMP, entered, left):
            assert known[Field.TIMESTAMP] == sent.timestamp_ms
        else:
            assert before_ms - 1 <= known[Field.TIMESTAMP] <= time.time_ns() // 1_000_000 + 1
    if Field.ATTEMPT in known and left is Protocol.GRPCQ:
        assert known[Field.ATTEMPT] == 1
    if Field.ATTEMPT in known and left is Protocol.SSPQ:
        allowed = ATTEMPTS if entered is Protocol.SSPQ else 3
        assert known[Field.ATTEMPT] == allowed - 1


@crossings
async def test_a_message_that_keeps_failing_is_a_dead_letter_and_comes_back_by_redrive(
    entering: OpenDoor, leaving: OpenDoor, tmp_path: Path
) -> None:
    doors: dict[str, Any] = {"listen": EVERY_DOOR, "sspq": {"topic": TOPIC}, "grpcq": {"max_attempts": ATTEMPTS}}
    retry = {"max_attempts": ATTEMPTS, "backoff_ms": 1, "ack_wait_ms": 0}
    async with (
        broker(tmp_path, retry=retry, **doors) as node,
        AsyncExitStack() as stack,
    ):
        site = Site(node.endpoints, KEY, tmp_path, TOPIC)
        http = await stack.enter_async_context(calling(node.endpoints["http"]))
        publisher, consumer = entering(site, stack), leaving(site, stack)
        await consumer.join()
        await publisher.publish(letter("bad"))
        for _ in range(ATTEMPTS):
            received = await consumer.receive()
            assert value_of(publisher.name, received) == b"bad"
            await received.fail()

        async def dead() -> list[dict[str, object]]:
            found: list[dict[str, object]] = (await http.get("/api/dead-letters")).json()["dead_letters"]
            return found

        (buried,) = await eventually(dead)
        reply = await http.post("/api/dead-letters/redrive", json={"offsets": [buried["offset"]]})
        assert reply.json()["redriven"] == 1
        again = await consumer.receive()
        assert value_of(publisher.name, again) == b"bad"
        if Field.MESSAGE_ID in again.known and publisher.name is Protocol.GRPCQ:
            assert again.known[Field.MESSAGE_ID] == "id of bad"
        await again.settle()
        story = (await http.get(f"/api/trace/{buried['origin_offset']}")).json()
        told = [event["event"] for event in story["events"]]
        assert story["message"]["protocol"] == publisher.name.name.lower()
        assert told.count("delivered") == ATTEMPTS
        assert told[-2:] == ["dead", "redriven"]


@crossings
async def test_what_was_settled_stays_settled_and_the_rest_comes_after_kill_9(
    entering: OpenDoor, leaving: OpenDoor, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {f"LISTEN__{name.upper()}": address for name, address in EVERY_DOOR.items()}
    settings |= {"SSPQ__TOPIC": TOPIC, "RETRY__BACKOFF_MS": "1"}
    values = [b"%d" % number for number in range(4)]
    with served(tmp_path, **settings) as process:
        async with AsyncExitStack() as stack:
            site = Site(process.endpoints, DEV_KEY, tmp_path, TOPIC)
            publisher, consumer = entering(site, stack), leaving(site, stack)
            await consumer.join()
            for value in values:
                await publisher.publish(Letter(value))
            for value in values[:2]:
                received = await consumer.receive()
                assert value_of(publisher.name, received) == value
                await received.settle()
            await settled_durably(process.endpoints, 2)
            process.process.kill()
            process.process.wait()
    with served(tmp_path, **settings) as process:
        async with AsyncExitStack() as stack:
            consumer = leaving(Site(process.endpoints, DEV_KEY, tmp_path, TOPIC), stack)
            await consumer.join()
            for value in values[2:]:
                received = await consumer.receive()
                assert value_of(publisher.name, received) == value
                await received.settle()
            await settled_durably(process.endpoints, 4)


async def settled_durably(endpoints: Mapping[str, str], count: int) -> None:
    """The broker has counted so many acks and, behind them, synced something else."""

    async def all_acked() -> bool:
        found = (await http.get("/api/subscriptions")).json()["subscriptions"]
        return bool(sum(each["acked"] for each in found if each["topic"] == TOPIC) == count)

    async with calling(endpoints["http"], DEV_KEY) as http:
        await eventually(all_acked)
    async with await BlipmqClient.connect(endpoints["blipmq"], DEV_KEY) as client:
        await client.publish("behind", b"")


async def eventually(look: Callable[[], Awaitable[Found]]) -> Found:
    """What looking finds, once it finds something."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await look()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    return found
