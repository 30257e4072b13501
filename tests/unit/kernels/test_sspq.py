"""The SSPQ kernel, interpreted and compiled, against the plain way of building a batch."""

import struct
from itertools import groupby
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.batch import ATTEMPTS_UNLIMITED, Batch, Protocol, build_batch
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish
from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways

NOW = 1_700_000_000_000_000
MAX = 1000
AS_SENT = -1

each_way = pytest.mark.parametrize("kernel", both_ways("sspq"))
messages = st.tuples(st.sampled_from([0, 3, 3, 3, 254, 255]), st.binary(max_size=40))


def packet(kind: int, retries: int, payload: bytes) -> bytes:
    return struct.pack(">HBBI", 0x5599, kind, retries, len(payload)) + payload


def send(retries: int, payload: bytes) -> bytes:
    return packet(0x5E, retries, payload)


def plain_batches(topic: str, sent: list[tuple[int, bytes]], forced: int = AS_SENT) -> list[Publish]:
    """What a scan must give, run by run, with the model's own batch builder."""
    counted = [(retries if forced == AS_SENT else forced, payload) for retries, payload in sent]
    publishes = []
    for retries, run in groupby(counted, key=lambda message: message[0]):
        values = [payload for _, payload in run]
        attempts = ATTEMPTS_UNLIMITED if retries == 255 else retries + 1
        part = build_batch(topic, values, timestamp_us=NOW, protocol=Protocol.SSPQ, max_attempts=attempts)
        publishes.append(Publish(topic, 1, len(values), bytearray(RECORD_HEADER_SIZE) + part, b""))
    return publishes


@each_way
@tried(200)
@given(
    topic=st.sampled_from(["sspq", "a", "jobs.eu", "ünïcode"]),
    sent=st.lists(messages, max_size=60),
    forced=st.sampled_from([AS_SENT, AS_SENT, 0, 7, 255]),
    before=st.binary(max_size=9),
    behind=st.binary(max_size=12),
)
def test_a_scan_builds_the_batches_the_model_would(
    kernel: ModuleType, topic: str, sent: list[tuple[int, bytes]], forced: int, before: bytes, behind: bytes
) -> None:
    packets = b"".join(send(*message) for message in sent)
    data = before + packets + behind
    end = len(before) + len(packets)
    found = kernel.scan_sends(data, len(before), end, topic, forced, MAX, NOW)
    assert found == (end, plain_batches(topic, sent, forced))


@each_way
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_read_in_place_and_let_go(kernel: ModuleType, kind: type) -> None:
    data = kind(send(3, b"v"))
    _, (batch,) = kernel.scan_sends(data, 0, len(data), "t", AS_SENT, MAX, NOW)
    if isinstance(data, bytearray):
        data.clear()
    assert Batch(batch.record, RECORD_HEADER_SIZE, 0).value(0) == b"v"


@each_way
def test_equal_lengths_in_long_runs_are_the_same_as_single_packets(kernel: ModuleType) -> None:
    sent = [(3, b"%05d" % i) for i in range(1000)] + [(3, b"longer than the others"), *((3, b"") for _ in range(300))]
    data = b"".join(send(*message) for message in sent)
    found = kernel.scan_sends(data, 0, len(data), "t", AS_SENT, MAX, NOW)
    assert found == (len(data), plain_batches("t", sent))


@each_way
@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(packet(0xEC, 0, b""), id="another packet"),
        pytest.param(packet(0x5F, 3, b"v"), id="another type with a payload"),
        pytest.param(b"\x99\x55" + send(3, b"v")[2:], id="magic the wrong way round"),
        pytest.param(b"\x56\x99" + send(3, b"v")[2:], id="first byte of the magic wrong"),
        pytest.param(b"\x55\x98" + send(3, b"v")[2:], id="second byte of the magic wrong"),
        pytest.param(send(3, bytes(MAX + 1)), id="payload too large"),
        pytest.param(struct.pack(">HBBI", 0x5599, 0x5E, 3, 2**32 - 1) + b"v", id="length beyond everything"),
        pytest.param(send(3, b"value")[:-1], id="one byte missing"),
        pytest.param(send(3, b"")[:-1], id="head cut off"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_scan_stops_before_what_is_not_plainly_valid(kernel: ModuleType, stop: bytes) -> None:
    good = send(3, b"") + send(3, bytes(MAX))
    data = good + stop
    at, batches = kernel.scan_sends(data, 0, len(data), "t", AS_SENT, MAX, NOW)
    assert at == len(good)
    assert [batch.count for batch in batches] == [2]
    assert kernel.scan_sends(stop, 0, len(stop), "t", AS_SENT, MAX, NOW) == (0, [])


@each_way
def test_a_packet_that_reaches_beyond_the_end_is_left_alone(kernel: ModuleType) -> None:
    first = send(3, b"equal")
    data = first + send(3, b"sizes") + bytes(20)
    for end in range(2 * len(first) + 1):
        at, batches = kernel.scan_sends(data, 0, end, "t", AS_SENT, MAX, NOW)
        assert at == end // len(first) * len(first)
        assert sum(batch.count for batch in batches) == end // len(first)
