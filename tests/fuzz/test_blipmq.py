"""One million broken inputs for the BlipMQ session.

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
from headrace.model.batch import Batch
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Ack, Authenticate, Exchange, Fence, Publish, Refuse, Request, Subscribe, Take
from headrace.protocols.blipmq import frames
from headrace.protocols.blipmq.session import BlipmqSession, State

SHARDS = 8
INPUTS = 1_000_000 // SHARDS
COMPARED_EVERY = 10
GROWTH_MAX_KIB = 64 * 1024

MODULES = ("blipmq", "blipmq_exchange")
IMPORTED = [importlib.import_module(f"headrace.kernels.{name}") for name in MODULES]
INTERPRETED = [load_source(name, f"fuzzed_{name}") for name in MODULES]

Fact = tuple[object, ...]


def frame(chance: random.Random) -> bytes:
    """A frame that is valid, or nearly."""
    tag = chance.choice((0, 1, 2, 3, 2**64 - 1))
    subscription = chance.choice((0, 1, 1, 1, 2, 2**64 - 1))
    match chance.randrange(12):
        case 0:
            return frames.encode_hello(tag, chance.choice((0, 1, 1, 1)))
        case 1:
            return frames.encode_auth(tag, chance.choice(("", "good", "good", "bad")))
        case 2:
            return frames.encode_subscribe(tag, chance.choice(("", "a", "b")), chance.choice((0, 1, 2)))
        case 3:
            return frames.encode_ping(tag)
        case 4:
            return frames.encode_frame(
                chance.choice(list(frames.FrameType)), tag, chance.randbytes(chance.randrange(12))
            )
        case 5 | 6:
            return frames.encode_ack(tag, subscription)
        case 7 | 8:
            return frames.encode_poll(tag, subscription)
        case _:
            topic = chance.choice(("a", "a", "a", "bb", "", "é"))
            message = chance.randbytes(chance.randrange(24))
            return frames.encode_publish(tag, topic, message, chance.choice((0, 1, 1, 1, 2)))


def inputs(chance: random.Random, count: int) -> Iterator[bytes]:
    """Streams of frames with bytes flipped, cut out, doubled or replaced, and some that never were frames."""
    stock = [b"".join(frame(chance) for _ in range(chance.randrange(1, 4))) for _ in range(2000)]
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
                data = data[:at] + struct.pack(">I", chance.choice((0, 8, 9, 17, 2**16, 2**24, 2**32 - 1))) + data[at:]
            case 5:
                data = chance.randbytes(at)
            case _:
                data += stock[chance.randrange(2000)]
        yield data


def answer(session: BlipmqSession, request: Request, facts: list[Fact]) -> None:
    """Answer a request, and note what it asked in a form no splitting can change."""
    match request:
        case Authenticate(tag, key):
            if key == b"good":
                session.authenticated(tag)
            else:
                session.refused(tag, BrokerError(Code.UNAUTHENTICATED, "invalid API key"))
        case Publish(topic, qos, count, record, tags):
            batch = Batch(record, RECORD_HEADER_SIZE, 0)
            assert (batch.topic, batch.qos, batch.count, len(tags)) == (topic, qos, count, 8 * count)
            facts += (("publish", topic, qos, batch.value(i), tags[8 * i : 8 * i + 8]) for i in range(count))
        case Take(subscription, count, tags):
            assert len(tags) == 8 * count
            facts += (("take", subscription, tags[8 * i : 8 * i + 8]) for i in range(count))
        case Ack(subscription, ranges):
            facts += (("ack", subscription, first + i) for first, count in ranges for i in range(count))
        case Exchange():
            for step in request.steps:
                answer(session, step, facts)
        case Fence(tag):
            session.fence_passed(tag)
        case Refuse(tag, error):
            session.refused(tag, error)
        case Subscribe(tag):
            session.subscribed(tag, 1)
        case _:
            raise AssertionError(request)


def converse(pieces: list[bytes], state: State) -> tuple[list[Fact], bytes, bool]:
    """Feed a session; what it asked for, what it said, and whether it cut the peer off."""
    session = BlipmqSession()
    session.state = state
    facts: list[Fact] = []
    rest = b""
    try:
        for piece in pieces:
            rest += piece
            requests: list[Request] = [Fence(0)]
            while requests:
                consumed, requests = session.receive(memoryview(rest), 0)
                assert 0 <= consumed <= len(rest)
                rest = rest[consumed:]
                for request in requests:
                    answer(session, request, facts)
            assert len(rest) < session.bytes_wanted(memoryview(rest)) <= 4 + frames.LENGTH_MAX
    except PeerProtocolError:
        return facts, session.data_to_send(), True
    return facts, session.data_to_send(), False


def by_topic(facts: list[Fact]) -> list[list[Fact]]:
    """Publishes of different topics have no order among each other; everything else has."""
    topics = sorted({str(fact[1]) for fact in facts if fact[0] == "publish"})
    return [
        [fact for fact in facts if fact[0] != "publish"],
        *([fact for fact in facts if fact[:2] == ("publish", topic)] for topic in topics),
    ]


def compare_kernels(data: bytes) -> None:
    scans = [module.scan_publishes(data, 0, len(data), 1) for module in (IMPORTED[0], INTERPRETED[0])]
    assert scans[0] == scans[1]
    exchanges = [module.scan_exchange(data, 0, len(data)) for module in (IMPORTED[1], INTERPRETED[1])]
    assert exchanges[0] == exchanges[1]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_million_broken_inputs(shard: int) -> None:
    chance = random.Random(shard)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, data in enumerate(inputs(chance, INPUTS)):
        state = State.READY if number % 4 else State.NEW
        whole = converse([data], state)
        assert len(whole[1]) <= 16 * len(data) + 64
        if number % COMPARED_EVERY == 0:
            at = chance.randrange(len(data) + 1)
            split = converse([data[:at], data[at:]], state)
            assert (by_topic(split[0]), split[1:]) == (by_topic(whole[0]), whole[1:]), data.hex()
            compare_kernels(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_MAX_KIB


@pytest.mark.parametrize("shard", range(4))
def test_byte_by_byte_is_the_same_as_whole(shard: int) -> None:
    chance = random.Random(100 + shard)
    for data in inputs(chance, 2000):
        for state in (State.NEW, State.READY):
            whole = converse([data], state)
            single = converse([data[i : i + 1] for i in range(len(data))], state)
            assert (by_topic(single[0]), single[1:]) == (by_topic(whole[0]), whole[1:]), data.hex()
