"""grpcq over real gRPC: publish, consume, settle, stream; keys and certificates; drains, kills and restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.log import Flush
from headrace.model.errors import StorageError
from headrace.protocols.blipmq.client import BlipmqClient
from headrace.protocols.grpcq.client import ConnectionLost, GrpcqClient, Refused, Stream
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import Delivery, StreamRequest
from headrace.server.node import Node
from headrace.testing import KEY, broker
from tests.harness.authority import Authority
from tests.harness.clock import TurnedClock
from tests.harness.served import Served, served

OPEN = {"grpc": "127.0.0.1:0"}
WAIT_S = 20.0
STREAM = "/headrace.grpcq.v1.Queues/Stream"
AUTHORIZED = (("authorization", f"Bearer {KEY}"),)


@asynccontextmanager
async def running(data_dir: Path | None = None, **settings: Any) -> AsyncIterator[tuple[Node, GrpcqClient]]:
    """A broker with its gRPC door open, and a client at it."""
    async with (
        broker(data_dir, listen=OPEN, **settings) as node,
        GrpcqClient(node.endpoints["grpc"], KEY) as client,
    ):
        yield node, client


def raw_channel(node: Node) -> Any:
    """A channel that carries whatever bytes it is given."""
    return grpc.aio.insecure_channel(node.endpoints["grpc"].removeprefix("grpc://"))


def messages(count: int, start: int = 0) -> list[Message]:
    return [Message(topic="a.B", action="C", payload=b"%d" % i) for i in range(start, start + count)]


def payloads(deliveries: list[Delivery]) -> list[int]:
    return [int(Message.FromString(delivery.message).payload) for delivery in deliveries]


def receipts(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.receipt for delivery in deliveries]


async def read(stream: Stream, count: int) -> list[Delivery]:
    """So many deliveries of a stream."""
    found: list[Delivery] = []
    while len(found) < count:
        deliveries, settled = await stream.read()
        assert settled is None
        found += deliveries
    return found


async def test_a_receipt_that_cannot_be_settled_is_named_by_its_place() -> None:
    async with running() as (_, client):
        await client.publish("q", messages(4))
        first = await client.consume("q", 4, wait_s=WAIT_S)
        assert await client.ack(receipts(first)[1:2]) == []
        told = await client.ack([*receipts(first), b"junk", bytes(16)])
        assert [(refusal.index, refusal.receipt) for refusal in told] == [
            (1, first[1].receipt),
            (4, b"junk"),
            (5, bytes(16)),
        ]
        assert all("receipt" in refusal.error for refusal in told)
        assert [refusal.index for refusal in await client.nack(receipts(first))] == [0, 1, 2, 3]


async def test_a_stream_delivers_within_its_window_and_goes_on_when_settled() -> None:
    async with running() as (_, client):
        await client.publish("q", messages(100))
        async with client.stream("q", 10) as stream:
            found = await read(stream, 10)
            assert payloads(found) == list(range(10))
            number = await stream.settle(receipts(found)[:3])
            deliveries, settled = await stream.read()
            if settled is None:
                assert payloads(deliveries) == [10, 11, 12]
                _, settled = await stream.read()
            else:
                assert payloads(await read(stream, 3)) == [10, 11, 12]
            assert settled is not None
            assert (settled.request, list(settled.refused)) == (number, [])


async def test_a_window_can_be_closed_and_opened() -> None:
    async with running() as (_, client), client.stream("q", 0) as stream:
        await client.publish("q", messages(3))
        await stream.set_window(2)
        assert payloads(await read(stream, 2)) == [0, 1]
        await stream.set_window(0)
        await stream.set_window(3)
        assert payloads(await read(stream, 1)) == [2]


async def test_a_stream_nacks_with_reasons_and_buries() -> None:
    async with running(retry={"backoff_ms": 0}) as (node, client):
        await client.publish("q", messages(3))
        async with client.stream("q", 3) as stream:
            found = await read(stream, 3)
            await stream.send(
                StreamRequest(
                    acks=[found[0].receipt, b"nonsense"],
                    nacks=[
                        {"receipts": [found[1].receipt], "reason": "again"},
                        {"receipts": [found[2].receipt, found[2].receipt], "reason": "never", "dead": True},
                    ],
                )
            )
            again: list[Delivery] = []
            settled = None
            while settled is None or not again:
                deliveries, answer = await stream.read()
                again += deliveries
                settled = answer or settled
            assert [(refusal.index, refusal.receipt) for refusal in settled.refused] == [
                (1, b"nonsense"),
                (4, found[2].receipt),
            ]
            assert [(payloads([delivery]), delivery.attempt) for delivery in again] == [([1], 2)]
        (dead,) = await client.consume("$dead.q", 1, wait_s=WAIT_S)
        envelope = Message.FromString(dead.message)
        assert (envelope.payload, envelope.metadata["headrace-reason"]) == (b"2", "never")
        assert node.engine.broker.counters.dead == 1


async def test_what_a_stream_held_goes_back_when_it_ends() -> None:
    async with running(retry={"backoff_ms": 0}) as (_, client):
        await client.publish("q", messages(5))
        async with client.stream("q", 5) as stream:
            found = await read(stream, 5)
            await stream.settle(receipts(found)[:2])
            assert (await stream.read())[1] is not None
        again = await client.consume("q", 10, wait_s=WAIT_S)
        assert [(payload, 2) for payload in (2, 3, 4)] == list(
            zip(payloads(again), (d.attempt for d in again), strict=True)
        )


async def test_streams_share_a_queue_without_sharing_a_message() -> None:
    async with running() as (_, client), client.stream("q", 50) as left, client.stream("q", 50) as right:
        await client.publish("q", messages(100))
        found = await asyncio.gather(read(left, 50), read(right, 50))
        assert sorted(payloads(found[0]) + payloads(found[1])) == list(range(100))


@pytest.mark.parametrize(
    ("requests", "code"),
    [
        ([StreamRequest()], "INVALID_ARGUMENT"),
        ([StreamRequest(queue="bad name")], "INVALID_ARGUMENT"),
        ([StreamRequest(queue="q"), StreamRequest(queue="q")], "INVALID_ARGUMENT"),
    ],
)
async def test_a_stream_that_makes_no_sense_is_refused(requests: list[StreamRequest], code: str) -> None:
    async with running() as (node, _), raw_channel(node) as channel:
        method = channel.stream_stream(STREAM, request_serializer=StreamRequest.SerializeToString)
        stream = Stream(method(metadata=AUTHORIZED))
        for request in requests:
            await stream.send(request)
        with pytest.raises(Refused, match=code):
            await stream.read()


@pytest.mark.parametrize("method", ["Publish", "Consume", "Ack", "Nack"])
async def test_bytes_that_are_no_request_are_refused(method: str) -> None:
    async with running() as (node, _), raw_channel(node) as channel:
        call = channel.unary_unary(f"/headrace.grpcq.v1.Queues/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"\xff\xff", metadata=AUTHORIZED)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = channel.unary_unary("/headrace.grpcq.v1.Queues/Steal")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await unknown(b"", metadata=AUTHORIZED)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_is_open_and_tells_of_the_drain() -> None:
    async with running() as (node, _), raw_channel(node) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        node.queues.drain()
        assert await check(b"") == b"\x08\x02"


async def test_keys_decide_who_may_do_what() -> None:
    keys = [
        {"name": "writer", "key": "w", "publish": ["orders"]},
        {"name": "reader", "key": "r", "subscribe": ["orders"]},
    ]
    async with broker(listen=OPEN, auth={"api_keys": keys}) as node:
        url = node.endpoints["grpc"]
        async with GrpcqClient(url, "w") as writer, GrpcqClient(url, "r") as reader, GrpcqClient(url) as nobody:
            await writer.publish("orders", messages(1))
            with pytest.raises(Refused, match="PERMISSION_DENIED: not allowed to publish to other"):
                await writer.publish("other", messages(1))
            with pytest.raises(Refused, match="PERMISSION_DENIED"):
                await writer.consume("orders")
            with pytest.raises(Refused, match="PERMISSION_DENIED"):
                await reader.publish("orders", messages(1))
            found = await reader.consume("orders", wait_s=WAIT_S)
            (told,) = await writer.ack(receipts(found))
            assert told.error == "not allowed to subscribe to orders"
            assert await reader.ack(receipts(found)) == []
            for call in (nobody.publish("orders", []), nobody.consume("orders"), nobody.ack([])):
                with pytest.raises(Refused, match="UNAUTHENTICATED: a key is needed"):
                    await call
            with pytest.raises(Refused, match="UNAUTHENTICATED"):
                async with nobody.stream("orders", 1) as stream:
                    await stream.read()


async def test_without_keys_where_that_is_allowed() -> None:
    async with broker(listen=OPEN, grpcq={"allow_unauthenticated": True}) as node:
        async with GrpcqClient(node.endpoints["grpc"]) as anybody:
            await anybody.publish("q", messages(1))
        async with GrpcqClient(node.endpoints["grpc"], "wrong") as liar:
            with pytest.raises(Refused, match="the key is not known"):
                await liar.publish("q", messages(1))


async def test_client_certificates_are_identities(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server = str(authority.issue_for_a_server())
    tls = {"cert": server, "key": server, "client_ca": str(authority.path)}
    keys = [{"name": "reader", "key": "r", "subscribe": ["q"]}]
    auth = {"api_keys": keys, "certificates": ["worker-1"]}
    async with broker(listen=OPEN | {"http": ""}, auth=auth, tls=tls) as node:
        url = node.endpoints["grpc"]
        assert url.startswith("grpcs://")

        def client(certificate: Path, key: str = "") -> GrpcqClient:
            return GrpcqClient(url, key, ca=authority.path, certificate=certificate, private_key=certificate)

        async with client(authority.issue("worker-1")) as known, client(authority.issue("reader")) as reader:
            await known.publish("q", messages(1))
            with pytest.raises(Refused, match="PERMISSION_DENIED"):
                await reader.publish("q", messages(1))
            assert payloads(await reader.consume("q", wait_s=WAIT_S)) == [0]
        async with client(stranger.issue("worker-1")) as forged:
            with pytest.raises(ConnectionLost):
                await forged.publish("q", messages(1))
        async with GrpcqClient(url, "r", ca=authority.path) as bare:
            with pytest.raises(ConnectionLost):
                await bare.consume("q")


async def test_a_missing_certificate_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no such file"):
        async with broker(listen=OPEN, tls={"cert": str(tmp_path / "no.pem"), "key": str(tmp_path / "no.pem")}):
            raise AssertionError("it started")


async def test_a_port_that_is_taken_stops_the_start() -> None:
    async with running() as (node, _):
        taken = node.endpoints["grpc"].removeprefix("grpc://")
        with pytest.raises(OSError, match="cannot listen for gRPC"):
            async with broker(listen={"grpc": taken}):
                raise AssertionError("it started")


async def test_a_drain_ends_waits_and_idle_streams_and_lets_held_messages_be_settled() -> None:
    async with running() as (node, client):
        await client.publish("busy", messages(1))
        async with client.stream("idle", 1) as idle, client.stream("busy", 1) as busy:
            held = await read(busy, 1)
            waiting = asyncio.create_task(client.consume("empty", wait_s=WAIT_S))
            while node.queues.waiting < 3:  # noqa: ASYNC110  # nobody is told when a caller begins to wait
                await asyncio.sleep(0)
            node.queues.drain()
            assert await waiting == []
            with pytest.raises(ConnectionLost, match="about to stop"):
                await idle.read()
            with pytest.raises(ConnectionLost, match="about to stop"):
                await client.publish("q", messages(1))
            await busy.settle(receipts(held))
            _, settled = await busy.read()
            assert settled is not None
            assert not settled.refused
            with pytest.raises(ConnectionLost, match="about to stop"):
                await busy.read()


async def test_a_log_that_cannot_be_written_refuses_and_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(flush: Flush) -> None:
        flush.error = StorageError("No space left on device")

    async with running() as (_, client):
        with monkeypatch.context() as broken:
            broken.setattr(Flush, "order", lambda _: None)
            broken.setattr(Flush, "run", full)
            with pytest.raises(ConnectionLost, match="UNAVAILABLE: durable publish failed: No space left on device"):
                await client.publish("q", messages(1))
            with pytest.raises(ConnectionLost, match="UNAVAILABLE: durable subscribe failed"):
                await client.consume("q")
        await client.publish("q", messages(1, 7))
        assert payloads(await client.consume("q", wait_s=WAIT_S)) == [7]


async def test_messages_outlive_a_restart_and_settled_ones_do_not_come_back(tmp_path: Path) -> None:
    clock = TurnedClock()
    async with running(tmp_path, clock=clock) as (_, client):
        await client.publish("q", messages(6))
        found = await client.consume("q", 4, wait_s=WAIT_S)
        assert await client.ack(receipts(found)[:2]) == []
        assert await client.nack(receipts(found)[2:3], "later") == []
    clock.turn(60)
    async with running(tmp_path, clock=clock) as (_, client):
        again = await client.consume("q", 10, wait_s=WAIT_S)
        assert {payload: delivery.attempt for payload, delivery in zip(payloads(again), again, strict=True)} == {
            2: 2,
            3: 2,
            4: 1,
            5: 1,
        }


async def test_a_receipt_is_good_after_a_restart_until_its_message_is_delivered_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.publish("q", messages(1))
        found = await client.consume("q", wait_s=WAIT_S)
    async with running(tmp_path) as (_, client):
        assert await client.ack(receipts(found)) == []
        assert await client.consume("q") == []


def grpc_url(running: Served) -> str:
    return f"grpc://127.0.0.1:{running.ports['grpc']}"


async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    stored: list[int] = []
    with served(tmp_path, LISTEN__GRPC="127.0.0.1:0") as first:
        async with GrpcqClient(grpc_url(first), "dev-key", timeout_s=5) as client:
            try:
                for number in range(0, 100_000, 50):
                    await client.publish("q", messages(50, number))
                    stored += range(number, number + 50)
                    if number == 1000:
                        done = await client.consume("q", 100, wait_s=WAIT_S)
                        assert await client.ack(receipts(done)) == []
                        settled = set(payloads(done))
                    if number == 2000:
                        first.process.kill()
            except ConnectionLost:
                pass
    assert len(stored) >= 2000
    with served(tmp_path, LISTEN__GRPC="127.0.0.1:0") as second:
        async with GrpcqClient(grpc_url(second), "dev-key") as client:
            found: list[int] = []
            while len(set(found)) < len(stored) - len(settled):
                batch = await client.consume("q", 1000, wait_s=WAIT_S)
                assert batch, "something is missing"
                assert await client.ack(receipts(batch)) == []
                found += payloads(batch)
    assert set(stored) - settled <= set(found)
    assert not settled & set(found)


async def test_a_message_from_another_door_is_put_into_an_envelope_and_back() -> None:
    async with running() as (node, client), await BlipmqClient.connect(node.endpoints["blipmq"], KEY) as blipmq:
        subscription = await blipmq.subscribe("q")
        await blipmq.publish("q", b"from blipmq")
        (delivery,) = await client.consume("q", wait_s=WAIT_S)
        envelope = Message.FromString(delivery.message)
        assert (envelope.originator, envelope.payload) == ("blipmq", b"from blipmq")
        assert envelope.message_id == f"headrace-{delivery.offset}"
        assert await client.ack([delivery.receipt]) == []
        sent = Message(topic="a.B", action="C", payload=b"x", message_id="m", timestamp_ms=1)
        await client.publish("q", [sent])
        own, crossed = await anext(subscription), await anext(subscription)
        assert own.message == b"from blipmq"
        assert Message.FromString(crossed.message) == sent


async def test_a_message_published_at_most_once_has_nothing_to_settle() -> None:
    async with running() as (node, client):
        async with await BlipmqClient.connect(node.endpoints["blipmq"], KEY) as blipmq:
            await blipmq.publish("q", b"maybe", qos=0)
        async with client.stream("q", 1) as stream:
            (delivery,) = await read(stream, 1)
            assert delivery.receipt == b""
            await client.publish("q", messages(1))
            assert payloads(await read(stream, 1)) == [0]
