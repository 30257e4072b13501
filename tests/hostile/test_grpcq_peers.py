"""gRPC peers that mean harm, or do not know better: what they cost is bounded, and others are served all the while."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.protocols.grpcq.client import GrpcqClient, Refused
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import Delivery, PublishRequest, StreamRequest
from tests.harness.http2 import Peer
from tests.harness.served import Served, served

MIB = 1 << 20
HEALTH = "/grpc.health.v1.Health/Check"
PUBLISH = "/headrace.grpcq.v1.Queues/Publish"
STREAM = "/headrace.grpcq.v1.Queues/Stream"
AUTHORIZED = (("authorization", "Bearer dev-key"),)
STRANGER = (("authorization", "Bearer guess"),)
WAIT_S = 20.0


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Served]:
    with served(tmp_path, LISTEN__GRPC="127.0.0.1:0", LIMITS__WRITE_TIMEOUT_S="1", RETRY__BACKOFF_MS="1") as running:
        yield running


def url(broker: Served) -> str:
    return f"grpc://127.0.0.1:{broker.ports['grpc']}"


def channel(broker: Served, **options: Any) -> Any:
    """A channel that carries whatever bytes it is given."""
    told = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{broker.ports['grpc']}", options=told, **options)


@pytest.fixture
async def bystander(broker: Served) -> AsyncIterator[GrpcqClient]:
    """A well-behaved client that must be served before and after."""
    async with GrpcqClient(url(broker), "dev-key") as client:
        await client.publish("calm", [message(b"before")])
        yield client
        await client.publish("calm", [message(b"after")])
        assert [payload(d) for d in await client.consume("calm", wait_s=WAIT_S)] == [b"before", b"after"]


def message(data: bytes) -> Message:
    return Message(topic="a.B", action="C", payload=data)


def payload(delivery: Delivery) -> bytes:
    return Message.FromString(delivery.message).payload


async def test_a_giant_message_is_refused_and_costs_nothing(broker: Served, bystander: GrpcqClient) -> None:
    before = broker.resident_bytes()
    giant = PublishRequest(queue="q", messages=[bytes(64 * MIB)]).SerializeToString()
    async with channel(broker) as wire:
        for metadata in (AUTHORIZED, STRANGER):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await wire.unary_unary(PUBLISH)(giant, metadata=metadata)
            known = metadata is AUTHORIZED
            expected = grpc.StatusCode.RESOURCE_EXHAUSTED if known else grpc.StatusCode.UNAUTHENTICATED
            assert refused.value.code() is expected
    assert broker.resident_bytes() - before < 32 * MIB


async def test_a_compressed_bomb_is_not_unpacked(broker: Served, bystander: GrpcqClient) -> None:
    before = broker.resident_bytes()
    bomb = PublishRequest(queue="q", messages=[bytes(256 * MIB)]).SerializeToString()
    async with channel(broker, compression=grpc.Compression.Gzip) as wire:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await wire.unary_unary(PUBLISH)(bomb, metadata=AUTHORIZED)
    assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert broker.resident_bytes() - before < 32 * MIB


async def test_a_client_that_never_acks_holds_its_window_and_no_more(broker: Served, bystander: GrpcqClient) -> None:
    await bystander.publish("q", [message(b"%d" % i) for i in range(100)])
    async with bystander.stream("q", 30) as hoarder, bystander.stream("q", 70) as worker:
        held = (await hoarder.read())[0]
        found: list[Delivery] = []
        while len(held) < 30:
            held += (await hoarder.read())[0]
        while len(found) < 70:
            found += (await worker.read())[0]
        await worker.settle([delivery.receipt for delivery in found])
        _, settled = await worker.read()
        assert settled is not None
        assert await bystander.consume("q") == []
    assert len({payload(delivery) for delivery in held + found}) == 100
    back: list[Delivery] = []
    while len(back) < 30:
        back += await bystander.consume("q", 30, wait_s=WAIT_S)
    assert {payload(delivery) for delivery in back} == {payload(delivery) for delivery in held}
    assert {delivery.attempt for delivery in back} == {2}


async def test_a_window_without_measure_is_cut_to_measure(broker: Served, bystander: GrpcqClient) -> None:
    for _ in range(3):
        await bystander.publish("q", [message(b"")] * 5000)
    async with bystander.stream("q", 2**32 - 1) as greedy:
        count = 0
        while count < 10_000:
            count += len((await greedy.read())[0])
        assert count == 10_000
        assert len(await bystander.consume("q", 100, wait_s=WAIT_S)) == 100


async def test_a_stream_that_is_not_read_is_bounded_and_cut_off(broker: Served, bystander: GrpcqClient) -> None:
    big = bytes(200_000)
    for _ in range(20):
        await bystander.publish("wide", [message(big)] * 10)
    before = broker.resident_bytes()
    async with channel(broker) as wire:
        call = wire.stream_stream(STREAM, request_serializer=StreamRequest.SerializeToString)(metadata=AUTHORIZED)
        await call.write(StreamRequest(queue="wide", window=10_000))
        broker.wait_for_log("grpc.stream_refused")
        assert broker.resident_bytes() - before < 32 * MIB
        back: list[Delivery] = []
        while len(back) < 200:
            found = await bystander.consume("wide", 20, wait_s=WAIT_S)
            await bystander.ack([delivery.receipt for delivery in found])
            back += found
        call.cancel()
    assert {delivery.attempt for delivery in back} <= {1, 2}


async def test_streams_that_come_and_go_leave_nothing_behind(broker: Served, bystander: GrpcqClient) -> None:
    async def visit() -> None:
        async with bystander.stream("q", 1) as stream:
            await stream.set_window(2)

    async def visits(count: int) -> None:
        for _ in range(count // 20):
            await asyncio.gather(*(visit() for _ in range(20)))
        await bystander.publish("calm2", [message(b"fence")])

    await visits(200)
    before, descriptors = broker.resident_bytes(), open_files(broker)
    await visits(1000)
    assert broker.resident_bytes() - before < 16 * MIB
    assert open_files(broker) <= descriptors + 2


async def test_many_waiting_consumers_are_served_one_message_each(broker: Served, bystander: GrpcqClient) -> None:
    before = broker.resident_bytes()
    waiting = [asyncio.create_task(bystander.consume("q", 1, wait_s=WAIT_S)) for _ in range(500)]
    await bystander.publish("q", [message(b"%d" % i) for i in range(500)])
    found = [payload(delivery) for result in await asyncio.gather(*waiting) for delivery in result]
    assert sorted(map(int, found)) == list(range(500))
    assert broker.resident_bytes() - before < 64 * MIB


async def test_made_up_receipts_settle_nothing(broker: Served, bystander: GrpcqClient) -> None:
    await bystander.publish("q", [message(b"x")])
    (delivery,) = await bystander.consume("q", wait_s=WAIT_S)
    guesses = [os.urandom(16) for _ in range(5000)] + [delivery.receipt[:8] + os.urandom(8) for _ in range(5000)]
    assert len(await bystander.ack(guesses)) == 10_000
    assert len(await bystander.nack(guesses, "guess", dead=True)) == 10_000
    assert await bystander.ack([delivery.receipt]) == []


async def test_bytes_that_are_no_http2_disturb_nobody(broker: Served, bystander: GrpcqClient) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), preface + os.urandom(4096), preface + b"\xff" * 64):
        with socket.create_connection(("127.0.0.1", broker.ports["grpc"]), timeout=10) as peer:
            peer.sendall(greeting)
            try:
                while peer.recv(65536):
                    pass
            except OSError:
                pass
        await bystander.publish("calm2", [message(b"still here")])


async def test_a_flood_of_tiny_messages_is_counted_before_anything_is_kept(
    broker: Served, bystander: GrpcqClient
) -> None:
    before = broker.resident_bytes()
    async with channel(broker) as wire:
        flood = b"\x0a\x01q" + b"\x12\x00" * (2 * MIB - 10)
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError, match="more than 65536 messages"):
                await wire.unary_unary(PUBLISH)(flood, metadata=AUTHORIZED)
    assert broker.resident_bytes() - before < 64 * MIB


async def test_guessing_keys_gets_nowhere(broker: Served, bystander: GrpcqClient) -> None:
    async with GrpcqClient(url(broker), "guess") as guesser:
        for _ in range(100):
            with pytest.raises(Refused, match="UNAUTHENTICATED"):
                await guesser.consume("calm")


async def test_what_strangers_send_is_not_kept(broker: Served, bystander: GrpcqClient) -> None:
    before = broker.resident_bytes()

    async def check(wire: Any, size: int) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await wire.unary_unary(HEALTH)(bytes(size))

    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(channel(broker)) for _ in range(20)]
        for _ in range(5):
            await asyncio.gather(*(check(wire, 4_000_000) for wire in wires))
        await check(wires[0], 256 * MIB)
    assert broker.resident_bytes() - before < 16 * MIB


async def test_a_thousand_half_messages_of_known_peers_are_bounded(broker: Served, bystander: GrpcqClient) -> None:
    before = broker.resident_bytes()
    peers = [await Peer.dial(broker.ports["grpc"]) for _ in range(1000)]
    for peer in peers:
        half = b"\0" + (4 * MIB).to_bytes(4) + bytes(16_000)
        await peer.send(peer.wire.headers(1, PUBLISH, AUTHORIZED[0]) + peer.wire.data(1, half))
    for peer in peers:
        peer.writer.write(peer.wire.data(1, bytes(48_000)))
    await bystander.publish("calm2", [message(b"still here")])
    assert broker.resident_bytes() - before < 300 * MIB
    for peer in peers:
        await peer.close()
    await bystander.publish("calm2", [message(b"still here")])


def open_files(broker: Served) -> int:
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))
