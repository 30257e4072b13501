"""Fujin's client and session with a real broker between them, over QUIC and over TLS."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.config import ConfigError
from headrace.log import OsDisk
from headrace.log.disk import File, WriteOrder
from headrace.model.batch import Buffer
from headrace.protocols.fujin.client import (
    ClientSettings,
    Delivery,
    Dialect,
    FujinClient,
    FujinSubscription,
    FujinWriter,
    Refused,
    Security,
)
from headrace.server.dev_certificate import DEV_CERT_NAME
from headrace.server.node import Node
from headrace.testing import broker

DOORS = ("fujin", "fujin_tcp")
each_door = pytest.mark.parametrize("door", DOORS)


class GatedDisk(OsDisk):
    """A real disk that can be made to wait: `entered` tells that a write does."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def create(self, path: Path) -> File:
        return GatedFile(super().create(path), self)

    def open(self, path: Path, *, writable: bool = False) -> File:
        return GatedFile(super().open(path, writable=writable), self)


class GatedFile:
    """One file of a gated disk."""

    def __init__(self, file: File, disk: GatedDisk) -> None:
        self._file = file
        self._disk = disk
        self.pread = file.pread
        self.pread_into = file.pread_into
        self.truncate = file.truncate
        self.fdatasync = file.fdatasync
        self.size = file.size
        self.close = file.close

    def order(self, buffers: Sequence[Buffer], position: int) -> WriteOrder | None:
        return None

    def pwritev(self, buffers: Sequence[Buffer], position: int, *, sync: bool = False) -> int:
        if not self._disk.gate.is_set():
            self._disk.entered.set()
            self._disk.gate.wait()
        return self._file.pwritev(buffers, position, sync=sync)


@asynccontextmanager
async def serving(data_dir: Path, door: str, **sections: object) -> AsyncIterator[Node]:
    """A broker with this door and no other."""
    listen = {"blipmq": "", "http": "", door: "127.0.0.1:0"}
    async with broker(data_dir, listen=listen, **sections) as node:  # type: ignore[arg-type]
        yield node


async def connected(node: Node, door: str, settings: ClientSettings | None = None) -> FujinClient:
    """A client of that broker."""
    security = Security(ca=Path(node.config.data_dir) / DEV_CERT_NAME)
    return await FujinClient.connect(node.endpoints[door], security=security, settings=settings)


@each_door
async def test_a_write_is_confirmed_when_it_is_durable(door: str, tmp_path: Path) -> None:
    disk = GatedDisk()
    async with serving(tmp_path, door, disk=disk) as node, await connected(node, door) as client:
        writer, other = await client.writer(), await client.writer()
        disk.gate.clear()
        writes = [asyncio.create_task(writer.write("orders", b"one")), asyncio.create_task(commit(other))]
        await asyncio.to_thread(disk.entered.wait)
        third = await client.writer()
        await third.begin()
        assert not any(write.done() for write in writes)
        disk.gate.set()
        await asyncio.gather(*writes)


async def commit(writer: FujinWriter) -> None:
    async with writer.transaction():
        await writer.write("orders", b"two")


@each_door
async def test_what_is_written_is_there_after_a_restart_and_what_was_settled_is_not(door: str, tmp_path: Path) -> None:
    async with serving(tmp_path, door) as node, await connected(node, door) as client:
        writer, reader = await client.writer(), await client.reader("orders")
        async with writer.transaction():
            await writer.write_many("orders", [b"1", b"2", b"3"])
        first, *_ = await reader.fetch(3)
        assert await first.ack()
        await writer.begin()
        await writer.write("orders", b"never committed")
    async with serving(tmp_path, door, retry={"backoff_ms": 0}) as node, await connected(node, door) as client:
        reader = await client.reader("orders", auto_commit=True)
        assert sorted([delivery.value for delivery in await reader.fetch(10)]) == [b"2", b"3"]


@each_door
async def test_a_reader_that_was_behind_is_still_heard(door: str, tmp_path: Path) -> None:
    """A push that stalls the stream leaves nothing unread at the broker; what comes next must be read all the same."""
    async with serving(tmp_path, door) as node, await connected(node, door) as client:
        writer = await client.writer()
        await writer.write_many("orders", [bytes(1000)] * 20_000)
        subscription = await client.subscribe("orders", auto_commit=True)
        count = 0
        while count < 20_000:
            count += len(await subscription.take(20_000))
        await writer.write("orders", b"last")
        assert (await subscription.take(1))[0].value == b"last"
        await subscription.close()


@each_door
async def test_competing_readers_get_each_message_once(door: str, tmp_path: Path) -> None:
    async with serving(tmp_path, door) as node, await connected(node, door) as client:
        readers = [await client.subscribe("orders") for _ in range(3)]
        seen: list[bytes] = []

        async def read(subscription: FujinSubscription) -> None:
            async for delivery in subscription:
                seen.append(delivery.value)
                assert await delivery.ack()
                if len(seen) == 300:
                    everything.set()

        everything = asyncio.Event()
        tasks = [asyncio.create_task(read(reader)) for reader in readers]
        await (await client.writer()).write_many("orders", [b"%d" % i for i in range(300)])
        await everything.wait()
        for reader in readers:
            await reader.close()
        await asyncio.gather(*tasks)
        assert sorted(seen, key=int) == [b"%d" % i for i in range(300)]


@each_door
async def test_a_message_that_fails_too_often_is_a_dead_letter(door: str, tmp_path: Path) -> None:
    retry = {"max_attempts": 2, "backoff_ms": 0}
    async with serving(tmp_path, door, retry=retry) as node, await connected(node, door) as client:
        await (await client.writer()).write("orders", b"bad", headers=[("k", b"v")])
        reader = await client.reader("orders")
        for _ in range(2):
            (delivery,) = await reader.fetch(1)
            assert await delivery.nack()
        dead = await client.reader("$dead.orders", auto_commit=True)
        assert [delivery.value for delivery in await dead.fetch(1)] == [b"bad"]


@each_door
async def test_clients_leave_when_the_broker_stops(door: str, tmp_path: Path) -> None:
    async with serving(tmp_path, door) as node:
        client = await connected(node, door)
        writer, subscription = await client.writer(), await client.subscribe("orders")
        await writer.write("orders", b"one")
        delivery = await anext(subscription)
        leaving = asyncio.create_task(leave(client, subscription, delivery))
    await leaving


async def leave(client: FujinClient, subscription: FujinSubscription, delivery: Delivery) -> None:
    assert await anext(subscription, None) is None
    assert await delivery.ack()
    await client.close()


@each_door
async def test_the_reference_dialect(door: str, tmp_path: Path) -> None:
    fujin = {"dialect": "reference", "fetch_wait_ms": 1}
    settings = ClientSettings(dialect=Dialect.REFERENCE)
    async with serving(tmp_path, door, fujin=fujin) as node, await connected(node, door, settings) as client:
        reader, subscription = await client.reader("a"), await client.subscribe("b", auto_commit=True)
        assert await reader.fetch(1) == []
        writer = await client.writer("w")
        await writer.write("a", b"")
        await writer.write("b", b"x" * 70_000)
        (delivery,) = await reader.fetch(1)
        assert delivery.value == b"\0"
        assert await reader.ack([delivery.id, b"?"]) == [True, False]
        assert (await anext(subscription)).value == b"x" * 70_000


@each_door
async def test_a_broker_that_may_not_be_written_to_says_so(door: str, tmp_path: Path) -> None:
    async with serving(tmp_path, door) as node, await connected(node, door) as client:
        writer = await client.writer()
        with pytest.raises(Refused, match="not allowed to publish"):
            await writer.write("$dead.orders", b"x")
        with pytest.raises(Refused, match="not allowed to publish"):
            await forbidden(writer)
        await writer.write("orders", b"y")


async def forbidden(writer: FujinWriter) -> None:
    async with writer.transaction():
        await writer.write("orders", b"x")
        await writer.write("$dead.orders", b"x")


async def test_a_route_that_is_no_name_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fujin\.routes: empty topic"):
        async with serving(tmp_path, "fujin", fujin={"routes": {"in": ""}}):
            pass
