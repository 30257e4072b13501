"""Peers at the BlipMQ door: a publisher that fences, and consumers that share one subscription by its id."""

from headrace.protocols.blipmq.frames import (
    Frame,
    FrameType,
    decode_frame,
    decode_nack,
    decode_publish,
    decode_subscription_id,
    encode_ack,
    encode_auth,
    encode_hello,
    encode_ping,
    encode_poll,
    encode_publish,
    encode_subscribe,
)
from tests.simulation.doors.ledger import Fate, Sent
from tests.simulation.doors.machine import KEY, OTHER_KEY
from tests.simulation.doors.peer import PATIENCE_S, Peer, Publisher, Talk
from tests.simulation.doors.world import PLAIN, World

STORAGE = 500
UNKNOWN = 404


def parse(data: bytearray) -> tuple[Frame, int] | None:
    """The next frame."""
    frame = decode_frame(data, 0, len(data))
    return None if frame is None else (frame, frame.end)


async def greet(talk: Talk, key: str = KEY) -> None:
    """Say HELLO and AUTH."""
    await talk.say(encode_hello(1) + encode_auth(2, key))
    for tag in (1, 2):
        frame = await talk.hear(parse)
        assert (frame.type, frame.correlation_id) == (FrameType.ACK, tag)


async def until_pong(talk: Talk, tag: int) -> list[Frame]:
    """Every frame before the PONG with this tag."""
    frames = []
    while (frame := await talk.hear(parse)).type is not FrameType.PONG:
        frames.append(frame)
    assert frame.correlation_id == tag
    return frames


class BlipmqPublisher(Publisher):
    """Publishes a run, then asks for a PONG: what was not refused before it came is stored."""

    async def converse(self) -> None:
        talk = self.dial("blipmq")
        await greet(talk)
        while self.wanted and self.chance.random() < 0.9:
            await self._publish(talk)
            await self.pause(0.3)
        if self.rarely(0.5):
            talk.wire.reset()
        else:
            talk.wire.finish()

    async def _publish(self, talk: Talk) -> None:
        chance, ledger = self.chance, self.world.ledger
        by_tag: dict[int, Sent] = {}
        run = b""
        for tag in range(chance.choice((1, 2, 5, 20))):
            sent = ledger.new(talk.wire.name, self.world.some_topic(chance), qos=chance.choice((1, 1, 1, 0)))
            by_tag[tag] = sent
            run += encode_publish(tag, sent.topic, sent.value(self.world.padding(chance)), sent.qos)
        await talk.say(run + encode_ping(77))
        if self.rarely(0.03):
            talk.leave()
        for frame in await until_pong(talk, 77):
            assert frame.type is FrameType.NACK
            assert decode_nack(frame.payload).code == STORAGE
            ledger.decide(by_tag.pop(frame.correlation_id), Fate.REFUSED, self.life)
        for sent in by_tag.values():
            if sent.qos:
                ledger.decide(sent, Fate.CONFIRMED, self.life)


class Team:
    """Consumers that share a subscription; whoever comes first makes it."""

    def __init__(self, topic: str, qos: int) -> None:
        self.topic = topic
        self.qos = qos
        self.subscription = 0

    @property
    def name(self) -> str:
        """What the ledger calls the subscription."""
        return f"blipmq/{self.subscription}"


class BlipmqConsumer(Peer):
    """Polls, fences, acks what it likes to, fences again."""

    def __init__(self, world: World, name: str, team: Team) -> None:
        super().__init__(world, name)
        self._team = team

    async def converse(self) -> None:
        talk = self.dial("blipmq")
        await greet(talk)
        if not self._team.subscription:
            await self._subscribe(talk)
        while self.wanted and not self.rarely(0.05):
            await self._poll(talk)
            await self.pause(0.2)
        talk.leave()

    async def _subscribe(self, talk: Talk) -> None:
        await talk.say(encode_subscribe(3, self._team.topic, self._team.qos))
        frame = await talk.hear(parse)
        if frame.type is FrameType.NACK:
            assert decode_nack(frame.payload).code == STORAGE
            talk.leave()
        if not self._team.subscription:
            self._team.subscription = decode_subscription_id(FrameType.ACK, frame.payload)
            self.world.read.add(self._team.name)

    async def _poll(self, talk: Talk) -> None:
        team, ledger = self._team, self.world.ledger
        polls = encode_poll(9, team.subscription) * self.chance.choice((1, 3, 10, 40))
        if self.rarely(0.1):
            polls = (encode_poll(9, team.subscription) + encode_poll(9, 1 << 40)) * 100
        await talk.say(polls + encode_ping(10))
        if self.rarely(0.05):
            await talk.stop_reading(8.0)
        held: dict[int, int] = {}
        for frame in await until_pong(talk, 10):
            assert frame.type is FrameType.PUBLISH
            carried = decode_publish(frame.payload)
            number = ledger.take(team.name, carried.message, self.life, once=not carried.qos)
            if carried.qos:
                held[frame.correlation_id] = number
        await self._settle(talk, {tag: number for tag, number in held.items() if not self.rarely(0.2)})

    async def _settle(self, talk: Talk, held: dict[int, int]) -> None:
        """Ack, now and then what it does not hold; whatever is not refused is done for ever."""
        team = self._team
        if self.rarely(0.1):
            await self.pause(1.0)
        acks = [encode_ack(tag, team.subscription) for tag in held]
        if self.rarely(0.05):
            acks.append(encode_ack(1 << 40, team.subscription))
        if not acks:
            return
        await talk.say(b"".join(acks) + encode_ping(11))
        for frame in await until_pong(talk, 11):
            assert frame.type is FrameType.NACK
            assert decode_nack(frame.payload).code == UNKNOWN
            held.pop(frame.correlation_id, None)
        for number in held.values():
            self.world.ledger.ack_confirmed(team.name, number, self.life)


class BlipmqNewcomer(Publisher):
    """Subscribes, and then publishes: whatever is stored after the one was answered must come by it.

    Its key is its own, so that nobody else is handed its subscriptions.
    """

    async def converse(self) -> None:
        talk, ledger = self.dial("blipmq"), self.world.ledger
        await greet(talk, OTHER_KEY)
        early = ledger.new(talk.wire.name, PLAIN)
        await talk.say(encode_publish(4, PLAIN, early.value(0)) + encode_subscribe(5, PLAIN) + encode_ping(6))
        told = {frame.correlation_id: frame for frame in await until_pong(talk, 6)}
        ledger.decide(early, Fate.REFUSED if 4 in told else Fate.CONFIRMED, self.life)
        if told[5].type is FrameType.NACK:
            talk.leave()
        subscription = decode_subscription_id(FrameType.ACK, told[5].payload)
        late = ledger.new(talk.wire.name, PLAIN)
        await talk.say(encode_publish(7, PLAIN, late.value(0)) + encode_ping(8))
        refused = await until_pong(talk, 8)
        ledger.decide(late, Fate.REFUSED if refused else Fate.CONFIRMED, self.life)
        if not refused:
            await self._find(talk, subscription, late)
        await self.pause(2.0)

    async def _find(self, talk: Talk, subscription: int, wanted: Sent) -> None:
        """Poll, and ack what comes before it, until it comes."""
        until = self.world.loop.time() + PATIENCE_S
        while True:
            assert self.world.loop.time() < until, f"{wanted} never came"
            await talk.say(encode_poll(9, subscription) * 50 + encode_ping(10))
            frames = [frame for frame in await until_pong(talk, 10) if frame.type is FrameType.PUBLISH]
            found = [decode_publish(frame.payload).message for frame in frames]
            if wanted.number in [self.world.ledger.take(f"blipmq/{subscription}", m, self.life) for m in found]:
                return
            await talk.say(b"".join(encode_ack(frame.correlation_id, subscription) for frame in frames))
            await self.pause(0.2)
