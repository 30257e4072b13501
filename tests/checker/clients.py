"""Publishers and consumers of all four doors that write down what they did and what they were told.

Each is a task that goes on through lost connections until it is told to stop. A refusal is written down as refused, an
answer that never came as unknown. Consumers settle most of what they get, fail some, and let some go.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic

from headrace.model.errors import HeadraceError
from headrace.protocols.blipmq import client as blipmq
from headrace.protocols.fujin import client as fujin
from headrace.protocols.grpcq import client as grpcq
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.sspq import client as sspq
from headrace.server.dev_certificate import DEV_CERT_NAME
from tests.checker.history import History, Kind, Op, Outcome, place, value_in, values

TOPICS = ("a", "b")
QUEUE = "sspq"
RETRIES = 4
WAIT_S = 0.3
REPLY_S = 20.0
PAUSE_S = 0.05
BATCH = 8
POISON_EVERY = 40


@dataclass
class Bench:
    """Where the broker is, what is written down, and whether it is time to stop or to drain."""

    endpoints: dict[str, str]
    data_dir: Path
    history: History
    seed: int
    publishing: asyncio.Event = field(default_factory=asyncio.Event)
    consuming: asyncio.Event = field(default_factory=asyncio.Event)
    draining: bool = False
    delivered_at: float = 0.0

    def begin(self, lane: str, kind: Kind, topic: str, subscription: str, published: tuple[str, ...]) -> Op:
        """Write down that an operation begins."""
        return self.history.begin(lane, kind, topic, subscription, published, monotonic())

    def took(self, lane: str, topic: str, subscription: str, asked: float, found: list[tuple[str, int]]) -> None:
        """Write down what came; an attempt of 0 is one the door does not tell."""
        if not found:
            return
        self.delivered_at = monotonic()
        op = self.history.begin(lane, Kind.TAKE, topic, subscription, tuple(value for value, _ in found), asked)
        op.attempts = tuple(attempt for _, attempt in found) if found[0][1] else ()
        op.ended, op.outcome = self.delivered_at, Outcome.OK

    @property
    def security(self) -> fujin.Security:
        """Whose certificate a Fujin client trusts."""
        return fujin.Security(ca=self.data_dir / DEV_CERT_NAME)


@asynccontextmanager
async def told(op: Op) -> AsyncIterator[None]:
    """Write down how an operation ends. Raises only what says that the connection is gone."""
    try:
        yield
    except (blipmq.Refused, fujin.Refused, grpcq.Refused):
        op.outcome = Outcome.REFUSED
    else:
        op.outcome = Outcome.OK
    finally:
        op.ended = monotonic()


@asynccontextmanager
async def told_each(bench: Bench, lane: str, topic: str, batch: tuple[str, ...]) -> AsyncIterator[None]:
    """Write down a publish of several messages, each of which is stored or refused by itself."""
    ops = [bench.begin(lane, Kind.PUBLISH, topic, "", (value,)) for value in batch]
    refused: tuple[int, ...] | None = None
    try:
        yield
        refused = ()
    except (blipmq.Refused, fujin.Refused) as error:
        refused = tuple(error.indexes)
    finally:
        for place, op in enumerate(ops):
            op.ended = monotonic()
            if refused is not None:
                op.outcome = Outcome.REFUSED if place in refused else Outcome.OK


class Lane:
    """One client that goes on until it may stop. `session` is one connection's life."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench = bench
        self.name = name
        self.chance = random.Random(f"{bench.seed}-{name}")

    async def run(self) -> None:
        """Connect, work, and begin again whenever the connection is lost."""
        while not self.over():
            with suppress(HeadraceError, TimeoutError, OSError):
                await self.session()
            await self.pause()

    async def pause(self) -> None:
        """Wait a little, or less when all is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.bench.consuming.wait(), self.chance.uniform(0, 2 * PAUSE_S))

    def over(self) -> bool:
        """Whether there is nothing more to do."""
        raise AssertionError("a lane is a publisher or a consumer")

    async def session(self) -> None:
        """Work over one connection for as long as it lives."""
        raise AssertionError("a lane speaks one protocol")


class PublishingLane(Lane):
    """Publishes to every topic in turn."""

    topics: tuple[str, ...] = TOPICS

    def __init__(self, bench: Bench, name: str) -> None:
        super().__init__(bench, name)
        self._values: dict[str, Iterator[str]] = {topic: values(name, topic) for topic in self.topics}

    def over(self) -> bool:
        """Publishers stop first."""
        return self.bench.publishing.is_set()

    def batch(self) -> tuple[str, tuple[str, ...]]:
        """A topic and the next values for it."""
        topic = self.chance.choice(self.topics)
        return topic, self.of(topic, self.chance.randint(1, BATCH))

    def of(self, topic: str, count: int) -> tuple[str, ...]:
        """The next values of a topic."""
        return tuple(islice(self._values[topic], count))


class BlipmqPublisher(PublishingLane):
    """Bursts with a fence behind each."""

    async def session(self) -> None:
        """Publish until the connection is lost."""
        settings = blipmq.ClientSettings(reply_timeout_s=REPLY_S)
        async with await blipmq.BlipmqClient.connect(
            self.bench.endpoints["blipmq"], "dev-key", settings=settings
        ) as client:
            while not self.over():
                topic, batch = self.batch()
                async with told_each(self.bench, self.name, topic, batch):
                    await client.publish_many(topic, [value.encode() for value in batch])
                await self.pause()


class SspqPublisher(PublishingLane):
    """Sends, and is told nothing."""

    topics = (QUEUE,)

    async def session(self) -> None:
        """Send until the connection is lost."""
        async with await sspq.SspqClient.connect(self.bench.endpoints["sspq"]) as client:
            while not self.over():
                topic, batch = self.batch()
                op = self.bench.begin(self.name, Kind.PUBLISH, topic, "", batch)
                await client.send_many([value.encode() for value in batch], retries=RETRIES)
                op.ended = monotonic()
                await self.pause()


class FujinPublisher(PublishingLane):
    """Confirmed writes, and transactions over both topics, some of which are rolled back."""

    async def session(self) -> None:
        """Write until the connection is lost."""
        settings = fujin.ClientSettings(reply_timeout_s=REPLY_S)
        async with await fujin.FujinClient.connect(
            self.bench.endpoints["fujin"], security=self.bench.security, settings=settings
        ) as client:
            writer = await client.writer()
            while not self.over():
                if self.chance.random() < 0.5:
                    await self._write(writer)
                else:
                    await self._transact(writer)
                await self.pause()

    async def _write(self, writer: fujin.FujinWriter) -> None:
        topic, batch = self.batch()
        async with told_each(self.bench, self.name, topic, batch):
            await writer.write_many(topic, [value.encode() for value in batch])

    async def _transact(self, writer: fujin.FujinWriter) -> None:
        parts = {topic: self.of(topic, self.chance.randint(1, 3)) for topic in self.topics}
        whole = tuple(value for batch in parts.values() for value in batch)
        op = self.bench.begin(self.name, Kind.TRANSACT, ",".join(parts), "", whole)
        async with told(op):
            await writer.begin()
            for topic, batch in parts.items():
                await writer.write_many(topic, [value.encode() for value in batch])
            if self.chance.random() < 0.3:
                await writer.rollback()
                raise fujin.Refused("rolled back")
            await writer.commit()


class GrpcqPublisher(PublishingLane):
    """Calls of several messages, each stored whole or not at all."""

    async def session(self) -> None:
        """Publish until the connection is lost."""
        async with grpcq.GrpcqClient(self.bench.endpoints["grpc"], "dev-key", timeout_s=REPLY_S) as client:
            while not self.over():
                topic, batch = self.batch()
                op = self.bench.begin(self.name, Kind.TRANSACT, topic, "", batch)
                envelopes = [Message(topic="check.Checker", action="Check", payload=v.encode()) for v in batch]
                async with told(op):
                    await client.publish(topic, envelopes)
                await self.pause()


class ConsumingLane(Lane):
    """Consumes one topic by one subscription, which has the lane's door in its name."""

    def __init__(self, bench: Bench, name: str, topic: str) -> None:
        super().__init__(bench, name)
        self.topic = topic
        self.subscription = f"{name.rstrip('0123456789')}-{topic}"

    def over(self) -> bool:
        """Consumers go on until everything is drained."""
        return self.bench.consuming.is_set()

    def chosen(self, found: list[str]) -> tuple[list[int], list[int]]:
        """Which of the deliveries are acked and which fail; the others are let go. Some values fail whoever tries."""
        lots = [self._lot(value) for value in found]
        return [i for i, lot in enumerate(lots) if lot < 0.85], [i for i, lot in enumerate(lots) if lot >= 0.93]

    def _lot(self, value: str) -> float:
        if place(value)[2] % POISON_EVERY == POISON_EVERY - 1:
            return 1.0
        return 0.0 if self.bench.draining else self.chance.random()

    def settling(self, kind: Kind, found: list[str], indices: list[int]) -> Op:
        """Write down that these deliveries are about to be settled."""
        chosen = tuple(found[index] for index in indices)
        return self.bench.begin(self.name, kind, self.topic, self.subscription, chosen)


class BlipmqConsumer(ConsumingLane):
    """Polls a subscription that outlives its connections."""

    def __init__(self, bench: Bench, name: str, topic: str, number: int) -> None:
        super().__init__(bench, name, topic)
        self._number = number

    async def session(self) -> None:
        """Take and ack until the connection is lost. The client reads ahead: a take was asked for during the last."""
        settings = blipmq.ClientSettings(prefetch=BATCH, reply_timeout_s=REPLY_S)
        async with await blipmq.BlipmqClient.connect(
            self.bench.endpoints["blipmq"], "dev-key", settings=settings
        ) as client:
            subscription = client.subscription(self._number)
            asked = monotonic()
            while not self.over():
                now = monotonic()
                deliveries = await asyncio.wait_for(subscription.take(BATCH, wait=False), REPLY_S)
                found = [value_in(delivery.message) for delivery in deliveries]
                self.bench.took(self.name, self.topic, self.subscription, asked, [(value, 0) for value in found])
                asked = now
                acks, _ = self.chosen(found)
                if acks:
                    op = self.settling(Kind.ACK, found, acks)
                    async with told(op):
                        await subscription.ack([deliveries[index] for index in acks])
                        await client.fence()
                if not found:
                    await self.pause()


class SspqConsumer(ConsumingLane):
    """Holds one message at a time. A confirmation is not answered, so nothing is known of it."""

    async def session(self) -> None:
        """Receive and confirm until the connection is lost, or given up to fail a message."""
        async with await sspq.SspqClient.connect(self.bench.endpoints["sspq"]) as client:
            while not self.over():
                asked = monotonic()
                try:
                    delivery = await client.receive(timeout=WAIT_S)
                except TimeoutError:
                    return
                value = value_in(delivery.payload)
                self.bench.took(self.name, self.topic, self.subscription, asked, [(value, 0)])
                acks, _ = self.chosen([value])
                if not acks:
                    return
                op = self.settling(Kind.ACK, [value], acks)
                await delivery.confirm()
                op.ended = monotonic()


class FujinConsumer(ConsumingLane):
    """Fetches; shares the topic's subscription with its kind."""

    async def session(self) -> None:
        """Fetch and settle until the connection is lost."""
        settings = fujin.ClientSettings(reply_timeout_s=REPLY_S)
        async with await fujin.FujinClient.connect(
            self.bench.endpoints["fujin"], security=self.bench.security, settings=settings
        ) as client:
            reader = await client.reader(self.topic)
            while not self.over():
                asked = monotonic()
                deliveries = await reader.fetch(self.chance.randint(1, BATCH))
                found = [value_in(delivery.value) for delivery in deliveries]
                self.bench.took(self.name, self.topic, self.subscription, asked, [(value, 0) for value in found])
                acks, nacks = self.chosen(found)
                for kind, settle, indices in ((Kind.ACK, reader.ack, acks), (Kind.NACK, reader.nack, nacks)):
                    if indices:
                        op = self.settling(kind, found, indices)
                        done = await settle([deliveries[index].id for index in indices])
                        op.values = tuple(value for value, sure in zip(op.values, done, strict=True) if sure)
                        op.ended, op.outcome = monotonic(), Outcome.OK


class GrpcqConsumer(ConsumingLane):
    """Consumes by unary calls, and is told the attempt."""

    async def session(self) -> None:
        """Consume and settle until the connection is lost."""
        async with grpcq.GrpcqClient(self.bench.endpoints["grpc"], "dev-key", timeout_s=REPLY_S) as client:
            while not self.over():
                asked = monotonic()
                deliveries = await client.consume(self.topic, self.chance.randint(1, BATCH), wait_s=WAIT_S)
                found = [value_in(delivery.message) for delivery in deliveries]
                told_attempts = [(value, each.attempt) for value, each in zip(found, deliveries, strict=True)]
                self.bench.took(self.name, self.topic, self.subscription, asked, told_attempts)
                acks, nacks = self.chosen(found)
                for kind, settle, indices in ((Kind.ACK, client.ack, acks), (Kind.NACK, client.nack, nacks)):
                    if indices:
                        op = self.settling(kind, found, indices)
                        refused = {each.index for each in await settle([deliveries[i].receipt for i in indices])}
                        op.values = tuple(value for place, value in enumerate(op.values) if place not in refused)
                        op.ended, op.outcome = monotonic(), Outcome.OK
