"""One million broken inputs for the SSPQ session.

Whatever arrives, however it is split: only PeerProtocolError escapes, no more is consumed than was given, every request
is answered for, memory stays bounded, splitting changes nothing, and compiled and interpreted kernels agree.
"""

import importlib
import random
import resource
import struct
from collections.abc import Iterator

import pytest

from headrace.kernels import load_source
from headrace.model.batch import Batch, build_batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Ack, Fetch, Publish, Request, Subscribe
from headrace.protocols.sspq import SspqSession, SspqSettings, frames

SHARDS = 8
INPUTS = 1_000_000 // SHARDS
COMPARED_EVERY = 10
GROWTH_MAX_KIB = 64 * 1024
PAYLOAD_MAX = 1 << 16

IMPORTED = importlib.import_module("headrace.kernels.sspq")
INTERPRETED = load_source("sspq", "fuzzed_sspq")
SETTINGS = [
    SspqSettings(max_payload=PAYLOAD_MAX),
    SspqSettings(max_payload=20, dead_letter=False),
    SspqSettings(max_payload=PAYLOAD_MAX, force_retries=2),
]
KINDS = [*frames.PacketType, 0x00, 0x01, 0x55, 0x99]

Fact = tuple[object, ...]


def packet(chance: random.Random) -> bytes:
    """A packet that is valid, or nearly."""
    match chance.randrange(10):
        case 0 | 1:
            return frames.encode_receive()
        case 2 | 3:
            return frames.encode_confirm()
        case 4:
            return frames.encode_dead_receive()
        case 5:
            return frames.encode_packet(
                chance.choice(KINDS), chance.randrange(256), chance.randbytes(chance.randrange(12))
            )
        case _:
            return frames.encode_send(chance.choice((0, 3, 3, 3, 255)), chance.randbytes(chance.randrange(24)))


def inputs(chance: random.Random, count: int) -> Iterator[bytes]:
    """Streams of packets with bytes flipped, cut out, doubled or replaced, and some that never were packets."""
    stock = [b"".join(packet(chance) for _ in range(chance.randrange(1, 6))) for _ in range(2000)]
    for _ in range(count):
        data = stock[chance.randrange(2000)]
        at = chance.randrange(len(data))
        match chance.randrange(8):
            case 0:
                data = data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[at + 1 + chance.randrange(4) :]
            case 3:
                data = data[:at] + data[at // 2 :]
            case 4:
                size = chance.choice((0, 1, 20, 21, 2**16, 2**16 + 1, 2**24, 2**32 - 1))
                data += struct.pack(">HBBI", 0x5599, chance.choice(KINDS), 3, size) + data[:at]
            case 5:
                data = chance.randbytes(at)
            case _:
                data += stock[chance.randrange(2000)]
        yield data


class Answering:
    """A broker that has a message for two requests of three, refuses some, and lets the others wait."""

    def __init__(self, session: SspqSession) -> None:
        self.facts: list[Fact] = []
        self._session = session
        self._asked = 0

    def answer(self, request: Request) -> None:
        """Answer a request, and note what it asked in a form no splitting can change."""
        match request:
            case Subscribe(tag, topic):
                self.facts.append(("subscribe", topic))
                self._session.subscribed(tag, -tag)
            case Publish(topic, qos, count, record, tags):
                batch = Batch(record, RECORD_HEADER_SIZE, 0)
                assert (batch.topic, batch.qos, batch.count, tags) == (topic, qos, count, b"")
                self.facts += (("publish", batch.max_attempts, batch.value(i)) for i in range(count))
            case Ack(subscription, [(delivery, 1)]):
                self.facts.append(("ack", subscription, delivery))
            case Fetch(tag, subscription, 1):
                self.facts.append(("fetch", subscription))
                self._asked += 1
                if self._asked % 7 == 6:
                    self._session.refused(tag, BrokerError(Code.DRAINING, "stopping"))
                elif self._asked % 3:
                    part = build_batch("sspq", [b"%d" % self._asked], timestamp_us=0, max_attempts=4)
                    self._session.fetched(tag, [Portion(Batch(part, 0, 0), 0, 1, self._asked, 2)])
            case _:
                raise AssertionError(request)


def converse(pieces: list[bytes], settings: SspqSettings) -> tuple[list[Fact], bytes, bool]:
    """Feed a session; what it asked for, what it said, and whether it cut the peer off."""
    session = SspqSession(settings)
    broker = Answering(session)
    rest = b""
    try:
        for piece in pieces:
            rest += piece
            asked = True
            while asked:
                consumed, requests = session.receive(memoryview(rest), 0)
                assert 0 <= consumed <= len(rest)
                rest = rest[consumed:]
                asked = bool(requests)
                for request in requests:
                    broker.answer(request)
            assert len(rest) < session.bytes_wanted(memoryview(rest)) <= frames.HEAD_SIZE + settings.max_payload
    except PeerProtocolError:
        return broker.facts, session.data_to_send(), True
    return broker.facts, session.data_to_send(), False


def compare_kernels(data: bytes, settings: SspqSettings) -> None:
    forced = -1 if settings.force_retries is None else settings.force_retries
    arguments = (data, 0, len(data), "sspq", forced, settings.max_payload, 1)
    assert IMPORTED.scan_sends(*arguments) == INTERPRETED.scan_sends(*arguments)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_million_broken_inputs(shard: int) -> None:
    chance = random.Random(shard)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, data in enumerate(inputs(chance, INPUTS)):
        settings = SETTINGS[number % len(SETTINGS)]
        whole = converse([data], settings)
        assert len(whole[1]) <= 2 * len(data) + 64
        if number % COMPARED_EVERY == 0:
            at = chance.randrange(len(data) + 1)
            assert converse([data[:at], data[at:]], settings) == whole, data.hex()
            compare_kernels(data, settings)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_MAX_KIB


@pytest.mark.parametrize("shard", range(4))
def test_byte_by_byte_is_the_same_as_whole(shard: int) -> None:
    chance = random.Random(100 + shard)
    for number, data in enumerate(inputs(chance, 2000)):
        settings = SETTINGS[number % len(SETTINGS)]
        single = converse([data[i : i + 1] for i in range(len(data))], settings)
        assert single == converse([data], settings), data.hex()
