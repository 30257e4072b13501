"""Quotas at every door that can reach them: a refusal in the door's own words, and everything else goes on."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headrace.auth import Identity
from headrace.feed.client import FeedClient, FeedError
from headrace.model.errors import OverQuota
from headrace.protocols.blipmq.client import BlipmqClient
from headrace.protocols.blipmq.client import Refused as BlipmqRefused
from headrace.protocols.fujin.client import FujinClient, Security
from headrace.protocols.fujin.client import Refused as FujinRefused
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.client import Refused as GrpcqRefused
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import PublishRequest
from headrace.server.node import Node
from headrace.server.quotas import Kind
from headrace.testing import broker
from tests.harness.eventually import eventually
from tests.harness.peer import ACK, NACK, PING, frame, handshake, publish
from tests.harness.stream import Stream

ANN, BOB = "ann has a long key", "bob has a long key"
KEYS = [{"name": "ann", "key": ANN}, {"name": "bob", "key": BOB}]
FREE = "127.0.0.1:0"
OPEN = dict.fromkeys(("fujin", "fujin_tcp", "grpc", "sspq"), FREE)
MOST = 3
WAIT_S = 10.0


def envelope() -> Message:
    return Message(originator="t", topic="s.S", action="A", payload=b"v")


async def stream_of(node: Node, key: str, stack: AsyncExitStack) -> Stream:
    """A connection that has said HELLO and AUTH, whatever the answer was."""
    host, _, port = node.endpoints["blipmq"].removeprefix("tcp://").rpartition(":")
    peer = Stream(*await asyncio.open_connection(host, int(port)))
    stack.callback(peer.writer.close)
    peer.send(handshake(key.encode()))
    assert (await peer.read())[0] == ACK
    return peer


class Blipmq:
    """NACK, with the cause."""

    def __init__(self, node: Node, key: str, stack: AsyncExitStack) -> None:
        self._node, self._key, self._stack = node, key, stack
        self._peer: Stream | None = None

    async def _connected(self) -> Stream:
        if self._peer is None:
            self._peer = await stream_of(self._node, self._key, self._stack)
            assert (await self._peer.read())[0] == ACK
        return self._peer

    async def publish(self, topic: str) -> str:
        peer = await self._connected()
        peer.send(publish(topic.encode(), b"v"))
        return "".join(payload.decode(errors="replace") for kind, _, payload in await peer.fence() if kind == NACK)

    async def subscribe(self, topic: str) -> str:
        try:
            client = await BlipmqClient.connect(self._node.endpoints["blipmq"], self._key)
            await (await self._stack.enter_async_context(client)).subscribe(topic)
        except BlipmqRefused as refused:
            return refused.message
        return ""


class Fujin:
    """An error string."""

    door = "fujin"

    def __init__(self, node: Node, key: str, stack: AsyncExitStack) -> None:
        self._node, self._stack = node, stack
        self._client: FujinClient | None = None

    async def _connected(self) -> FujinClient:
        if self._client is None:
            client = await FujinClient.connect(self._node.endpoints[self.door], security=Security(verify=False))
            self._client = await self._stack.enter_async_context(client)
        return self._client

    async def publish(self, topic: str) -> str:
        writer = await (await self._connected()).writer()
        try:
            await writer.write(topic, b"v")
        except FujinRefused as refused:
            return refused.text
        await writer.close()
        return ""

    async def subscribe(self, topic: str) -> str:
        try:
            await (await self._connected()).reader(topic, auto_commit=False)
        except FujinRefused as refused:
            return refused.text
        return ""


class FujinTcp(Fujin):
    """The same over TCP."""

    door = "fujin_tcp"


class Grpcq:
    """RESOURCE_EXHAUSTED."""

    def __init__(self, node: Node, key: str, stack: AsyncExitStack) -> None:
        self._client = GrpcqClient(node.endpoints["grpc"], key)
        stack.push_async_exit(self._client)

    async def publish(self, topic: str) -> str:
        return await self._said(self._client.publish(topic, [envelope()]))

    async def subscribe(self, topic: str) -> str:
        return await self._said(self._client.consume(topic, 1))

    async def _said(self, call: Awaitable[Any]) -> str:
        try:
            await call
        except GrpcqRefused as refused:
            return f"{refused.code}: {refused.message}"
        return ""


class Http:
    """429."""

    def __init__(self, node: Node, key: str, stack: AsyncExitStack) -> None:
        headers = {"authorization": f"Bearer {key}"}
        self._client = httpx.AsyncClient(base_url=node.endpoints["http"], headers=headers)
        stack.push_async_exit(self._client)

    async def publish(self, topic: str) -> str:
        body = {"messages": [base64.b64encode(envelope().SerializeToString()).decode()]}
        reply = await self._client.post(f"/queues/{topic}/messages", json=body)
        assert reply.status_code in (204, 429)
        return str(reply.json()["error"]) if reply.status_code == 429 else ""


DOORS: dict[str, Callable[[Node, str, AsyncExitStack], Any]] = {
    "blipmq": Blipmq,
    "fujin": Fujin,
    "fujin_tcp": FujinTcp,
    "grpc": Grpcq,
    "http": Http,
}
KEYED = ("blipmq", "grpc", "http")
SETTINGS: dict[str, Any] = {"listen": OPEN, "auth": {"api_keys": KEYS}, "fujin": {"allow_unauthenticated": True}}
SETTINGS["sspq"] = {"allow_unauthenticated": True}


@pytest.mark.parametrize("name", DOORS)
async def test_nobody_makes_more_topics_than_their_share(tmp_path: Path, name: str) -> None:
    limits = {"topics_per_key_max": MOST}
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(broker(tmp_path, limits=limits, **SETTINGS))
        ann, bob = DOORS[name](node, ANN, stack), DOORS["grpc" if name not in KEYED else name](node, BOB, stack)
        assert [await ann.publish(f"a{number}") for number in range(MOST)] == [""] * MOST
        said = await ann.publish("one-more")
        assert "too many topics: more than 3 (limits.topics_per_key_max)" in said
        assert said.startswith("RESOURCE_EXHAUSTED") is (name == "grpc")
        assert await ann.publish("a0") == "", "what is there can be published to"
        assert await bob.publish("b0") == ""
        assert await bob.publish("a1") == ""
        assert {topic.name for topic in node.engine.broker.topics()} == {"a0", "a1", "a2", "b0"}
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(broker(tmp_path, limits=limits, **SETTINGS))
        ann = DOORS[name](node, ANN, stack)
        assert "too many topics" in await ann.publish("after-a-restart")
        assert await ann.publish("b0") == ""


@pytest.mark.parametrize("name", ["blipmq", "fujin", "fujin_tcp", "grpc"])
async def test_nobody_makes_more_subscriptions_than_their_share(tmp_path: Path, name: str) -> None:
    limits = {"subscriptions_per_key_max": MOST}
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(broker(tmp_path, limits=limits, **SETTINGS))
        ann, bob = DOORS[name](node, ANN, stack), DOORS["grpc" if name not in KEYED else name](node, BOB, stack)
        assert [await ann.subscribe(f"a{number}") for number in range(MOST)] == [""] * MOST
        assert "too many subscriptions: more than 3" in await ann.subscribe("one-more")
        if name != "blipmq":
            assert await ann.subscribe("a0") == "", "joining one that is there makes none"
        assert await ann.publish("a0") == ""
        assert await bob.subscribe("b0") == ""
        assert len(node.engine.broker.subscriptions()) == MOST + 1
        first = min(node.engine.broker.subscriptions(), key=lambda each: each.id)
        node.engine.broker.unsubscribe(first.id, "for room", node.engine.clock.now())
        assert await ann.subscribe("room") == ""
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(broker(tmp_path, limits=limits, **SETTINGS))
        assert "too many subscriptions" in await DOORS[name](node, ANN, stack).subscribe("after-a-restart")


async def test_connections_of_a_key_are_counted_and_given_back() -> None:
    async with broker(limits={"connections_per_key_max": MOST}, **SETTINGS) as node:
        for _ in range(3):
            async with AsyncExitStack() as stack:
                peers = [await stream_of(node, ANN, stack) for _ in range(MOST + 1)]
                kinds = [(await peer.read())[0] for peer in peers]
                assert sorted(kinds) == sorted([ACK] * MOST + [NACK])
                other = await stream_of(node, BOB, stack)
                assert (await other.read())[0] == ACK
                refused = peers[kinds.index(NACK)]
                refused.send(frame(PING, 0))
            await eventually(lambda: not node.engine.quotas.held(Kind.CONNECTIONS, "ann"))


@pytest.mark.parametrize("door", ["sspq", "fujin", "fujin_tcp"])
async def test_connections_without_a_key_are_counted_and_given_back(door: str) -> None:
    async with broker(limits={"connections_per_key_max": MOST}, **SETTINGS) as node:
        host, _, port = node.endpoints[door].partition("://")[2].rpartition(":")
        for _ in range(3):
            async with AsyncExitStack() as stack:
                closed = 0
                for _ in range(MOST + 1):
                    if door == "sspq":
                        reader, writer = await asyncio.open_connection(host, int(port))
                        stack.callback(writer.close)
                        held = node.engine.quotas.held(Kind.CONNECTIONS, "anonymous")
                        closed += held >= MOST and await _is_closed(reader)
                        await eventually(lambda: node.engine.quotas.held(Kind.CONNECTIONS, "anonymous") > 0)
                        continue
                    client = await FujinClient.connect(node.endpoints[door], security=Security(verify=False))
                    await stack.enter_async_context(client)
                    try:
                        await asyncio.wait_for(client.writer(), WAIT_S)
                    except Exception:  # whatever its door says to a client that is cut off
                        closed += 1
                assert closed == 1
                assert node.engine.quotas.held(Kind.CONNECTIONS, "anonymous") == MOST
            await eventually(lambda: not node.engine.quotas.held(Kind.CONNECTIONS, "anonymous"))


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 0.2) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def test_streams_of_a_key_are_counted_and_given_back() -> None:
    async with broker(limits={"streams_per_key_max": MOST}, **SETTINGS) as node:
        for _ in range(3):
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(GrpcqClient(node.endpoints["grpc"], ANN))
                for number in range(MOST - 1):
                    await stack.enter_async_context(client.stream(f"q{number}", 1))
                waiting = asyncio.ensure_future(client.consume("empty", 1, wait_s=60))
                await eventually(lambda: node.engine.quotas.held(Kind.STREAMS, "ann") == MOST)
                with pytest.raises(GrpcqRefused, match="too many streams of one key"):
                    await client.consume("q0", 1)
                await client.publish("q0", [envelope()])
                other = await stack.enter_async_context(GrpcqClient(node.endpoints["grpc"], BOB))
                await other.consume("q1", 1)
                waiting.cancel()
            await eventually(lambda: not node.engine.quotas.held(Kind.STREAMS, "ann"))


async def test_what_comes_from_one_address_is_counted_too() -> None:
    limits = {"streams_per_address_max": 1, "messages_per_address_s": 1}
    async with broker(limits=limits, **SETTINGS) as node:
        ann, bob = (Identity(name) for name in ("ann", "bob"))
        queues = node.queues
        held = await queues.join(ann, "q", "10.0.0.1")
        with pytest.raises(OverQuota, match="streams of one address"):
            await queues.join(bob, "q", "10.0.0.1")
        for address in ("10.0.0.2", "127.0.0.1", "127.0.0.1", ""):
            await queues.join(bob, "q", address)
        held.release()
        (await queues.join(bob, "q", "10.0.0.1")).release()
        one = PublishRequest(queue="q", messages=[envelope().SerializeToString()] * 2).SerializeToString()
        await queues.publish(ann, one, "10.0.0.1")
        with pytest.raises(OverQuota, match="1 messages a second"):
            await queues.publish(bob, one, "10.0.0.1")
        await queues.publish(bob, one, "10.0.0.2")


class Feed:
    """An error of code `limit`."""

    def __init__(self, url: str, key: str) -> None:
        self._client = FeedClient(url, key=key)

    def publish(self, topic: str, writer: str = "writer") -> str:
        rows = [pa.record_batch({"value": pa.array([b"v" * 1000], pa.binary())})]

        def both() -> None:
            batch = (self._client.committed(writer) or 0) + 1
            self._client.commit(writer, batch, [self._client.stage(writer, batch, "p", topic, rows)])

        return self._said(both)

    def report(self, reader: str) -> str:
        return self._said(lambda: self._client.report(reader, ["topic"], 0))

    def stage(self, size: int) -> str:
        rows = [pa.record_batch({"value": pa.array([b"v" * size], pa.binary())})]
        return self._said(lambda: self._client.stage("stager", 1, "p", "topic", rows))

    def _said(self, call: Callable[[], object]) -> str:
        try:
            call()
        except FeedError as error:
            return f"{error.code}: {error}"
        return ""


@asynccontextmanager
async def feeding(data: Path, **limits: int) -> AsyncIterator[tuple[Node, Feed, Feed]]:
    """A broker with a feed, and what ann and bob see of it."""
    async with broker(data, listen={"flight": FREE}, auth={"api_keys": KEYS}, limits=limits) as node:
        url = node.endpoints["flight"]
        yield node, Feed(url, ANN), Feed(url, BOB)


async def test_topics_readers_and_writers_by_the_feed(tmp_path: Path) -> None:
    limits = {"topics_per_key_max": MOST, "readers_per_key_max": MOST, "writers_per_key_max": 2 * MOST}
    do = asyncio.to_thread
    async with feeding(tmp_path, **limits) as (_, ann, bob):
        assert [await do(ann.publish, f"a{number}") for number in range(MOST)] == [""] * MOST
        assert "limit: too many topics: more than 3" in await do(ann.publish, "one-more")
        assert [await do(ann.report, f"r{number}") for number in range(MOST)] == [""] * MOST
        assert "limit: too many readers: more than 3" in await do(ann.report, "one-more")
        assert await do(ann.report, "r0") == ""
        assert [await do(ann.publish, "a0", f"w{number}") for number in range(2 * MOST - 1)] == [""] * (2 * MOST - 1)
        assert "limit: too many writers: more than 6" in await do(ann.publish, "a0", "one-more")
        assert await do(ann.publish, "a0", "w0") == ""
        assert [await do(bob.publish, "b0"), await do(bob.report, "r0")] == ["", ""]
    async with feeding(tmp_path, **limits) as (node, ann, bob):
        assert "too many topics" in await do(ann.publish, "after-a-restart", "w0")
        assert "too many readers" in await do(ann.report, "after-a-restart")
        assert "too many writers" in await do(ann.publish, "a0", "after-a-restart")
        assert await do(bob.publish, "b1", "w0") == ""
        node.engine.broker.readers.remove("ann", "r0", node.engine.clock.now())
        assert await do(ann.report, "room") == ""


async def test_what_is_staged_is_counted_by_what_lies_there(tmp_path: Path) -> None:
    do = asyncio.to_thread
    async with feeding(tmp_path, staged_files_per_key_max=MOST, staged_bytes_per_key_max=1 << 20) as (_, ann, bob):
        assert [await do(ann.stage, 10) for _ in range(MOST)] == [""] * MOST
        assert "limit: too many staged files: more than 3" in await do(ann.stage, 10)
        assert "too many staged bytes" in await do(bob.stage, 1 << 20)
        assert await do(bob.stage, 1 << 19) == "", "what was refused is not kept"
        assert "too many staged bytes" in await do(bob.stage, 1 << 19)
    async with feeding(tmp_path, staged_files_per_key_max=MOST, staged_bytes_per_key_max=1 << 20) as (_, ann, bob):
        assert "too many staged files" in await do(ann.stage, 10)
        assert "too many staged bytes" in await do(bob.stage, 1 << 19)
        for path in (tmp_path / "staging").iterdir():
            path.unlink(missing_ok=True)  # a refused upload is cleared away after its answer
        assert [await do(ann.stage, 10), await do(bob.stage, 1 << 19)] == ["", ""], "found out without being told"


async def test_staging_leaves_room_for_the_log(tmp_path: Path) -> None:
    do = asyncio.to_thread
    async with feeding(tmp_path, staging_free_bytes_min=1 << 60) as (node, ann, _):
        assert "limit: the disk has little room left" in await do(ann.stage, 10)
        assert list((tmp_path / "staging").iterdir()) == []
        async with AsyncExitStack() as stack:
            assert await DOORS["blipmq"](node, ANN, stack).publish("topic") == ""


async def test_a_publisher_that_is_too_fast_is_kept_waiting_and_loses_nothing() -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(broker(limits={"messages_per_key_s": 1000}, **SETTINGS))
        peer = await stream_of(node, ANN, stack)
        assert (await peer.read())[0] == ACK
        count = 1500
        peer.send(b"".join(publish(b"fast", b"%d" % number) for number in range(count)))
        peer.send(frame(PING, 0))
        frames = await asyncio.wait_for(peer.until_pong(), 30)
        assert frames == [], "no NACK"
        assert node.engine.broker.counters.published == count
        other = DOORS["blipmq"](node, BOB, stack)
        assert await other.publish("fast") == ""


async def test_a_caller_that_is_too_fast_is_told_when_to_come_again() -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(broker(limits={"messages_per_key_s": 2}, **SETTINGS))
        for name in ("grpc", "http"):
            key = ANN if name == "grpc" else BOB
            caller = DOORS[name](node, key, stack)
            said = [await caller.publish("topic") for _ in range(12)]
            assert said[0] == ""
            assert any("more than 2 messages a second; try again in" in each for each in said)
