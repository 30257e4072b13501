"""Queues of grpcq messages on the engine: publish, take, settle. For gRPC, HTTP and callers inside the process alike.

Knows the broker and the envelope; nothing of networks.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from headrace.auth import SHARED_OWNER, Identity
from headrace.broker.settings import TopicSettings
from headrace.kernels.grpcq_deliveries import group_receipts
from headrace.kernels.grpcq_envelope import RECEIPT
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code
from headrace.protocols.grpcq.envelope import check_source
from headrace.protocols.grpcq.publishing import Publishing
from headrace.server.engine import Engine
from headrace.server.reader import Reader

SUBSCRIPTION_NAME = "grpcq"
BATCH_DEFAULT = 10
BATCH_MAX = 4096
WAIT_S_MAX = 60.0
VISIBILITY_S_MAX = 86_400.0

UNKNOWN_RECEIPT = "unknown receipt: settled before, or its message was delivered anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """What the door grants. `publishing_bytes_max` bounds the calls that wait for the disk together."""

    payload_max: int
    max_attempts: int
    ack_wait_s: float
    publishing_bytes_max: int
    topics: Mapping[str, TopicSettings]

    def attempts(self, queue: str) -> int:
        """The limit to store with a message; 0 leaves it to the topic, which has one of its own."""
        own = self.topics.get(queue)
        return 0 if own is not None and own.max_attempts is not None else self.max_attempts


@dataclass(frozen=True, slots=True)
class Failure:
    """Deliveries that failed, and why; if `dead`, they are not to be tried again."""

    reason: str = ""
    dead: bool = False


class Queues:
    """The grpcq door without its transport."""

    def __init__(self, engine: Engine, settings: QueueSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.draining = False
        self._budget = _Budget(settings.publishing_bytes_max)
        self._topics: dict[int, str] = {}
        self._wakes: dict[Callable[[], None], None] = {}

    async def publish(self, identity: Identity, request: bytes, address: str = "") -> None:
        """Store the messages of a serialized PublishRequest, all or none; durable on return.

        A message whose id the queue knows is stored already, and the call is answered as if it had come first.
        Raises BrokerError.
        """
        self._must_serve()
        publishing = Publishing.read(request, self.settings.payload_max)
        queue = publishing.queue
        if not identity.may_publish(queue):
            raise BrokerError(Code.FORBIDDEN, f"not allowed to publish to {queue}")
        if not publishing.count:
            return
        engine = self.engine
        if not engine.broker.knows(queue):
            engine.broker.claim((queue,), identity.owner)
        if engine.quotas.rated:
            engine.quotas.admit(identity.owner, address, publishing.count, len(request), engine.clock.now())
        async with self._budget.spend(len(request)):
            record = publishing.record(
                now=self.engine.clock.now(),
                entropy=os.urandom(publishing.entropy_size),
                max_attempts=self.settings.attempts(queue),
            )
            if publishing.has_ids:
                await self.engine.publish_once(record)
            else:
                await self.engine.publish_record(queue, record, publishing.count)

    async def join(self, identity: Identity, queue: str, address: str = "") -> Reader:
        """A consumer of the subscription all grpcq consumers of the queue share.

        Raises BrokerError.
        """
        self._must_serve()
        reader = Reader(self.engine, identity, address)
        await reader.join(check_source(queue), SUBSCRIPTION_NAME)
        self._topics[reader.subscription] = queue
        return reader

    async def consume(
        self,
        identity: Identity,
        queue: str,
        max_batch: int = 0,
        wait_s: float = 0.0,
        visibility_s: float = 0.0,
        address: str = "",
    ) -> tuple[int, list[Portion]]:
        """Up to `max_batch` messages, after waiting for the first, and the subscription they are of.

        They come back after `visibility_s` unless they are settled.
        Raises BrokerError.
        """
        reader = await self.join(identity, queue, address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as waiting:
                with self.serving(lambda: waiting.reschedule(loop.time())):
                    portions = await reader.fetch(
                        min(max_batch or BATCH_DEFAULT, BATCH_MAX),
                        min(wait_s, WAIT_S_MAX),
                        timed=True,
                        ack_wait_s=min(visibility_s or self.settings.ack_wait_s, VISIBILITY_S_MAX),
                    )
        except TimeoutError:
            portions = []
        finally:
            reader.forget()
        return reader.subscription, portions

    async def settle(
        self, identity: Identity, receipts: Sequence[bytes], failure: Failure | None = None
    ) -> dict[int, str]:
        """Ack these deliveries, or with a failure nack them; durable on return.

        Returns those that could not be, by their place, with the reason.
        """
        refused: dict[int, str] = {}
        if any(len(receipt) != RECEIPT.size for receipt in receipts):
            for index, receipt in enumerate(receipts):
                if len(receipt) != RECEIPT.size:
                    refused[index] = "not a receipt"
                else:
                    refused |= self._settle(identity, receipt, index, failure)
        else:
            refused = self._settle(identity, b"".join(receipts), 0, failure)
        await self.engine.recorded()
        return refused

    @property
    def waiting(self) -> int:
        """How many callers and streams wait for messages, or might."""
        return len(self._wakes)

    def drain(self) -> None:
        """Take no new work and let nobody wait any longer."""
        self.draining = True
        for wake in list(self._wakes):
            wake()

    @contextmanager
    def serving(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have somebody who waits be woken up when the broker drains."""
        self._wakes[wake] = None
        try:
            yield
        finally:
            self._wakes.pop(wake, None)

    def _must_serve(self) -> None:
        if self.draining:
            raise BrokerError(Code.DRAINING, "the broker is about to stop")

    def _settle(self, identity: Identity, receipts: bytes, index: int, failure: Failure | None) -> dict[int, str]:
        """Settle receipts, back to back, the first of which has this place; what could not be, by place."""
        refused: dict[int, str] = {}
        for subscription, attempt, first, count in group_receipts(receipts):
            if error := self._forbidden(identity, subscription):
                refused |= dict.fromkeys(range(index, index + count), error)
            else:
                failed = self._settle_range(subscription, attempt, first, count, failure)
                refused |= {index + place: UNKNOWN_RECEIPT for place in failed}
            index += count
        return refused

    def _settle_range(
        self, subscription: int, attempt: int, first: int, count: int, failure: Failure | None
    ) -> list[int]:
        """Settle neighbouring deliveries, all at once if they can be, else one by one; which could not be, from 0."""
        broker, now = self.engine.broker, self.engine.clock.now()
        ranges = [(first, count)]
        try:
            if failure is None:
                broker.ack(subscription, ranges, owner=SHARED_OWNER, attempt=attempt, now=now)
            else:
                broker.nack(
                    subscription, ranges, owner=SHARED_OWNER, attempt=attempt,
                    reason=failure.reason, dead=failure.dead, now=now,
                )  # fmt: skip
        except BrokerError:
            if count == 1:
                return [0]
            return [i for i in range(count) if self._settle_range(subscription, attempt, first + i, 1, failure)]
        return []

    def _forbidden(self, identity: Identity, subscription: int) -> str:
        """Why this caller may not settle what that subscription delivered; empty when it may."""
        topic = self._topics.get(subscription)
        if topic is None:
            info = self.engine.broker.subscription(subscription)
            if info is None or info.name != SUBSCRIPTION_NAME:
                return UNKNOWN_RECEIPT
            topic = self._topics[subscription] = info.topic
        return "" if identity.may_subscribe(topic) else f"not allowed to subscribe to {topic}"


class _Budget:
    """Bytes that may be on their way to the disk at once; one call always may."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spent = 0
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def spend(self, size: int) -> AsyncIterator[None]:
        """Wait for room for so many bytes, and give it back at the end."""
        while self._spent and self._spent + size > self._limit:
            self._freed.clear()
            await self._freed.wait()
        self._spent += size
        try:
            yield
        finally:
            self._spent -= size
            self._freed.set()
