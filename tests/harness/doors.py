"""The four doors behind one handle: publish, receive, settle, fail, over the real clients."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.model.batch import Protocol as DoorName
from headrace.protocols.blipmq.client import BlipmqClient, ClientSettings
from headrace.protocols.crossing import Field
from headrace.protocols.fujin.client import FujinClient
from headrace.protocols.fujin.streams import Security
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.sspq.client import SspqClient
from headrace.server.dev_certificate import DEV_CERT_NAME

PATIENCE_S = 30.0
ATTEMPTS = 2


@dataclass(frozen=True)
class Letter:
    """What a test publishes; each door carries as much of it as it can."""

    value: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    message_id: str = ""
    timestamp_ms: int = 0


@dataclass(frozen=True)
class Received:
    """What came out, by the names of the crossing table, and what can be done with it."""

    known: Mapping[Field, Any]
    settle: Callable[[], Awaitable[None]]
    fail: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Site:
    """Where a broker can be reached, and by whom."""

    endpoints: Mapping[str, str]
    key: str
    data_dir: Path
    topic: str


class Door(Protocol):
    """One door, as publisher and as consumer."""

    name: DoorName

    async def join(self) -> None:
        """Begin to consume: what is published from now on will be received."""

    async def publish(self, letter: Letter) -> None:
        """Publish; the client's best word that it is stored."""

    async def receive(self) -> Received:
        """The next message."""


class BlipmqDoor:
    """A subscription of one's own, polled."""

    name = DoorName.BLIPMQ

    def __init__(self, site: Site, stack: AsyncExitStack) -> None:
        self._site = site
        self._stack = stack

    async def join(self) -> None:
        client = await self._client()
        self._subscription = await client.subscribe(self._site.topic)

    async def publish(self, letter: Letter) -> None:
        await (await self._client()).publish(self._site.topic, letter.value)

    async def receive(self) -> Received:
        (delivery,) = await asyncio.wait_for(self._subscription.take(1), PATIENCE_S)

        async def settle() -> None:
            await delivery.ack()
            await (await self._client()).fence()

        async def fail() -> None:
            """No ack: the timer takes it back."""

        known = {Field.VALUE: delivery.message, Field.TOPIC: delivery.topic, Field.QOS: delivery.qos}
        return Received(known | {Field.DELIVERY: delivery.tag}, settle, fail)

    async def _client(self) -> BlipmqClient:
        if not hasattr(self, "_connected"):
            settings = ClientSettings(prefetch=1)
            client = await BlipmqClient.connect(self._site.endpoints["blipmq"], self._site.key, settings=settings)
            self._connected = await self._stack.enter_async_context(client)
        return self._connected


class SspqDoor:
    """The one queue, one message at a time."""

    name = DoorName.SSPQ

    def __init__(self, site: Site, stack: AsyncExitStack) -> None:
        self._site = site
        self._stack = stack
        self._reader: SspqClient | None = None

    async def join(self) -> None:
        """The queue's subscription begins with the oldest message."""

    async def publish(self, letter: Letter) -> None:
        async with await SspqClient.connect(self._site.endpoints["sspq"]) as client:
            await client.send(letter.value, retries=ATTEMPTS - 1)

    async def receive(self) -> Received:
        if self._reader is None:
            client = await SspqClient.connect(self._site.endpoints["sspq"])
            self._reader = await self._stack.enter_async_context(client)
        delivery = await self._reader.receive(timeout=PATIENCE_S)

        async def fail() -> None:
            assert self._reader is not None
            await self._reader.close()
            self._reader = None

        return Received({Field.VALUE: delivery.payload, Field.ATTEMPT: delivery.retries}, delivery.confirm, fail)


class FujinDoor:
    """A confirmed writer and a pull reader, each on a QUIC stream of its own."""

    name = DoorName.FUJIN

    def __init__(self, site: Site, stack: AsyncExitStack) -> None:
        self._site = site
        self._stack = stack

    async def join(self) -> None:
        """The topic's shared subscription begins with the oldest message."""

    async def publish(self, letter: Letter) -> None:
        writer = await (await self._client()).writer()
        headers = [(key, value.encode()) for key, value in letter.headers.items()]
        await writer.write(self._site.topic, letter.value, headers=headers)
        await writer.close()

    async def receive(self) -> Received:
        if not hasattr(self, "_reader"):
            self._reader = await (await self._client()).reader(self._site.topic, auto_commit=False)
        async with asyncio.timeout(PATIENCE_S):
            while not (fetched := await self._reader.fetch(1)):
                pass
        (delivery,) = fetched

        async def settle() -> None:
            assert await self._reader.ack([delivery.id]) == [True]

        async def fail() -> None:
            assert await self._reader.nack([delivery.id]) == [True]

        return Received({Field.VALUE: delivery.value, Field.DELIVERY: delivery.id}, settle, fail)

    async def _client(self) -> FujinClient:
        if not hasattr(self, "_connected"):
            security = Security(ca=self._site.data_dir / DEV_CERT_NAME)
            client = await FujinClient.connect(self._site.endpoints["fujin"], security=security)
            self._connected = await self._stack.enter_async_context(client)
        return self._connected


class GrpcqDoor:
    """Envelopes over gRPC."""

    name = DoorName.GRPCQ

    def __init__(self, site: Site, stack: AsyncExitStack) -> None:
        self._site = site
        self._stack = stack

    async def join(self) -> None:
        """The queue's subscription begins with the oldest message."""

    async def publish(self, letter: Letter) -> None:
        message = Message(
            originator="test", topic="shop.Orders", action="Place", payload=letter.value,
            message_id=letter.message_id, timestamp_ms=letter.timestamp_ms, metadata=letter.headers,
        )  # fmt: skip
        await (await self._client()).publish(self._site.topic, [message])

    async def receive(self) -> Received:
        client = await self._client()
        async with asyncio.timeout(PATIENCE_S):
            while not (consumed := await client.consume(self._site.topic, 1, wait_s=5, visibility_s=PATIENCE_S)):
                pass
        (delivery,) = consumed
        message = Message.FromString(delivery.message)

        async def settle() -> None:
            assert await client.ack([delivery.receipt]) == []

        async def fail() -> None:
            assert await client.nack([delivery.receipt], "not today") == []

        known = {
            Field.VALUE: message.payload,
            Field.HEADERS: dict(message.metadata),
            Field.MESSAGE_ID: message.message_id,
            Field.TIMESTAMP: message.timestamp_ms,
            Field.ATTEMPT: delivery.attempt,
            Field.DELIVERY: delivery.receipt,
        }
        return Received(known, settle, fail)

    async def _client(self) -> GrpcqClient:
        if not hasattr(self, "_connected"):
            client = GrpcqClient(self._site.endpoints["grpc"], self._site.key)
            self._connected = await self._stack.enter_async_context(client)
        return self._connected


DOORS: tuple[Callable[[Site, AsyncExitStack], Door], ...] = (BlipmqDoor, SspqDoor, FujinDoor, GrpcqDoor)


def value_of(entered: DoorName, received: Received) -> bytes:
    """The value a test published, wherever it came out: grpcq's is inside the envelope for everybody else."""
    value: bytes = received.known[Field.VALUE]
    if entered is DoorName.GRPCQ and Field.MESSAGE_ID not in received.known:
        return Message.FromString(value).payload
    return value
