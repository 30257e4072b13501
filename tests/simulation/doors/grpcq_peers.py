"""Peers at the grpcq door: callers that publish, consume and settle, and streams. Calls can be broken off anywhere."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from headrace.auth import ANONYMOUS
from headrace.model.errors import BrokerError, Code
from headrace.protocols.grpcq.deliveries import encoded
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import (
    ConsumeResponse,
    Delivery,
    NackRequest,
    PublishRequest,
    StreamRequest,
    StreamResponse,
)
from headrace.server.grpc_queues import Failure
from headrace.server.grpc_stream import StreamCall
from tests.simulation.doors.ledger import Fate, Sent
from tests.simulation.doors.machine import Server
from tests.simulation.doors.model import DEAD_AT_ONCE, VISIBILITY_S
from tests.simulation.doors.peer import Peer, Publisher
from tests.simulation.doors.wire import Gone
from tests.simulation.doors.world import World

INBOX_MAX = 4


class GrpcqRepeater(Publisher):
    """Publishes what it got no answer for again, by its ids, before and with anything new, until it is stored, once."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._unanswered: list[tuple[Sent, bytes]] = []
        self._topic = ""

    async def converse(self) -> None:
        world, chance = self.world, self.chance
        if not self._unanswered:
            self._topic = world.some_topic(chance)
        if not self._unanswered or self.rarely(0.5):
            for _ in range(chance.choice((1, 3, 10))):
                sent = world.ledger.new(self.name, self._topic)
                self._unanswered.append((sent, _envelope(sent, sent.value(world.padding(chance)))))
        envelopes = [data for _, data in self._unanswered]
        request = PublishRequest(queue=self._topic, messages=envelopes).SerializeToString()
        patience = chance.random() * 0.02 if self.rarely(0.5) else None
        try:
            async with asyncio.timeout(patience):
                await self.answer(world.machine.call(lambda server: server.queues.publish(ANONYMOUS, request)))
        except TimeoutError:
            return
        except BrokerError as error:
            _tolerate(error, Code.STORAGE)
            return
        for sent, _ in self._unanswered:
            world.ledger.decide(sent, Fate.CONFIRMED, self.life)
        self._unanswered.clear()


class GrpcqPublisher(Publisher):
    """A call that returns means that all is stored; one that is refused, that nothing is."""

    async def converse(self) -> None:
        world, chance = self.world, self.chance
        topic = world.some_topic(chance)
        sents = [world.ledger.new(self.name, topic) for _ in range(chance.choice((1, 3, 10)))]
        envelopes = [_envelope(sent, sent.value(world.padding(chance))) for sent in sents]
        request = PublishRequest(queue=topic, messages=envelopes).SerializeToString()
        patience = chance.random() * 0.02 if self.rarely(0.1) else None
        try:
            async with asyncio.timeout(patience):
                await self.answer(world.machine.call(lambda server: server.queues.publish(ANONYMOUS, request)))
        except TimeoutError:
            return
        except BrokerError as error:
            fate = Fate.REFUSED
            _tolerate(error, Code.STORAGE)
        else:
            fate = Fate.CONFIRMED
        for sent in sents:
            world.ledger.decide(sent, fate, self.life)


class GrpcqConsumer(Peer):
    """Takes a batch for a while and settles what it likes to, by receipt."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        super().__init__(world, name)
        self._topic = topic
        self._subscription = f"grpcq/{topic}"

    async def converse(self) -> None:
        machine, chance = self.world.machine, self.chance
        patience = chance.random() * 0.3 if self.rarely(0.1) else None
        try:
            async with asyncio.timeout(patience):
                data = await self.answer(machine.call(self._consume))
        except TimeoutError:
            return
        except BrokerError as error:
            _tolerate(error, Code.STORAGE)
            return
        held: dict[bytes, int] = {}
        for delivery in ConsumeResponse.FromString(data).deliveries:
            number = self.world.ledger.take(
                self._subscription,
                delivery.message,
                self.life,
                attempt=delivery.attempt,
                once=not delivery.receipt,
            )
            if delivery.receipt:
                held[delivery.receipt] = number
        if self.rarely(0.05):
            await self.pause(2 * VISIBILITY_S)
        elif held and not self.rarely(0.2):
            await self._settle(held)

    async def _consume(self, server: Server) -> bytes:
        count, wait_s = self.chance.choice((1, 3, 20)), self.chance.choice((0, 0.3, 2.0))
        taken = await server.queues.consume(ANONYMOUS, self._topic, count, wait_s, VISIBILITY_S)
        return encoded(*taken)

    async def _settle(self, held: dict[bytes, int]) -> None:
        failure = None
        if self.rarely(0.2):
            failure = Failure(*self.chance.choice((("no", False), (DEAD_AT_ONCE, True))))
        receipts = [receipt for receipt in held if not self.rarely(0.1)]
        if self.rarely(0.1):
            receipts += [*receipts[:1], b"nonsense"]
        life = self.life
        refused = await self.answer(
            self.world.machine.call(lambda server: server.queues.settle(ANONYMOUS, receipts, failure))
        )
        if failure is None:
            for place, receipt in enumerate(receipts):
                if place not in refused:
                    self.world.ledger.ack_confirmed(self._subscription, held[receipt], life)


class Channel:
    """Both directions of a stream, bounded as gRPC bounds them."""

    def __init__(self) -> None:
        self.over = False
        self.reading = True
        self._requests: deque[bytes] = deque()
        self._responses: deque[bytes] = deque()
        self._finished = False
        self._news = asyncio.Event()
        self._asked = asyncio.Event()
        self._room = asyncio.Event()

    def say(self, request: StreamRequest) -> None:
        self._requests.append(request.SerializeToString())
        self._asked.set()

    def finish(self) -> None:
        self._finished = True
        self._asked.set()

    def hold_reading(self, held: bool) -> None:
        self.reading = not held
        self._room.set()

    def end(self) -> None:
        """The call is over, however that came."""
        self.over = True
        self._news.set()

    async def hear(self) -> StreamResponse:
        """The next response. Raises Gone."""
        while not self._responses and not self.over:
            self._news.clear()
            await self._news.wait()
        if self.over:
            raise Gone
        self._room.set()
        return StreamResponse.FromString(self._responses.popleft())

    def __aiter__(self) -> "Channel":
        return self

    async def __anext__(self) -> bytes:
        while not self._requests:
            if self._finished:
                raise StopAsyncIteration
            self._asked.clear()
            await self._asked.wait()
        return self._requests.popleft()

    async def write(self, data: bytes) -> None:
        """The server's word; returns when there is room for more."""
        self._responses.append(data)
        self._news.set()
        while len(self._responses) >= INBOX_MAX or not self.reading:
            self._room.clear()
            await self._room.wait()


class GrpcqStreamer(Peer):
    """Reads a queue by a stream, within a window."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        super().__init__(world, name)
        self._topic = topic
        self._subscription = f"grpcq/{topic}"

    async def converse(self) -> None:
        channel = Channel()
        self._held: dict[bytes, int] = {}
        self._requests = 1
        channel.say(StreamRequest(queue=self._topic, window=self.chance.choice((1, 3, 30))))
        call = self.world.loop.create_task(self._call(channel))
        try:
            while self.wanted and not self.rarely(0.03):
                await self._read(channel)
            channel.over = True
            if not self.rarely(0.5):
                channel.finish()
                await self.answer(asyncio.shield(call))
        finally:
            channel.over = True
            call.cancel()

    async def _call(self, channel: Channel) -> None:
        timeout_s = self.world.machine.terrain.write_timeout_s
        try:
            await self.world.machine.call(
                lambda server: StreamCall(server.queues, ANONYMOUS, channel.write, timeout_s).run(channel)
            )
        except BrokerError as error:
            with suppress(Gone):
                _tolerate(error, Code.STORAGE, Code.LIMIT)
        except Gone:
            self.note("loses its stream")
        finally:
            channel.end()

    async def _read(self, channel: Channel) -> None:
        if self.rarely(0.03):
            channel.hold_reading(True)
            await self.pause(8.0)
            channel.hold_reading(False)
        if not self._held:
            await self._hear(channel, settles=False)
        elif self.rarely(0.1):
            await self.pause(1.0)
        else:
            await self._settle(channel)

    async def _hear(self, channel: Channel, *, settles: bool) -> StreamResponse:
        while True:
            response = await (self.answer(channel.hear()) if settles else channel.hear())
            self._take(channel, response.deliveries)
            if response.HasField("settled") or (response.deliveries and not settles):
                return response

    def _take(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            held = bool(delivery.receipt)
            number = self.world.ledger.take(
                self._subscription,
                delivery.message,
                self.life,
                holder=channel if held else None,
                attempt=delivery.attempt,
                once=not held,
            )
            if held:
                self._held[delivery.receipt] = number

    async def _settle(self, channel: Channel) -> None:
        ledger = self.world.ledger
        chosen = {receipt: number for receipt, number in self._held.items() if not self.rarely(0.3)}
        if not chosen:
            return
        nacks = [receipt for receipt in chosen if self.rarely(0.2)]
        acks = [receipt for receipt in chosen if receipt not in nacks]
        for receipt, number in chosen.items():
            del self._held[receipt]
            ledger.let_go(self._subscription, number)
        request = StreamRequest(acks=acks)
        if nacks:
            request.nacks.append(NackRequest(receipts=nacks, reason="no"))
        self._requests += 1
        channel.say(request)
        response = await self._hear(channel, settles=True)
        assert response.settled.request == self._requests
        assert not response.settled.refused, "what it held it could not settle"
        for receipt in acks:
            ledger.ack_confirmed(self._subscription, chosen[receipt], self.life)


def _envelope(sent: Sent, payload: bytes) -> bytes:
    """The message as it is sent, and sent again."""
    return Message(
        originator=sent.publisher,
        topic="shop.Orders",
        action="Place",
        payload=payload,
        message_id=f"id-{sent.number}",
        timestamp_ms=1,
    ).SerializeToString()


def _tolerate(error: BrokerError, *codes: Code) -> None:
    """Refusals that may be; a broker about to stop may refuse anything. Raises Gone then, and AssertionError."""
    if error.code is Code.DRAINING:
        raise Gone
    if error.code not in codes:
        raise AssertionError from error
