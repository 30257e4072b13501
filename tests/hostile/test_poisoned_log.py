"""Batches that an older version let into a log: they hurt nobody, are told of, and what is behind them arrives."""

import asyncio
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.broker.dispatch import HELD
from headrace.feed.client import FeedClient
from headrace.feed.ticket import Ticket
from headrace.log import Log, LogSettings, OsDisk
from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.events import Event, EventPart, Range
from headrace.model.mending import MALFORMED
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.protocols.crossing import Field
from headrace.testing import KEY, broker
from tests.harness.api import calling
from tests.harness.doors import DOORS, Door, Letter, Site, value_of
from tests.harness.drivers import values

TOPIC = "orders"
EVERY_DOOR = dict.fromkeys(("sspq", "fujin", "grpc"), "127.0.0.1:0")
OpenDoor = Callable[[Site, AsyncExitStack], Door]

SECRET = b"the value of somebody else's message"


def spark(*values: bytes, **columns: Any) -> bytes:
    """A batch as the feed made them."""
    return build_batch(TOPIC, values, timestamp_us=1, protocol=Protocol.SPARK, **columns)


def replaced(part: bytes, at: int, data: bytes) -> bytes:
    """The same with other bytes at this place."""
    return part[:at] + data + part[at + len(data) :]


def with_ends(part: bytes, *ends: int) -> bytes:
    """The same with other ends of its values."""
    return replaced(part, Batch(part, 0, 0).ends_start, struct.pack(f"<{len(ends)}I", *ends))


POISONS: dict[str, tuple[bytes, list[bytes]]] = {
    "falling": (with_ends(spark(b"aaaa", b"bbb"), 0, 7, 3), [b"aaaabbb"]),
    "as an old feed wrote it": (with_ends(spark(b"aaa", b""), 0, 7, 3), []),
    "beyond": (with_ends(spark(b"aaaa", b"bbb"), 0, 300_000, 7), []),
    "beyond at the end": (with_ends(spark(b"aaaa", b"bbb"), 0, 4, 300_000), [b"aaaa"]),
    "negative": (with_ends(spark(b"aaaa", b"bbb"), 0, 0xFFFFFFFF, 7), []),
    "not from 0": (with_ends(spark(b"aaaa", b"bbb"), 5, 3, 7), [b"abbb"]),
    "size": (replaced(spark(b"aaaa", b"bbb"), 40, struct.pack("<I", 1 << 20)), [b"aaaa", b"bbb"]),
    "id": (spark(b"aaaa", b"bbb", message_ids=["i", "xyz"]).replace(b"xyz", b"\xff\xfe\xfd"), [b"aaaa"]),
    "key": (spark(b"aaaa", b"bbb", headers=[[], [("XX", b"v")]]).replace(b"XX", b"\xff\xfe"), [b"aaaa"]),
    "headers": (spark(b"aaaa", b"bbb", headers=[[], [("XX", b"v")]]).replace(b"\2\0XX", b"\xff\xffXX"), [b"aaaa"]),
    "protocol": (replaced(spark(b"aaaa"), 5, b"\xee"), [b"aaaa"]),
}
"""Batches with cells that are none, and which of their messages are sound."""

OTHER_TOPIC = spark(b"aaaa").replace(b"orders", b"order\xff")
COUNTS = {name: Batch(part, 0, 0).count for name, (part, _) in POISONS.items()}
SOUND = [value for _, values in POISONS.values() for value in values]


def append(directory: Path, *payloads: bytes) -> int:
    """Add records to a log nobody has open; the offset of the first."""
    log = Log.open(directory / "log", OsDisk(), LogSettings())
    first = log.next_offset
    for payload in payloads:
        log.append(bytearray(RECORD_HEADER_SIZE) + payload, refusable=False)
    flush = log.begin_flush(0, sync=True)
    assert flush is not None
    flush.run()
    log.end_flush(flush)
    log.close()
    return first


@pytest.mark.parametrize("in_flight", [False, True], ids=["to be delivered", "in flight"])
@pytest.mark.parametrize("opened", DOORS, ids=lambda door: door.__name__)
async def test_what_is_behind_a_poisoned_batch_arrives_at_every_door(
    opened: OpenDoor, in_flight: bool, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "listen": EVERY_DOOR, "sspq": {"topic": TOPIC}, "retry": {"max_attempts": 1, "ack_wait_ms": 60_000},
    }  # fmt: skip
    async with broker(tmp_path, **settings) as node, AsyncExitStack() as stack:
        door = opened(Site(node.endpoints, KEY, tmp_path, TOPIC), stack)
        await door.join()
        await door.publish(Letter(b"before"))
        received = await door.receive()
        assert value_of(door.name, received) == b"before"
        await received.settle()
        (subscription,) = (each.id for each in node.engine.broker.subscriptions() if each.topic == TOPIC)
    first = append(tmp_path, *(part for part, _ in POISONS.values()), OTHER_TOPIC, spark(b"behind", SECRET))
    if in_flight:
        starts = accumulate(COUNTS.values(), initial=first)
        ranges = [Range(start, count, 1) for start, count in zip(starts, COUNTS.values(), strict=False)]
        append(tmp_path, EventPart(Event.DELIVERED, 1, subscription, ranges, HELD).encode())
    async with broker(tmp_path, **settings) as node, AsyncExitStack() as stack:
        door = opened(Site(node.endpoints, KEY, tmp_path, TOPIC), stack)
        await door.join()
        found: list[bytes] = []
        while SECRET not in found:
            received = await door.receive()
            found.append(received.known[Field.VALUE])
            await received.settle()
        (info,) = (each for each in node.engine.broker.subscriptions() if each.id == subscription)
        assert info.dropped == sum(COUNTS.values()) - len(SOUND)
        await node.engine.drained(10)
        reasons = [
            part[1].reason
            for record in node.engine.log.iter_records(first)
            for part in record.parts()
            if not isinstance(part, Batch) and part[1].event is Event.DROPPED
        ]
        assert reasons
        assert all(reason.startswith("malformed: ") for reason in reasons)
        if in_flight:
            assert found == [b"behind", SECRET], "those that were sound had their one attempt"
            dead = values(node.engine.log, f"$dead.{TOPIC}")
            assert dead == SOUND
        else:
            assert found == [*SOUND, b"behind", SECRET]


async def test_whoever_looks_is_told_and_shown_what_is_left(tmp_path: Path) -> None:
    first = append(tmp_path, *(part for part, _ in POISONS.values()), OTHER_TOPIC, spark(b"behind", SECRET))
    total = sum(COUNTS.values())
    async with broker(tmp_path, listen={"flight": "127.0.0.1:0"}) as node, calling(node.endpoints["http"]) as api:
        page = await api.get(f"/api/topics/{TOPIC}/messages", params={"limit": 100, "from": first})
        assert page.status_code == 200, page.text
        for offset in range(first, first + total + 3):
            traced = await api.get(f"/api/trace/{offset}")
            assert traced.status_code == 200, traced.text

        def _read() -> list[dict[str, Any]]:
            with FeedClient(node.endpoints["flight"], key=KEY) as client:
                return pa.Table.from_batches(client.read(Ticket()), client.schema(Ticket())).to_pylist()

        rows = await asyncio.to_thread(_read)
        assert [row["offset"] for row in rows] == list(range(first, first + total + 3))
        told = [any(header["key"] == MALFORMED for header in row["headers"] or ()) for row in rows]
        assert sum(told) == total - len(SOUND)
        assert [row["value"] for row, bad in zip(rows, told, strict=True) if not bad] == [
            *SOUND, b"aaaa", b"behind", SECRET,
        ]  # fmt: skip
        assert not any(SECRET in row["value"] for row in rows[:-1])
