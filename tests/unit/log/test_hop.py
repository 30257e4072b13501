import random

import pytest

from headrace.log.format import SYNCED_MARK, lost_record, stamp
from headrace.log.hop import WINDOW_BYTES, Hole, Hopper
from headrace.model.batch import build_batch
from tests.unit.log.records import batch, event, record


class Bytes:
    """Bytes to be walked like a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


def run_of(*records: bytearray, first: int = 0) -> tuple[bytes, list[int]]:
    """Stamped records back to back, and where each begins."""
    data = bytearray()
    starts = []
    for item in records:
        stamp(item, first)
        hopper = Hopper(Bytes(bytes(item)), 0, len(item), first)
        first += next(iter(hopper)).span
        starts.append(len(data))
        data += item
    return bytes(data), starts


def walked(data: bytes, first: int = 0, limit: int | None = None) -> tuple[list[int], Hopper]:
    hopper = Hopper(Bytes(data), 0, len(data), first, limit)
    return [found.first for found in hopper], hopper


def test_all_records_in_order() -> None:
    data, starts = run_of(record(batch(count=3)), record(event()), record(batch(count=2), event()), first=100)
    firsts, hopper = walked(data, 100)
    assert firsts == [100, 103, 104]
    assert (hopper.position, hopper.expected, hopper.walked, hopper.holes) == (len(data), 107, len(data), [])
    assert starts[2] < len(data)


def test_records_across_and_larger_than_the_window() -> None:
    sizes = [WINDOW_BYTES // 3, WINDOW_BYTES // 2, WINDOW_BYTES // 2, 3 * WINDOW_BYTES, 10, WINDOW_BYTES - 16]
    data, _ = run_of(*(record(batch(size=size)) for size in sizes))
    assert walked(data)[0] == list(range(6))


def test_zeros_are_a_clean_end() -> None:
    data, _ = run_of(record(batch()), record(event()))
    firsts, hopper = walked(data + bytes(3 * WINDOW_BYTES + 40))
    assert (firsts, hopper.holes, hopper.position) == ([0, 1], [], len(data))


@pytest.mark.parametrize("tail", [b"x", b"\1" * 15, b"\1" * 100, bytes(64) + b"\1"])
def test_bytes_that_lead_nowhere_are_one_hole_to_the_end(tail: bytes) -> None:
    data, _ = run_of(record(batch()))
    _, hopper = walked(data + tail)
    assert hopper.holes == [Hole(len(data), len(data) + len(tail), 1, None)]


def test_the_limit_ends_the_walk() -> None:
    data, starts = run_of(record(batch(count=2)), record(batch(count=2)), record(event()))
    firsts, hopper = walked(data, limit=4)
    assert (firsts, hopper.position, hopper.holes) == ([0, 2], starts[2], [])


@pytest.mark.parametrize("position", range(0, 200, 7))
def test_a_bad_record_is_leapt_over_and_its_offsets_are_known(position: int) -> None:
    data, starts = run_of(record(batch(count=2)), record(batch(count=5, size=20)), record(event()), record(batch()))
    bad = bytearray(data)
    bad[starts[1] + position] ^= 0x40
    firsts, hopper = walked(bytes(bad))
    assert firsts == [0, 7, 8]
    assert hopper.holes == [Hole(starts[1], starts[2], 2, 5)]


def test_a_long_stretch_of_noise_is_searched_at_every_aligned_position() -> None:
    data, _ = run_of(record(batch(count=2)))
    noise = random.Random(7).randbytes(2 * WINDOW_BYTES + 8)
    rest, _ = run_of(record(batch(count=2)), first=50)
    firsts, hopper = walked(data + noise + rest)
    assert firsts == [0, 50]
    assert hopper.holes == [Hole(len(data), len(data) + len(noise), 2, 48)]


def test_a_payload_that_holds_a_record_is_not_taken_for_one() -> None:
    inner = record(event())
    stamp(inner, 7)
    value = bytes(inner)
    smuggler = build_batch("orders", [value, b"12345678"], timestamp_us=1)
    data, starts = run_of(record(batch()), record(smuggler), record(event()))
    assert data.index(value) % 8 == 0
    bad = bytearray(data)
    bad[starts[2] - 4] ^= 1
    assert walked(bytes(bad))[1].holes == [Hole(starts[1], starts[2], 1, 2)]


def test_records_in_a_wrong_place_do_not_count() -> None:
    data, starts = run_of(record(batch()), record(batch()), record(batch()))
    swapped = data[: starts[1]] + data[starts[2] :] + data[starts[1] : starts[2]]
    firsts, hopper = walked(swapped)
    assert firsts == [0, 2]
    assert hopper.holes[0] == Hole(starts[1], starts[1], 1, 1)


def test_marks_say_how_far_everything_was_synced() -> None:
    data, starts = run_of(record(batch()), record(batch()), record(batch()))
    marked = bytearray(data[starts[1] : starts[2]])
    stamp(marked, 1, mark=SYNCED_MARK)
    _, hopper = walked(data[: starts[1]] + marked + data[starts[2] :])
    assert hopper.synced == 1


def test_a_lost_record_is_walked_like_any_other() -> None:
    data, _ = run_of(record(batch()))
    rest, _ = run_of(record(event()), first=1001)
    firsts, hopper = walked(data + lost_record(1, 1000) + rest)
    assert (firsts, hopper.holes) == ([0, 1, 1001], [])
