"""Kernels that copy cells to peers: what they copy is inside the batch, even of one no gate would let through."""

from collections.abc import Callable
from itertools import pairwise, product
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.gate import Fault, check_part
from headrace.model.batch import HEADER_SIZE, Batch, build_batch, padded
from headrace.model.mending import adds_up
from headrace.model.parts import MalformedPart
from tests.harness.properties import tried
from tests.harness.spoilt import spoilt_parts
from tests.unit.kernels.both_ways import both_ways

Encode = Callable[[ModuleType, bytes, int, int], bytes]


def blipmq(kernel: ModuleType, part: bytes, index: int, count: int) -> bytes:
    encoded: bytes = kernel.encode_deliveries(part, 0, index, count, 1, 7, b"")
    return encoded


def fujin(kernel: ModuleType, part: bytes, index: int, count: int) -> bytes:
    encoded: bytes = kernel.encode_messages(part, 0, index, count, 5, 7, True, True)
    return encoded


def grpcq(kernel: ModuleType, part: bytes, index: int, count: int) -> bytes:
    encoded: bytes = kernel.encode_deliveries(part, 0, index, count, 100, 3, 7, 1, b"\x0a\x01x", b"")
    return encoded


DOORS = (("blipmq", blipmq, 16 + 1025), ("fujin_reading", fujin, 18), ("grpcq_deliveries", grpcq, 100))
each_door = pytest.mark.parametrize(
    ("kernel", "encode", "framing"),
    [
        pytest.param(way.values[0], encode, framing, id=f"{name}-{way.id}")  # type: ignore[attr-defined]
        for name, encode, framing in DOORS
        for way in both_ways(name)
    ],
)


@each_door
@tried(150)
@given(part=spoilt_parts(), cut=st.tuples(st.integers(0, 8), st.integers(0, 8)))
def test_whatever_was_changed_no_more_is_copied_than_there_is(
    kernel: ModuleType, encode: Encode, framing: int, part: bytes, cut: tuple[int, int]
) -> None:
    batch = Batch(part, 0, 0)
    if not adds_up(batch.size, batch.count, batch.topic_size) or batch.size > len(part):
        return
    first, last = min(cut), max(cut)
    first, last = min(first, batch.count - 1), min(last, batch.count)
    count = max(1, last - first)
    try:
        frames = encode(kernel, part, first, count)
    except MalformedPart:
        assert check_part(part, 0, len(part)) != Fault.SOUND
        return
    values_at = HEADER_SIZE + padded(batch.topic_size) + padded(4 * (batch.count + 1))
    assert len(frames) <= count * (framing + batch.topic_size) + len(part) - values_at


@each_door
def test_cells_in_no_order_are_refused(kernel: ModuleType, encode: Encode, framing: int) -> None:
    part = bytearray(build_batch("orders", [b"aa", b"bb", b"ccc"], timestamp_us=1))
    for ends in ((0, 7, 3, 7), (0, 300_000, 4, 7), (0, 0xFFFFFFFF, 7, 7), (0, 2, 300_000, 7), (0, 2, 4, 300_000)):
        part[56:72] = b"".join(end.to_bytes(4, "little") for end in ends)
        bad = next(place for place, (a, b) in enumerate(pairwise(ends)) if a > b or b > 7)
        for first, last in product(range(3), range(4)):
            if first <= bad < last:
                with pytest.raises(MalformedPart):
                    encode(kernel, bytes(part), first, last - first)
