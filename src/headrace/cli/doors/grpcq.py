"""grpcq at the command line: messages in envelopes, settled by receipts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from headrace.cli.doors.door import Incoming, Outgoing, Received
from headrace.cli.failure import Failure
from headrace.cli.target import Target
from headrace.protocols.grpcq.client import ConnectionLost, GrpcqClient, Refused, Stream
from headrace.protocols.grpcq.grpcq_pb2 import Message

if TYPE_CHECKING:
    from headrace.protocols.grpcq.queues_pb2 import Delivery, Refusal, Settled

LISTENER = "grpc"
ORIGINATOR = "headrace publish"
CALL_BYTES_MAX = 1 << 20
WAIT_S = 20.0
WINDOW = 512
REASON = "refused by headrace consume"
UNAUTHENTICATED = ("UNAUTHENTICATED", "PERMISSION_DENIED")


class GrpcqPublisher:
    """Publishes in calls of a bounded size, each stored whole or not at all."""

    confirms = True

    def __init__(self, client: GrpcqClient, asked: Outgoing) -> None:
        self._client = client
        self._asked = asked

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish in order; durable on return."""
        call: list[bytes] = []
        size = 0
        for value in messages:
            made = self._envelope(value)
            if call and size + len(made) > CALL_BYTES_MAX:
                await self._client.publish(self._asked.topic, call)
                call, size = [], 0
            call.append(made)
            size += len(made)
        if call:
            await self._client.publish(self._asked.topic, call)

    def _envelope(self, value: bytes) -> bytes:
        """Id and timestamp are left to the broker unless an id was given."""
        asked = self._asked
        return Message(
            originator=ORIGINATOR,
            topic=asked.service,
            action=asked.action,
            payload=value,
            message_id=asked.message_id,
            metadata=dict(asked.headers),
        ).SerializeToString()


class GrpcqConsumer:
    """What both ways of consuming share."""

    ending = ""

    def __init__(self, client: GrpcqClient, asked: Incoming) -> None:
        self._client = client
        self._asked = asked
        self.place = f"subscription grpcq to {asked.topic}, shared"

    def _received(self, delivery: "Delivery") -> Received:
        told: dict[str, Any] = {"attempt": delivery.attempt, "offset": delivery.offset}
        value = delivery.message
        try:
            message = Message.FromString(delivery.message)
        except DecodeError:
            pass
        else:
            value = message.payload
            told |= {
                "id": message.message_id,
                "service": message.topic,
                "action": message.action,
                "originator": message.originator,
                "timestamp_ms": message.timestamp_ms,
                "headers": dict(message.metadata),
            }
        return Received(
            topic=self._asked.topic, value=value, tag=delivery.receipt.hex(), told=told, handle=delivery.receipt
        )


class PullConsumer(GrpcqConsumer):
    """Asks for messages with Consume and settles them with Ack and Nack."""

    async def take(self, limit: int) -> list[Received]:
        """Up to `limit` deliveries, at least one."""
        while not (found := await self._client.consume(self._asked.topic, limit, wait_s=WAIT_S)):
            pass
        return [self._received(delivery) for delivery in found]

    async def settle(self, deliveries: Sequence[Received], *, failed: bool) -> int:
        """Settle them; durable on return."""
        receipts = [delivery.handle for delivery in deliveries if delivery.handle]
        if not receipts:
            return 0
        refused = await (self._client.nack(receipts, REASON) if failed else self._client.ack(receipts))
        return len(receipts) - len(refused)


class PushConsumer(GrpcqConsumer):
    """Reads a Stream; one task reads what comes and hands it on."""

    def __init__(self, client: GrpcqClient, asked: Incoming, stream: Stream) -> None:
        super().__init__(client, asked)
        self._stream = stream
        self._arrived: list[Delivery] = []
        self._settling: dict[int, asyncio.Future[Sequence[Refusal]]] = {}
        self._changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def take(self, limit: int) -> list[Received]:
        """Up to `limit` deliveries, at least one."""
        while not self._arrived:
            self._check()
            self._changed.clear()
            await self._changed.wait()
        taken, self._arrived = self._arrived[:limit], self._arrived[limit:]
        return [self._received(delivery) for delivery in taken]

    async def settle(self, deliveries: Sequence[Received], *, failed: bool) -> int:
        """Settle them; durable on return."""
        receipts = [delivery.handle for delivery in deliveries if delivery.handle]
        if not receipts:
            return 0
        answered: asyncio.Future[Sequence[Refusal]] = asyncio.get_running_loop().create_future()
        self._settling[self._stream.requests + 1] = answered
        await self._stream.settle(() if failed else receipts, receipts if failed else (), reason=REASON)
        while not answered.done():
            self._check()
            self._changed.clear()
            await self._changed.wait()
        return len(receipts) - len(answered.result())

    async def close(self) -> None:
        """Stop reading."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                deliveries, settled = await self._stream.read()
                self._arrived += deliveries
                if settled is not None:
                    self._answer(settled)
                self._changed.set()
        finally:
            self._changed.set()

    def _answer(self, settled: "Settled") -> None:
        answered = self._settling.pop(settled.request, None)
        if answered is not None:
            answered.set_result(list(settled.refused))

    def _check(self) -> None:
        """Raises what ended the stream."""
        if self._reading.done():
            self._reading.result()


@asynccontextmanager
async def publisher(target: Target, asked: Outgoing) -> AsyncIterator[GrpcqPublisher]:
    """A connection that publishes."""
    async with _connected(target) as client:
        yield GrpcqPublisher(client, asked)


@asynccontextmanager
async def consumer(target: Target, asked: Incoming) -> AsyncIterator[PullConsumer | PushConsumer]:
    """A connection that consumes, pushed or pulled."""
    async with _connected(target) as client, AsyncExitStack() as held:
        if not asked.push:
            yield PullConsumer(client, asked)
            return
        consuming = PushConsumer(client, asked, await held.enter_async_context(client.stream(asked.topic, WINDOW)))
        held.push_async_callback(consuming.close)
        yield consuming


@asynccontextmanager
async def _connected(target: Target) -> AsyncIterator[GrpcqClient]:
    """A client of the broker; its errors are failures."""
    url = target.url(LISTENER)
    own = target.cert or ""
    try:
        async with GrpcqClient(url, target.key, ca=target.ca or "", certificate=own, private_key=own) as client:
            yield client
    except Refused as refused:
        if refused.code in UNAUTHENTICATED:
            advice = "Give a key for this with --key or HEADRACE_KEY; `headrace keys new` makes one."
            raise Failure(f"the broker refused the key: {refused.message}", advice) from refused
        raise Failure(f"the broker refused: {refused.message} ({refused.code})") from refused
    except ConnectionLost as error:
        if "CERTIFICATE" in str(error) or "SSL" in str(error):
            raise target.not_trusted(url, str(error)) from error
        raise target.silent(url, str(error)) from error
