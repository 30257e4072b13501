"""The gate: what it lets through is a batch as we make them, byte for byte, and what every door makes gets through."""

import struct
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.broker.deadletters import dead_letters
from headrace.kernels import load_source
from headrace.kernels.gate import REASONS, Fault
from headrace.model.batch import Batch, build_batch
from headrace.model.marks import mark_part, packed_offsets
from headrace.model.mending import adds_up
from tests.harness.properties import tried
from tests.harness.spoilt import rebuilt, sound_parts, spoilt_parts
from tests.unit.kernels.both_ways import both_ways

each_way = pytest.mark.parametrize("kernel", both_ways("gate"))
interpreted = load_source("gate", "interpreted_gate_beside")

PLAIN = build_batch("orders", [b"one", b"", b"three"], timestamp_us=5)
FULL = build_batch(
    "orders", [b"1", b"2"], timestamp_us=5, keys=[b"k", b""], headers=[[("a", b"b")], []], message_ids=["x", "ü"]
)


@each_way
@tried(300)
@given(part=sound_parts(), before=st.integers(0, 9), behind=st.integers(0, 9))
def test_every_batch_we_make_gets_through_wherever_it_is(
    kernel: ModuleType, part: bytes, before: int, behind: int
) -> None:
    data = b"\xaa" * before + part + b"\xaa" * behind
    assert kernel.check_part(data, before, before + len(part)) == Fault.SOUND
    assert kernel.check_part(data, before, len(data)) == Fault.SOUND


@each_way
@tried(1000)
@given(part=spoilt_parts())
def test_what_gets_through_is_what_we_would_have_made_byte_for_byte(kernel: ModuleType, part: bytes) -> None:
    fault = kernel.check_part(part, 0, len(part))
    assert fault == interpreted.check_part(part, 0, len(part))
    if fault == Fault.SOUND:
        size = Batch(part, 0, 0).size
        assert rebuilt(part) == part[:size]
    else:
        assert REASONS[Fault(fault)]


@each_way
@pytest.mark.parametrize("part", [PLAIN, FULL], ids=["plain", "full"])
def test_every_byte_is_looked_at_or_free_to_be_anything(kernel: ModuleType, part: bytes) -> None:
    for place in range(4, len(part)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(part)
            changed[place] ^= flip
            data = bytes(changed)
            if kernel.check_part(data, 0, len(data)) == Fault.SOUND:
                assert rebuilt(data) == data


@each_way
@given(part=sound_parts(), keep=st.integers(0, 400))
def test_a_batch_that_is_cut_off_does_not_get_through(kernel: ModuleType, part: bytes, keep: int) -> None:
    kept = part[: min(keep, len(part) - 1)]
    assert kernel.check_part(kept, 0, len(kept)) == Fault.SIZES


@each_way
@given(text=st.binary(max_size=6))
@example(b"\xed\xa0\x80")
@example(b"\xc0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xe0\x9f\xbf")
@example(b"\xf0\x8f\xbf\xbf")
@example(b"\xf5\x80\x80\x80")
@example(b"a\xe2\x82")
def test_texts_are_utf_8_as_python_has_it(kernel: ModuleType, text: bytes) -> None:
    part = build_batch("orders", [b"1"], timestamp_us=5, headers=[[("k" * 6, b"v")]], message_ids=["i" * len(text)])
    try:
        text.decode()
        right = True
    except UnicodeDecodeError:
        right = False
    at = len(part) - 8 if text else len(part)
    as_id = part[:at] + text + part[at + len(text) :]
    assert (kernel.check_part(as_id, 0, len(as_id)) == Fault.SOUND) is right
    as_key = part.replace(b"kkkkkk", text.ljust(6, b"k"))
    assert (kernel.check_part(as_key, 0, len(as_key)) == Fault.SOUND) is _is_text(text.ljust(6, b"k"))


def _is_text(data: bytes) -> bool:
    return "\ufffd" not in data.decode(errors="replace") or "\ufffd".encode() in data


@each_way
def test_a_character_over_two_ids_is_none(kernel: ModuleType) -> None:
    part = bytearray(build_batch("orders", [b"1", b"2"], timestamp_us=5, message_ids=["ü", ""]))
    struct.pack_into("<I", part, len(part) - 8 - 12, 1)
    assert part[-8:-6] == "ü".encode()
    assert kernel.check_part(part, 0, len(part)) == Fault.TEXT


@each_way
def test_dead_letters_and_marks_get_through(kernel: ModuleType) -> None:
    dead = dead_letters(Batch(FULL, 0, 7), 0, 2, subscription=3, attempts=2, reason="no", now=9)
    mark = mark_part(packed_offsets(range(20_000)), 9)
    for part in (dead, mark):
        assert kernel.check_part(part, 0, len(part)) == Fault.SOUND


@given(part=spoilt_parts())
def test_a_batch_that_gets_through_adds_up(part: bytes) -> None:
    batch = Batch(part, 0, 0)
    if interpreted.check_part(part, 0, len(part)) == Fault.SOUND:
        assert adds_up(batch.size, batch.count, batch.topic_size)
