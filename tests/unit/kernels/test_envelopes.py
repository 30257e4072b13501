"""Plain envelopes are told from others in the same way compiled and interpreted, whatever the bytes are."""

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.grpcq.grpcq_pb2 import Message
from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways

KERNELS = [each.values[0] for each in both_ways("envelopes")]  # type: ignore[attr-defined]  # a ParameterSet
each_way = pytest.mark.parametrize("kernel", both_ways("envelopes"))

short = st.text(max_size=3)
messages = st.builds(
    lambda texts, payload, when, metadata: Message(
        originator=texts[0], topic=texts[1], action=texts[2], message_id=texts[3], payload=payload,
        timestamp_ms=when, metadata=metadata,
    ).SerializeToString(),
    st.tuples(short, short, short, short), st.binary(max_size=5), st.integers(-(1 << 63), (1 << 63) - 1),
    st.dictionaries(short, short, max_size=3),
)  # fmt: skip


def marked(kernel: ModuleType, cells: list[bytes]) -> bytes:
    """The marks of these cells."""
    ends = [0]
    for cell in cells:
        ends.append(ends[-1] + len(cell))
    marks = bytearray(len(cells))
    kernel.mark_plain(memoryview(struct.pack(f"<{len(ends)}i", *ends)).cast("i"), b"".join(cells), marks)
    return bytes(marks)


@each_way
@given(cells=st.lists(messages, min_size=1, max_size=5))
def test_what_protobuf_writes_is_plain(kernel: ModuleType, cells: list[bytes]) -> None:
    assert marked(kernel, cells) == b"\1" * len(cells)


@tried(500)
@given(
    cells=st.lists(
        st.builds(lambda data, extra, cut: (data + extra)[cut:], messages, st.binary(max_size=6), st.integers(0, 3)),
        min_size=1,
        max_size=5,
    )
)
def test_both_ways_find_the_same(cells: list[bytes]) -> None:
    assert len({marked(kernel, cells) for kernel in KERNELS}) == 1


@each_way
@pytest.mark.parametrize(
    "envelope",
    [
        "0a", "0a02", "0a0161" * 2, "0a8100" + "61", "0affffffffffffffffff01", "30", "3080", "308000",
        "30ffffffffffffffffff02", "30ffffffffffffffffffff01", "0b", "08", "4200", "0a02c3", "0a01ff", "02", "00",
        "3a00", "3a020a00", "3a0412000a00", "3a050a016b1200" + "3a060a016b120178", "3a030a016b",
    ],
)  # fmt: skip
def test_what_decoders_differ_about_is_not_plain(kernel: ModuleType, envelope: str) -> None:
    assert marked(kernel, [bytes.fromhex(envelope)]) == b"\0"
