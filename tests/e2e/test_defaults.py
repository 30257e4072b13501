"""With all defaults, work that takes its time is done once: forty messages, five at a time, half a second each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headrace.grpcq import HeadraceAdapter, Registry, Worker
from headrace.protocols.blipmq.client import BlipmqClient
from headrace.protocols.fujin.client import FujinClient
from headrace.protocols.fujin.streams import Security
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.sspq.client import SspqClient
from headrace.server.dev_certificate import DEV_CERT_NAME
from headrace.server.node import Node
from headrace.testing import KEY, broker

COUNT, AT_A_TIME, WORK_S = 40, 5, 0.5
TOPIC = "sspq"
LISTEN = dict.fromkeys(("sspq", "fujin", "grpc"), "127.0.0.1:0")
VALUES = [b"%d" % number for number in range(COUNT)]

Job = tuple[bytes, Callable[[], Awaitable[object]]]


class Staff:
    """Five at work, and what each of them did."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.done = asyncio.Event()

    async def work(self, job: Job) -> None:
        """Half a second of somebody's time, then the settling."""
        value, settle = job
        idle = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(WORK_S, idle.set_result, None)
        await idle
        self.handled.append(value)
        await settle()
        if len(self.handled) >= COUNT:
            self.done.set()

    async def serve(self, jobs: AsyncIterator[Job]) -> None:
        """Take the next job whenever one of five is free, for ever."""
        free = asyncio.Semaphore(AT_A_TIME)
        async with asyncio.TaskGroup() as group:
            await free.acquire()
            async for job in jobs:
                group.create_task(self.work(job)).add_done_callback(lambda _: free.release())
                await free.acquire()


async def by_blipmq(node: Node, staff: Staff, stack: AsyncExitStack) -> None:
    client = await stack.enter_async_context(await BlipmqClient.connect(node.endpoints["blipmq"], KEY))
    subscription = await client.subscribe(TOPIC)
    await client.publish_many(TOPIC, VALUES)

    async def jobs() -> AsyncIterator[Job]:
        async for delivery in subscription:
            yield delivery.message, delivery.ack

    await staff.serve(jobs())


async def by_sspq(node: Node, staff: Staff, stack: AsyncExitStack) -> None:
    async def one_of_five() -> None:
        client = await stack.enter_async_context(await SspqClient.connect(node.endpoints["sspq"]))
        while True:
            delivery = await client.receive()
            await staff.work((delivery.payload, delivery.confirm))

    publisher = await stack.enter_async_context(await SspqClient.connect(node.endpoints["sspq"]))
    await publisher.send_many(VALUES)
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(one_of_five())


async def fujin(node: Node, stack: AsyncExitStack) -> FujinClient:
    security = Security(ca=Path(node.config.data_dir) / DEV_CERT_NAME)
    client = await stack.enter_async_context(await FujinClient.connect(node.endpoints["fujin"], security=security))
    await (await client.writer()).write_many(TOPIC, VALUES)
    return client


async def by_fujin_push(node: Node, staff: Staff, stack: AsyncExitStack) -> None:
    subscription = await (await fujin(node, stack)).subscribe(TOPIC)

    async def jobs() -> AsyncIterator[Job]:
        async for delivery in subscription:
            yield delivery.value, delivery.ack

    await staff.serve(jobs())


async def by_fujin_pull(node: Node, staff: Staff, stack: AsyncExitStack) -> None:
    reader = await (await fujin(node, stack)).reader(TOPIC)
    while True:
        async with asyncio.TaskGroup() as group:
            for delivery in await reader.fetch(AT_A_TIME):
                group.create_task(staff.work((delivery.value, delivery.ack)))


async def grpcq_published(node: Node) -> None:
    async with GrpcqClient(node.endpoints["grpc"], KEY) as client:
        await client.publish(TOPIC, [Message(topic="shop.Orders", action="Place", payload=value) for value in VALUES])


async def by_grpcq(node: Node, staff: Staff, stack: AsyncExitStack) -> None:
    await grpcq_published(node)
    client = await stack.enter_async_context(GrpcqClient(node.endpoints["grpc"], KEY))
    while True:
        async with asyncio.TaskGroup() as group:
            for delivery in await client.consume(TOPIC, AT_A_TIME, wait_s=1):

                async def settle(receipt: bytes = delivery.receipt) -> None:
                    assert await client.ack([receipt]) == []

                group.create_task(staff.work((Message.FromString(delivery.message).payload, settle)))


async def by_a_grpcq_worker(node: Node, staff: Staff, stack: AsyncExitStack) -> None:
    async def place(request: bytes, context: object) -> None:
        async def settled() -> None:
            """The worker does it."""

        await staff.work((request, settled))

    await grpcq_published(node)
    registry = Registry()
    registry.register("shop.Orders", "Place", place)
    adapter = HeadraceAdapter.connect(node.endpoints["grpc"], KEY)
    stack.push_async_callback(adapter.close)
    worker = Worker(adapter, registry, TOPIC, concurrency=AT_A_TIME)
    stack.push_async_callback(worker.stop)
    await worker.run()


@pytest.mark.parametrize("serve", [by_blipmq, by_sspq, by_fujin_push, by_fujin_pull, by_grpcq, by_a_grpcq_worker])
async def test_forty_messages_are_handled_once_each(
    serve: Callable[[Node, Staff, AsyncExitStack], Awaitable[None]],
) -> None:
    async with broker(listen=LISTEN) as node, AsyncExitStack() as stack:
        staff = Staff()
        serving = asyncio.ensure_future(serve(node, staff, stack))
        finished = asyncio.ensure_future(staff.done.wait())
        await asyncio.wait((serving, finished), return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert finished.done(), (staff.handled, serving)

        async def all_settled() -> None:
            while node.engine.broker.counters.acked < COUNT:
                await node.engine.recorded()
                await asyncio.sleep(0)

        await asyncio.wait_for(all_settled(), 10)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        counters = node.engine.broker.counters
        assert sorted(staff.handled) == sorted(VALUES)
        assert (counters.acked, counters.dead, counters.redelivered, counters.nacked) == (COUNT, 0, 0, 0)
