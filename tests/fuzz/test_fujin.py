"""One million broken inputs for the Fujin session.

Whatever arrives, however it is split: only PeerProtocolError escapes, no more is consumed than was given, every request
is answered for, memory stays bounded, splitting changes nothing, and compiled and interpreted kernels agree.
"""

import importlib
import random
import resource
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.kernels import load_source
from headrace.model.batch import Batch, build_batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.parts import RECORD_HEADER_SIZE, batches_in
from headrace.model.requests import Fence, Fetch, Follow, Leave, Publish, Refuse, Request, Settle, Subscribe
from headrace.protocols.fujin import Dialect, FujinSession, FujinSettings, WriteHeaders, frames
from headrace.protocols.fujin.frames import Command, ReaderType

SHARDS = 8
INPUTS = 1_000_000 // SHARDS
COMPARED_EVERY = 10
GROWTH_MAX_KIB = 64 * 1024

MODULES = ("fujin", "fujin_reading")
IMPORTED = [importlib.import_module(f"headrace.kernels.{name}") for name in MODULES]
INTERPRETED = [load_source(name, f"fuzzed_{name}") for name in MODULES]

SMALL = FujinSettings(
    message_size_max=64, headers_size_max=40, transaction_size_max=120, push_window=3, routes={"in": "a"}
)
SETTINGS = (
    SMALL,
    replace(SMALL, write_headers=WriteHeaders.ALWAYS),
    replace(SMALL, write_headers=WriteHeaders.NEVER),
    replace(SMALL, dialect=Dialect.REFERENCE),
)
COMMAND_SIZE_MAX = 9 + (4 + frames.ID_SIZE_MAX) * frames.IDS_MAX
BATCH = Batch(build_batch("a", [b"one", b"", b"three"], timestamp_us=1), 0, 0)

Fact = tuple[object, ...]


def command(chance: random.Random) -> bytes:
    """A command that is valid, or nearly."""
    tag = chance.choice((0, 1, 2, 3, 2**32 - 1))
    match chance.randrange(16):
        case 0:
            return frames.encode_connect_writer(chance.choice((0, 1, 3, "w", "writer", "")))
        case 1:
            kind = chance.choice((0, 1, 2, 2, 3))
            name = chance.choice((b"a", b"a", b"", b"\xff", b"no"))
            return bytes((2, kind, chance.choice((0, 1, 2)))) + frames.sized(name)
        case 2:
            return frames.encode_command(chance.choice((Command.BEGIN, Command.COMMIT, Command.ROLLBACK)), tag)
        case 3:
            return frames.encode_fetch(tag, chance.choice((0, 1, 2, 2**32 - 1)))
        case 4 | 5:
            ids = [chance.choice((tag.to_bytes(8), b"\x80" + bytes(7), b"", b"id")) for _ in range(chance.randrange(4))]
            return frames.encode_settle(chance.choice((Command.ACK, Command.NACK)), tag, ids)
        case 6:
            return bytes((chance.randrange(14),))
        case 7:
            return bytes((chance.choice(list(Command)),)) + chance.randbytes(chance.randrange(12))
        case 8 | 9:
            topic = chance.choice(("a", "a", "in"))
            return frames.encode_write(tag, topic, chance.randbytes(chance.randrange(24)), None)
        case _:
            topic = chance.choice(("a", "a", "a", "in", "", "\x07"))
            pairs = [
                ("k" * chance.randrange(3), b"v" * chance.randrange(9)) for _ in range(chance.choice((0, 0, 1, 2)))
            ]
            return frames.encode_write(tag, topic, chance.randbytes(chance.choice((0, 1, 9, 20, 65))), pairs)


BEGINNINGS = (
    frames.encode_connect_writer(),
    frames.encode_connect_writer() + frames.encode_command(Command.BEGIN, 9),
    frames.encode_connect_reader(ReaderType.PULL, False, "a"),
    frames.encode_connect_reader(ReaderType.PUSH, True, "a"),
    b"",
)


def inputs(chance: random.Random, count: int) -> Iterator[bytes]:
    """Streams of commands with bytes flipped, cut out, doubled or replaced, and some that never were commands."""
    stock = [b"".join(command(chance) for _ in range(chance.randrange(1, 5))) for _ in range(2000)]
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
                data = data[:at] + struct.pack(">I", chance.choice((0, 1, 4, 2**16, 2**24, 2**32 - 1))) + data[at:]
            case 5:
                data = chance.randbytes(at)
            case _:
                data += stock[chance.randrange(2000)]
        yield chance.choice(BEGINNINGS) + data


def answer(session: FujinSession, request: Request, facts: list[Fact]) -> None:
    """Answer a request, and note what it asked in a form no splitting can change."""
    match request:
        case Publish(topic, 1, count, record, tags, True, topics):
            batches = batches_in(record, RECORD_HEADER_SIZE, len(record), 0)
            assert sum(batch.count for batch in batches) == count
            assert {batch.topic for batch in batches} == set(topics or (topic,))
            for batch in batches:
                facts += (
                    ("publish", batch.topic, batch.message(i).value, tuple(batch.message(i).headers))
                    for i in range(batch.count)
                )
            for at in range(1, len(tags), 4):
                if tags[at + 3] % 3:
                    session.published(tags[:1] + tags[at : at + 4])
                else:
                    session.publish_refused(tags[:1] + tags[at : at + 4], BrokerError(Code.STORAGE, "full"))
        case Subscribe(tag, "no"):
            session.refused(tag, BrokerError(Code.FORBIDDEN, ""))
        case Subscribe(tag):
            session.subscribed(tag, 1)
        case Fetch(tag, 1, count, wait, settle):
            facts.append(("fetch", count, wait, settle))
            session.fetched(tag, [Portion(BATCH, 1, 2, 7, 1)] if count > 1 else [])
        case Follow(tag, 1, 3, settle, after):
            facts.append(("follow", settle, after))
            session.pushed(tag, [Portion(BATCH, 0, 3, 7, 1)])
        case Settle(tag, 1, deliveries, failed):
            facts += (("settle", delivery, failed) for delivery in deliveries)
            session.settled(tag, deliveries, [delivery % 2 == 1 for delivery in deliveries])
        case Fence(tag) | Leave(tag):
            session.fence_passed(tag)
        case Refuse(tag, error):
            session.refused(tag, error)
        case _:
            raise AssertionError(request)


def converse(pieces: list[bytes], settings: FujinSettings) -> tuple[list[Fact], bytes, str]:
    """Feed a session; what it asked for, what it said, and how it ended."""
    session = FujinSession(settings)
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
                    if isinstance(request, Leave):
                        return facts, session.data_to_send(), "left"
            assert len(rest) < session.bytes_wanted(memoryview(rest)) <= COMMAND_SIZE_MAX
    except PeerProtocolError:
        return facts, session.data_to_send(), "closed"
    return facts, session.data_to_send(), ""


def same(first: tuple[list[Fact], bytes, str], second: tuple[list[Fact], bytes, str]) -> bool:
    """Writes to different topics, and their replies, have no order among each other; everything else has."""
    topics = {fact[1] for fact in first[0] if fact[0] == "publish"}
    if len(topics) < 2:
        return first == second
    return [sorted(first[0], key=repr), sorted(first[1]), first[2]] == [
        sorted(second[0], key=repr),
        sorted(second[1]),
        second[2],
    ]


def compare_kernels(data: bytes) -> None:
    for with_headers in (True, False):
        scans = [
            module.scan_writes(data, 0, len(data), module.Form(with_headers, 64, 40, 256, {b"in": "a"}), 1)
            for module in (IMPORTED[0], INTERPRETED[0])
        ]
        assert scans[0] == scans[1]
    if data:
        settles = [module.scan_settles(data, 0, len(data), 100, 100) for module in (IMPORTED[1], INTERPRETED[1])]
        assert settles[0] == settles[1]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_million_broken_inputs(shard: int) -> None:
    chance = random.Random(shard)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, data in enumerate(inputs(chance, INPUTS)):
        settings = SETTINGS[number % len(SETTINGS)]
        whole = converse([data], settings)
        assert len(whole[1]) <= 16 * len(data) + 128
        if number % COMPARED_EVERY == 0:
            at = chance.randrange(len(data) + 1)
            assert same(converse([data[:at], data[at:]], settings), whole), data.hex()
            for start in range(0, len(data), 7):
                compare_kernels(data[start:])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_MAX_KIB


@pytest.mark.parametrize("shard", range(4))
def test_byte_by_byte_is_the_same_as_whole(shard: int) -> None:
    chance = random.Random(100 + shard)
    for number, data in enumerate(inputs(chance, 2000)):
        settings = SETTINGS[number % len(SETTINGS)]
        single = converse([data[i : i + 1] for i in range(len(data))], settings)
        assert same(single, converse([data], settings)), data.hex()
