"""Peers at the SSPQ door: senders that hear nothing, receivers that hold one message at a time."""

from headrace.protocols.sspq.frames import (
    HEAD_SIZE,
    Head,
    PacketType,
    decode_head,
    encode_confirm,
    encode_dead_receive,
    encode_other,
    encode_receive,
    encode_send,
)
from tests.simulation.doors.peer import Peer, Publisher, Talk
from tests.simulation.doors.world import World

PAYLOAD_MAX = 1 << 24


def parse(data: bytearray) -> tuple[tuple[Head, bytes], int] | None:
    """The next packet."""
    head = decode_head(data, 0, len(data), PAYLOAD_MAX)
    if head is None or len(data) < HEAD_SIZE + head.size:
        return None
    return (head, bytes(data[HEAD_SIZE : HEAD_SIZE + head.size])), HEAD_SIZE + head.size


class SspqSender(Publisher):
    """Sends and hopes."""

    async def converse(self) -> None:
        talk = self.dial("sspq")
        while self.wanted and not self.rarely(0.1):
            run = b""
            for _ in range(self.chance.choice((1, 1, 3, 12))):
                retries = self.chance.choice((0, 1, 2, 4, 255))
                sent = self.world.ledger.new(talk.wire.name, self.world.queue, retries=retries)
                run += encode_send(retries, sent.value(self.world.padding(self.chance)))
            await talk.say(run)
            await self.pause(0.4)
        if self.rarely(0.3):
            await talk.say(b"\x00 no packet")
            await self.pause(0.2)
        if self.rarely(0.5):
            talk.wire.reset()
        else:
            talk.wire.finish()


class SspqReceiver(Peer):
    """Receives, and confirms or goes away; or receives what others gave up, which nobody can tell apart afterwards."""

    def __init__(self, world: World, name: str, *, dead: bool) -> None:
        super().__init__(world, name)
        self._dead = dead
        self._subscription = f"sspq/$dead.{world.queue}" if dead else f"sspq/{world.queue}"
        self._ask = encode_dead_receive() if dead else encode_receive()

    async def converse(self) -> None:
        talk = self.dial("sspq")
        while self.wanted:
            await talk.say(self._ask * self.chance.choice((1, 1, 2)))
            if self.rarely(0.1):
                await self.pause(0.5)
                talk.leave()
            if self.rarely(0.03):
                await talk.stop_reading(4.0)
            head, payload = await talk.hear(parse, idle=True)
            if head.kind == PacketType.NO_RECEIVE:
                talk.leave()
            await self._hold(talk, head, payload)

    async def _hold(self, talk: Talk, head: Head, payload: bytes) -> None:
        world = self.world
        assert head.kind == PacketType.SEND
        number = world.ledger.take(
            self._subscription,
            payload,
            self.life,
            holder=talk.wire,
            attempt=None if self._dead else self._attempt(head, payload),
        )
        await self.pause(2.0 if self.rarely(0.05) else 0.05)
        if self.rarely(0.25):
            talk.leave()
        if self.rarely(0.05):
            talk.wire.finish()
            await self.pause(0.5)
            talk.leave()
        if talk.wire.over:
            talk.leave()
        if self.rarely(0.05):
            await talk.say(encode_other() + self._ask)
        world.ledger.let_go(self._subscription, number)
        await talk.say(encode_confirm())

    def _attempt(self, head: Head, payload: bytes) -> int | None:
        return self.world.ledger.retries_left(self._subscription, payload, self.life, head.retries)
