"""What the doors' kernels make of anything a peer sends gets through the gate: nothing else is ever stored by them."""

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.gate import Fault, check_part
from headrace.model.errors import BrokerError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.publishing import Publishing
from tests.harness.peer import publish
from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways

NOW = 1_700_000_000_000_000

names = st.sampled_from((b"orders", b"o", "größe".encode(), b"\xff", b"a\xc3", b"", b"x" * 1024, b"x" * 1025, b"a\tb"))
texts = st.binary(max_size=4) | st.text(max_size=3).map(str.encode)
values = st.binary(max_size=12)


def check(publishes: list[Publish]) -> None:
    for each in publishes:
        assert check_part(each.record, RECORD_HEADER_SIZE, len(each.record)) == Fault.SOUND


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for place, byte in changes:
        if out:
            out[place % len(out)] = byte
    return bytes(out)


changes = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3)


@pytest.mark.parametrize("kernel", both_ways("blipmq"))
@tried(200)
@given(frames=st.lists(st.tuples(names, values, st.integers(0, 2)), max_size=8), changes=changes)
def test_blipmq(kernel: ModuleType, frames: list[tuple[bytes, bytes, int]], changes: list[tuple[int, int]]) -> None:
    data = damaged(b"".join(publish(name, value, 7, qos) for name, value, qos in frames), changes)
    check(kernel.scan_publishes(data, 0, len(data), NOW)[1])


@pytest.mark.parametrize("kernel", both_ways("sspq"))
@tried(200)
@given(packets=st.lists(st.tuples(values, st.integers(0, 255)), max_size=8), changes=changes)
def test_sspq(kernel: ModuleType, packets: list[tuple[bytes, int]], changes: list[tuple[int, int]]) -> None:
    sends = (bytes((0x55, 0x99, 0x5E, retries)) + struct.pack(">I", len(value)) + value for value, retries in packets)
    data = damaged(b"".join(sends), changes)
    check(kernel.scan_sends(data, 0, len(data), "größe", -1, 100, NOW)[1])


@pytest.mark.parametrize("kernel", both_ways("fujin"))
@tried(200)
@given(
    writes=st.lists(st.tuples(names, values, st.lists(st.tuples(texts, texts), max_size=3)), max_size=8),
    changes=changes,
)
def test_fujin(
    kernel: ModuleType, writes: list[tuple[bytes, bytes, list[tuple[bytes, bytes]]]], changes: list[tuple[int, int]]
) -> None:
    data = b""
    for name, value, headers in writes:
        strings = [string for pair in headers for string in pair]
        data += b"\x03" + struct.pack(">I", 5) + _sized(name)
        data += struct.pack(">H", len(strings)) + b"".join(map(_sized, strings)) + _sized(value)
    data = damaged(data, changes)
    form = kernel.Form(True, 1000, 1000, 64, {})
    check(kernel.scan_writes(data, 0, len(data), form, NOW)[1])


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


@tried(300)
@given(
    messages=st.lists(
        st.builds(
            lambda text, payload, metadata: Message(
                originator=text, topic="a.B", action="C", message_id=text, payload=payload, metadata=metadata
            ).SerializeToString(),
            st.text(max_size=3), values, st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        ),
        max_size=6,
    ),
    changes=changes,
)  # fmt: skip
def test_grpcq(messages: list[bytes], changes: list[tuple[int, int]]) -> None:
    request = b"\x0a\x06orders" + b"".join(b"\x12" + bytes((len(each),)) + each for each in messages if len(each) < 128)
    try:
        publishing = Publishing.read(damaged(request, changes), 1000)
    except BrokerError:
        return
    if publishing.count:
        record = publishing.record(now=NOW, entropy=bytes(publishing.entropy_size))
        assert check_part(record, RECORD_HEADER_SIZE, len(record)) == Fault.SOUND
