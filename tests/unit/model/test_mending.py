"""What is left of a batch that is not sound: batches that are, with every sound message at its own offset."""

import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.kernels.gate import Fault, check_part
from headrace.model.batch import Batch, Message, build_batch
from headrace.model.mending import MALFORMED, adds_up, mended
from tests.harness.properties import tried
from tests.harness.spoilt import sound_parts, spoilt_parts


def messages(batches: list[Batch]) -> list[Message]:
    return [batch.message(index) for batch in batches for index in range(batch.count)]


@tried(1000)
@given(part=spoilt_parts(), base=st.integers(0, 1 << 40), behind=st.binary(max_size=60))
def test_whatever_was_changed_what_is_left_is_sound_and_nobody_elses(part: bytes, base: int, behind: bytes) -> None:
    batch = Batch(part, 0, base)
    assume(adds_up(batch.size, batch.count, batch.topic_size) and batch.size <= len(part))
    secret = b"\xa5SECRET\xa5" + behind
    pieces = mended(Batch(part + secret, 0, base))
    assert [piece.base for piece in pieces] == [base, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == base + batch.count
    for piece in pieces:
        assert check_part(piece.buffer, 0, len(piece.buffer)) == Fault.SOUND
        assert piece.topic == batch.topic
        assert secret not in bytes(piece.buffer)
        for message in messages([piece]):
            told = [value for key, value in message.headers if key == MALFORMED]
            assert bool(told) == bool(piece.fault)
            assert not told or piece.fault == f"malformed: {told[-1].decode()}"


@given(part=sound_parts(), base=st.integers(0, 1 << 40))
def test_of_a_sound_batch_everything_is_left(part: bytes, base: int) -> None:
    pieces = mended(Batch(part, 0, base))
    assert not any(piece.fault for piece in pieces)
    assert messages(pieces) == messages([Batch(part, 0, base)])


@pytest.mark.parametrize(
    ("ends", "left"),
    [
        ((0, 7, 3, 10), [b"aaaaaaa", None, None]),
        ((0, 300_000, 7, 10), [None, None, b"bbb"]),
        ((0, 4, 0xFFFFFFFF, 10), [b"aaaa", None, None]),
        ((3, 3, 4, 10), [b"", b"a", b"aaabbb"]),
        ((0, 10, 0, 10), [b"aaaaaaabbb", None, None]),
    ],
)
def test_a_cell_is_good_if_it_lies_behind_all_good_ones_before_it(
    ends: tuple[int, ...], left: list[bytes | None]
) -> None:
    part = bytearray(build_batch("orders", [b"aaaa", b"aaa", b"bbb"], timestamp_us=1))
    part[56:72] = struct.pack("<4I", *ends)
    pieces = mended(Batch(part, 0, 20))
    found = [None if piece.fault else piece.value(index) for piece in pieces for index in range(piece.count)]
    assert found == left
