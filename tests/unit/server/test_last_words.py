"""What a peer is told before it is cut off: everything that was asked for before the bytes its protocol forbids.

A stream that ends in a violation is answered byte for byte as the same stream without it, however it is cut, whether
the disk is quick or slow, and then it is closed, once. Only an SSPQ RECEIVE that still waits gets nothing any more.
"""

import asyncio
import struct
from collections.abc import Callable
from random import Random

import pytest

from headrace.auth import ANONYMOUS, Keyring
from headrace.protocols.blipmq.session import BlipmqSession
from headrace.protocols.spec import Session
from headrace.protocols.sspq import SspqSession, SspqSettings, frames
from headrace.server.conversation import Conversation, Terms
from headrace.testing import KEY, broker
from tests.harness.peer import ACK, DEV_KEY, NACK, PING, POLL, PONG, PUBLISH, SUBSCRIBE, frame, handshake, publish
from tests.harness.stream import connected
from tests.simulation.virtual_engine import Shop, in_virtual_time

TOPICS = (b"a", b"b")
SEEDS = range(40)

BLIPMQ_VIOLATIONS = [
    struct.pack(">I", 0),
    struct.pack(">I", 8),
    struct.pack(">I", (16 << 20) + 1) + bytes(100),
    frame(0, 1),
    frame(10, 1, b"rest"),
    frame(255, 1) + frame(PING, 99),
]
SSPQ_VIOLATIONS = [b"\x54", b"\x55\x98", b"GET / HTTP/1.1\r\n", frames.encode_send(0, b"")[:4] + b"\xff\xff\xff\xff"]


class Ear:
    """An outlet that listens and hands in bytes as a transport does."""

    def __init__(self, shop: Shop, session: Session, *, known: bool) -> None:
        terms = Terms(
            keyring=lambda: Keyring.from_settings([DEV_KEY.decode()]), pending_bytes_max=1 << 30, stand_us=2000
        )
        self.heard = b""
        self.closed = 0
        self._rest = b""
        self._conversation = Conversation(shop.engine, session, self, terms, ANONYMOUS if known else None)

    def say(self, data: bytes) -> None:
        self._rest += data
        self.proceed()

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.heard += data

    def congested(self) -> bool:
        return False

    def close(self) -> None:
        self.closed += 1

    def proceed(self) -> None:
        if not self._conversation.closing:
            self._rest = self._rest[self._conversation.receive(memoryview(self._rest)) :]


def blipmq_words(chance: Random) -> list[bytes]:
    """Frames of a client that knows its trade, wrong requests included."""
    words = [handshake(), *(frame(SUBSCRIBE, 3, struct.pack(">H", 1) + topic + b"\x01") for topic in TOPICS)]
    for tag in range(chance.randrange(1, 12)):
        named = struct.pack(">Q", chance.randrange(1, 4))
        words.append(
            chance.choice(
                [
                    frame(PING, tag),
                    publish(chance.choice(TOPICS), b"%d" % tag, tag),
                    publish(b"", b"refused", tag),
                    frame(POLL, tag, named),
                    frame(ACK, chance.randrange(1, 4), named),
                    frame(SUBSCRIBE, tag, b"\x00\x01a\x01"),
                    frame(NACK, tag),
                ]
            )
        )
    return words


def sspq_words(chance: Random) -> list[bytes]:
    """Packets of a client that knows its trade."""
    kinds: list[Callable[[], bytes]] = [
        lambda: frames.encode_send(chance.randrange(3), b"%d" % chance.randrange(10)),
        frames.encode_receive,
        frames.encode_confirm,
        frames.encode_dead_receive,
    ]
    return [chance.choice(kinds)() for _ in range(chance.randrange(1, 10))]


DOORS: dict[str, tuple[Callable[[], Session], Callable[[Random], list[bytes]], list[bytes], bool]] = {
    "blipmq": (BlipmqSession, blipmq_words, BLIPMQ_VIOLATIONS, False),
    "sspq": (lambda: SspqSession(SspqSettings()), sspq_words, SSPQ_VIOLATIONS, True),
}


async def told(shop: Shop, door: str, words: list[bytes], end: bytes, chance: Random) -> bytes:
    """What the broker answers to words that end so, having closed if it should have, and only then."""
    new_session, _, _, known = DOORS[door]
    ear = Ear(shop, new_session(), known=known)
    data = b"".join(words)
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
    if known:
        await part_by_part(shop, ear, data, [*cuts, len(data)], chance)
        cuts = []
    await part_by_part(shop, ear, data[len(data) * known :] + end, cuts, chance)
    assert ear.closed == bool(end)
    return ear.heard


async def part_by_part(shop: Shop, ear: Ear, data: bytes, cuts: list[int], chance: Random) -> None:
    """Hand in the data, and wait until everything is quiet."""
    slow = chance.random() < 0.5
    for first, last in zip([0, *cuts], [*cuts, len(data)], strict=True):
        shop.worker.held = slow and bool(first)
        ear.say(data[first:last])
        if chance.random() < 0.5:
            await shop.quiet()
        if shop.worker.held:
            shop.worker.let_go()
    await shop.quiet()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_violation_takes_nothing_back_of_what_was_answered_before_it(door: str, seed: int) -> None:
    _, words_of, violations, _ = DOORS[door]
    words = words_of(Random(seed))
    heard = []

    for number, end in enumerate([b"", *violations]):

        @in_virtual_time
        async def run(shop: Shop, end: bytes = end, number: int = number) -> None:
            heard.append(await told(shop, door, words, end, Random(seed if door == "sspq" else 100 * seed + number)))

        run()
    assert heard == heard[:1] * (1 + len(violations))


async def test_the_last_words_reach_a_peer_that_keeps_talking() -> None:
    """Over a socket, deliveries and all: what it still sends is read, so that the system takes nothing back."""
    async with broker() as node, connected(node) as peer:
        subscription = await peer.subscribe(b"wide")
        values = [bytes([i]) * (1 << 20) for i in range(8)]
        peer.send(b"".join(publish(b"wide", value) for value in values))
        await peer.fence()
        polls = frame(POLL, 7, subscription.to_bytes(8)) * len(values)
        peer.send(publish(b"wide", b"last") + polls + frame(PING, 9) + frame(0, 0) + bytes(1 << 20))
        found = [await peer.read() for _ in range(len(values) + 1)]
        assert [kind for kind, _, _ in found] == [PUBLISH] * len(values) + [PONG]
        assert [payload[-(1 << 20) :] for _, _, payload in found[:-1]] == values
        assert await peer.reader.read() == b""


async def test_a_peer_that_talks_on_for_ever_is_cut_off() -> None:
    async with broker(auth={"api_keys": [KEY]}) as node, connected(node) as peer:
        peer.send(frame(0, 0))

        async def talk_on() -> None:
            while True:
                peer.send(bytes(1 << 20))
                await peer.writer.drain()
                await asyncio.sleep(0)

        with pytest.raises(ConnectionError):
            await talk_on()
