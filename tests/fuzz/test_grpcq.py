"""One million broken inputs for the envelope scanner.

Whatever is published: only BrokerError escapes, memory stays bounded, the scanner takes exactly the envelopes that
protobuf's own decoder takes (but for groups, which proto3 does not have), what is stored decodes to what was sent, and
compiled and interpreted kernels agree.
"""

import importlib
import os
import random
import resource
import string
from array import array
from collections.abc import Iterator

import pytest
from google.protobuf.message import DecodeError

from headrace.kernels import load_source
from headrace.kernels.grpcq_envelope import ACTION_HEADER, ORIGINATOR_HEADER, RECEIPT, TOPIC_HEADER, Reason
from headrace.model.batch import Batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.protocols.grpcq.deliveries import encoded
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.publishing import Publishing, varint
from headrace.protocols.grpcq.queues_pb2 import ConsumeResponse, PublishRequest

SHARDS = 8
INPUTS = 1_000_000 // SHARDS
COMPARED_EVERY = 10
GROWTH_MAX_KIB = 64 * 1024
PAYLOAD_MAX = 40
NOW = 1_704_067_200_000_000

MODULES = ("grpcq", "grpcq_deliveries")
IMPORTED = [importlib.import_module(f"headrace.kernels.{name}") for name in MODULES]
INTERPRETED = [load_source(name, f"fuzzed_{name}") for name in MODULES]
TEXTS = ("", "a", "a.B", " a", "a ", "\u00a0a", "é", "orders", "x" * 20)


def envelope(chance: random.Random) -> bytes:
    """An envelope that is right, or nearly."""
    message = Message(
        originator=chance.choice(TEXTS),
        topic=chance.choice(TEXTS),
        action=chance.choice(TEXTS),
        payload=chance.randbytes(chance.choice((0, 0, 5, PAYLOAD_MAX, PAYLOAD_MAX + 1))),
        message_id=chance.choice(("", "", "id", "é")),
        timestamp_ms=chance.choice((0, 0, 1, -1, 2**63 - 1)),
        metadata={chance.choice(TEXTS): chance.choice(TEXTS) for _ in range(chance.randrange(3))},
    )
    unknown = chance.choice(
        (b"", b"", b"\x40\x01", b"\x42\x02hi", b"\x45abcd", b"\x41abcdefgh", b"\x43\x44", b"\x20\x05")
    )
    first = message.SerializeToString()
    return unknown + first if chance.randrange(2) else first + unknown


def broken(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """The data with bytes flipped, cut out, doubled or replaced; now and then as it is."""
    at = chance.randrange(len(data) + 1)
    match chance.randrange(9):
        case 0:
            return data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[at + 1 + chance.randrange(4) :]
        case 3:
            return data[:at] + data[at // 2 :]
        case 4:
            return data[:at] + varint(chance.choice((0, 7, 127, 128, 2**32, 2**63, 2**64 - 1))) + data[at:]
        case 5:
            return chance.randbytes(at)
        case 6:
            return data[:at] + b"\xff" * chance.randrange(1, 12) + data[at:]
        case 7:
            return data + other
        case _:
            return data


def inputs(chance: random.Random, count: int) -> Iterator[bytes]:
    """Broken envelopes."""
    stock = [envelope(chance) for _ in range(2000)]
    for _ in range(count):
        yield broken(chance, stock[chance.randrange(2000)], stock[chance.randrange(2000)])


def request(*messages: bytes) -> bytes:
    """A PublishRequest, spelled out."""
    return b"\x0a\x01q" + b"".join(b"\x12" + varint(len(message)) + message for message in messages)


def has_group(data: bytes, *, entry: bool = False) -> bool:
    """Whether a field, or one in a metadata entry, has a wire type that proto3 does not have."""
    at = 0
    while at < len(data):
        tag, at = number(data, at)
        kind = tag & 7
        if kind in (3, 4):
            return True
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind in (0, 2):
            size, at = number(data, at)
        if kind == 2 and tag >> 3 == 7 and not entry and has_group(data[at : at + size], entry=True):
            return True
        at += size if kind else 0
    return False


def number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    return value, at


def reason_by_protobuf(data: bytes) -> set[Reason]:
    """What may be said about an envelope, judged by protobuf's own decoder."""
    try:
        message = Message.FromString(data)
    except DecodeError:
        return {Reason.NOT_PROTOBUF, Reason.NOT_UTF8}
    if has_group(data):
        return {Reason.NOT_PROTOBUF}
    for name, empty, not_trimmed, character in (
        (message.topic, Reason.TOPIC_EMPTY, Reason.TOPIC_NOT_TRIMMED, Reason.TOPIC_CHARACTER),
        (message.action, Reason.ACTION_EMPTY, Reason.ACTION_NOT_TRIMMED, Reason.ACTION_CHARACTER),
    ):
        if not name:
            return {empty}
        if name != name.strip():
            return {not_trimmed}
        if not set(name) <= set(string.ascii_letters + string.digits + "._-"):
            return {character}
    return {Reason.FINE if len(message.payload) <= PAYLOAD_MAX else Reason.PAYLOAD_TOO_LARGE}


def check_stored(data: bytes, call: bytes) -> None:
    """What is stored begins with what was sent, byte for byte, and says the same."""
    publishing = Publishing.read(call, PAYLOAD_MAX)
    record = publishing.record(now=NOW, entropy=os.urandom(publishing.entropy_size), max_attempts=3)
    stored = Batch(record, RECORD_HEADER_SIZE, 7).message(0)
    assert stored.value.startswith(data)
    sent, kept = Message.FromString(data), Message.FromString(stored.value)
    assert kept.message_id == stored.message_id == (sent.message_id or kept.message_id) != ""
    assert kept.timestamp_ms == (sent.timestamp_ms or NOW // 1000)
    kept.message_id, kept.timestamp_ms = sent.message_id, sent.timestamp_ms
    assert kept.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)
    own = [(TOPIC_HEADER, sent.topic), (ACTION_HEADER, sent.action), (ORIGINATOR_HEADER, sent.originator)]
    headers = [(key.encode(), value.decode()) for key, value in stored.headers]
    expected = own if sent.originator else own[:2]
    assert headers[: len(expected)] == expected
    told = {(key.decode(), value) for key, value in headers[len(expected) :]}
    assert sent.metadata.items() <= told, "an entry with unknown fields is none to this decoder"
    (delivery,) = ConsumeResponse.FromString(
        encoded(1, [Portion(Batch(record, RECORD_HEADER_SIZE, 7), 0, 1, 5, 2)])
    ).deliveries
    assert (delivery.message, delivery.attempt, delivery.offset) == (stored.value, 2, 7)


def facts(module: object, call: bytes) -> tuple[object, ...]:
    scan = module.scan_publish(call, PAYLOAD_MAX, 100)  # type: ignore[attr-defined]
    marks = scan.marks if scan.marks is not None else array("q")
    return (
        scan.queue,
        scan.count,
        scan.reason,
        scan.failed,
        scan.values_size,
        scan.headers_size,
        scan.ids_size,
        list(marks),
    )


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_million_broken_envelopes(shard: int) -> None:
    chance = random.Random(shard)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scan = IMPORTED[0].scan_publish
    for place, data in enumerate(inputs(chance, INPUTS)):
        call = request(data)
        reason = scan(call, PAYLOAD_MAX, 100).reason
        assert reason in reason_by_protobuf(data), data.hex()
        if place % COMPARED_EVERY == 0:
            assert facts(IMPORTED[0], call) == facts(INTERPRETED[0], call), data.hex()
            if reason == Reason.FINE:
                check_stored(data, call)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_MAX_KIB


@pytest.mark.parametrize("shard", range(4))
def test_broken_calls_are_refused_whole(shard: int) -> None:
    chance = random.Random(100 + shard)
    stock = [request(*(envelope(chance) for _ in range(chance.randrange(4)))) for _ in range(500)]
    for _ in range(20_000):
        call = broken(chance, chance.choice(stock), chance.choice(stock))
        assert facts(IMPORTED[0], call) == facts(INTERPRETED[0], call), call.hex()
        try:
            publishing = Publishing.read(call, PAYLOAD_MAX)
        except BrokerError:
            continue
        try:
            asked = PublishRequest.FromString(call)
        except DecodeError:
            continue  # an earlier queue that is not UTF-8; the last one counts
        assert (publishing.queue, publishing.count) == (asked.queue, len(asked.messages))
        batch = (
            Batch(publishing.record(now=NOW, entropy=bytes(publishing.entropy_size)), RECORD_HEADER_SIZE, 0)
            if asked.messages
            else None
        )
        for index, data in enumerate(asked.messages):
            assert batch is not None
            assert batch.value(index).startswith(data)


@pytest.mark.parametrize("shard", range(2))
def test_kernels_agree_on_deliveries_and_receipts(shard: int) -> None:
    chance = random.Random(200 + shard)
    for _ in range(3000):
        messages = [Message(topic="a", action="b", payload=chance.randbytes(chance.randrange(300))) for _ in range(3)]
        publishing = Publishing.read(request(*(m.SerializeToString() for m in messages)), 300)
        record = publishing.record(now=NOW, entropy=chance.randbytes(publishing.entropy_size))
        base, delivery = chance.choice((0, 1, 127, 128, 2**40, 2**63)), chance.choice((1, 2**32, 2**64 - 4))
        wrapping = chance.choice(((b"", b""), (b"\x0a\x04sspq", b"\x30\x01")))
        subscription = chance.choice((0, 1, 2**32 - 1))
        asked = (
            record,
            RECORD_HEADER_SIZE,
            chance.randrange(3),
            1,
            base,
            subscription,
            delivery,
            chance.choice((1, 200)),
            *wrapping,
        )
        made = [module.encode_deliveries(*asked) for module in (IMPORTED[1], INTERPRETED[1])]
        assert made[0] == made[1]
        (found,) = ConsumeResponse.FromString(made[0]).deliveries
        assert found.offset == base + asked[2]
        value = Batch(record, RECORD_HEADER_SIZE, base).value(asked[2])
        assert found.message == value or Message.FromString(found.message).payload == value
        ids = [(chance.randrange(2), chance.randrange(2), chance.randrange(4)) for _ in range(chance.randrange(8))]
        receipts = b"".join(RECEIPT.pack(*each) for each in ids)
        groups = [module.group_receipts(receipts) for module in (IMPORTED[1], INTERPRETED[1])]
        assert groups[0] == groups[1]
        assert [(s, a, first + i) for s, a, first, count in groups[0] for i in range(count)] == ids
