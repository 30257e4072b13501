"""The kernel of POLL and ACK runs, interpreted and compiled, against a loop over single frames."""

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways

ACK, POLL, PING = 5, 9, 7
each_way = pytest.mark.parametrize("kernel", both_ways("blipmq_exchange"))

frames = st.lists(
    st.tuples(
        st.sampled_from([ACK, ACK, POLL, POLL, POLL, PING]),
        st.one_of(st.integers(0, 6), st.sampled_from([2**64 - 2, 2**64 - 1])),
        st.sampled_from([7, 7, 7, 7, 7, 7, 8, 0, 2**64 - 1]),
    ),
    max_size=40,
)


def encode(kind: int, tag: int, subscription: int) -> bytes:
    return struct.pack(">IBQQ", 17, kind, tag, subscription)


def plain(run: list[tuple[int, int, int]]) -> tuple[int, int, bytes, list[tuple[int, int]]]:
    polls: list[int] = []
    ranges: list[list[int]] = []
    taken = 0
    for kind, tag, subscription in run:
        if kind == PING or subscription == 0 or subscription != run[0][2]:
            break
        taken += 1
        if kind == POLL:
            polls.append(tag)
        elif ranges and tag == sum(ranges[-1]):
            ranges[-1][1] += 1
        else:
            ranges.append([tag, 1])
    merged = [(first, count) for first, count in ranges]
    return 21 * taken, run[0][2] if taken else 0, struct.pack(f">{len(polls)}Q", *polls), merged


@each_way
@tried(300)
@given(run=frames, before=st.binary(max_size=5), behind=st.binary(max_size=20))
def test_a_run_is_what_its_frames_add_up_to(
    kernel: ModuleType, run: list[tuple[int, int, int]], before: bytes, behind: bytes
) -> None:
    data = before + b"".join(encode(*item) for item in run) + behind
    end, *found = kernel.scan_exchange(data, len(before), len(data) - len(behind))
    assert (end - len(before), *found) == plain(run)


@each_way
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_read_in_place_and_let_go(kernel: ModuleType, kind: type) -> None:
    data = kind(encode(POLL, 1, 7) + encode(ACK, 3, 7) + encode(ACK, 4, 7))
    assert kernel.scan_exchange(data, 0, len(data)) == (63, 7, struct.pack(">Q", 1), [(3, 2)])
    if isinstance(data, bytearray):
        data.clear()


@each_way
@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(encode(POLL, 1, 0), id="subscription 0"),
        pytest.param(encode(POLL, 1, 8), id="another subscription"),
        pytest.param(struct.pack(">IBQ", 9, POLL, 1), id="no payload"),
        pytest.param(struct.pack(">IBQQB", 18, POLL, 1, 7, 0), id="a byte too many"),
        pytest.param(encode(POLL, 1, 7)[:-1], id="one byte missing"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_run_ends_before_what_does_not_belong_to_it(kernel: ModuleType, stop: bytes) -> None:
    good = encode(ACK, 1, 7)
    assert kernel.scan_exchange(good + stop, 0, len(good + stop)) == (len(good), 7, b"", [(1, 1)])
