"""The walk over records, interpreted and compiled, against the model's own way of taking records apart."""

import zlib
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import records as constants
from headrace.log import format as log_format
from headrace.log.extents import EXTENT_BYTES
from headrace.log.format import lost_record, stamp
from headrace.model.batch import Batch, build_batch
from headrace.model.events import Event, EventPart, Range
from headrace.model.parts import RECORD_HEADER_SIZE, iter_parts
from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways

each_way = pytest.mark.parametrize("kernel", both_ways("records"))

HUGE = 1 << 62
TOPICS = ("orders", "payments", "größe")

cells = st.lists(st.binary(max_size=20), min_size=1, max_size=6)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    values = draw(cells)
    count = len(values)

    def _column(cell: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(cell, min_size=count, max_size=count))

    return build_batch(
        draw(st.sampled_from(TOPICS)),
        values,
        timestamp_us=draw(st.integers(0, 1 << 60)),
        keys=_column(st.binary(max_size=5)),
        headers=_column(st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=4)), max_size=3)),
        message_ids=_column(st.text(max_size=5)),
    )


events = st.builds(
    lambda event, when, subscription, ranges, reason, detail: EventPart(
        event, when, subscription, [Range(*each) for each in ranges], reason, detail
    ).encode(),
    st.sampled_from(Event),
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 40),
    st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(1, 9), st.integers(0, 4)), max_size=4),
    st.text(max_size=8),
    st.binary(max_size=8),
)
payloads = st.lists(batches() | events, min_size=1, max_size=4)


def written(payloads: list[list[bytes]], first: int = 0) -> tuple[bytes, list[Any], int]:
    """The records, the parts in them as the model sees them, and the offset behind."""
    data, parts = bytearray(), []
    for number, payload in enumerate(payloads):
        record = bytearray(RECORD_HEADER_SIZE) + b"".join(payload)
        stamp(record, first, mark=number & 1)
        found = list(iter_parts(bytes(record), RECORD_HEADER_SIZE, len(record), first))
        parts += found
        last = found[-1]
        first = last.end if isinstance(last, Batch) else last[0] + 1
        data += record
    return bytes(data), parts, first


class Scanned:
    """Walks like its users do, and keeps what the tables said."""

    def __init__(self, kernel: ModuleType, data: bytes, *, kinds: int = 3, topics: Any = None, start: int = 0) -> None:
        self.kernel = kernel
        topics = {topic.encode(): code for code, topic in enumerate(TOPICS)} if topics is None else topics
        self.walk = kernel.Walk(zlib.crc32, kinds, topics)
        self.walk.next = start
        self.data = data
        self.rows: list[tuple[int, ...]] = []

    def run(self, limit: int = HUGE, rows_max: int = HUGE, bytes_max: int = HUGE, room: int = 4) -> int:
        table = array("q", bytes(8 * constants.WIDTH * room))
        while True:
            reason = self.kernel.scan(self.data, len(self.data), self.walk, limit, rows_max, bytes_max, table)
            for part in range(self.walk.parts):
                self.rows.append(tuple(table[part * constants.WIDTH : (part + 1) * constants.WIDTH]))
            if reason != constants.FULL:
                return int(reason)


def test_the_kernel_and_the_log_agree_on_the_format() -> None:
    assert constants.PART_LOST == log_format.PART_LOST
    assert constants.RECORD_SIZE_MAX == log_format.RECORD_SIZE_MAX
    assert constants.MARK_BYTES == EXTENT_BYTES


@each_way
@tried(150)
@given(
    contents=st.lists(payloads, max_size=5),
    cut=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    kinds=st.sampled_from([1, 2, 3]),
    wanted=st.sets(st.sampled_from(TOPICS)),
    rows_max=st.integers(1, 8),
    bytes_max=st.integers(1, 60),
    room=st.integers(1, 4),
)
def test_a_scan_lists_what_the_model_finds(
    kernel: ModuleType,
    contents: list[list[bytes]],
    cut: tuple[int, int],
    kinds: int,
    wanted: set[str],
    rows_max: int,
    bytes_max: int,
    room: int,
) -> None:
    data, parts, end = written(contents)
    start, limit = sorted(cut)
    topics = {topic.encode(): number if topic in wanted else -1 for number, topic in enumerate(TOPICS)}
    scanned = Scanned(kernel, data, kinds=kinds, topics=topics, start=start)
    reason = scanned.run(limit, rows_max, bytes_max, room)
    assert reason == (constants.LIMIT if limit <= max(end, start) else constants.MORE)
    expected: list[tuple[object, ...]] = []
    for part in parts:
        if isinstance(part, Batch):
            rows = range(max(start, part.base), min(limit, part.end))
            if kinds & 1 and part.topic in wanted:
                expected += [("batch", offset, part.timestamp_us, part.topic, part.protocol) for offset in rows]
        elif kinds & 2 and start <= part[0] < limit:
            event = part[1]
            about = max(1, sum(each.count for each in event.ranges))
            expected.append(("event", part[0], event.timestamp_us, event.event, event.subscription, about))
    found: list[tuple[object, ...]] = []
    for row in scanned.rows:
        if row[constants.KIND] == 1:
            offsets = range(row[constants.OFFSET], row[constants.OFFSET] + row[constants.ROWS])
            topic, protocol = TOPICS[row[constants.CODE]], row[constants.BATCH_PROTOCOL]
            found += [("batch", offset, row[constants.TIMESTAMP], topic, protocol) for offset in offsets]
        else:
            _, offset, about, when, code = row[:5]
            found.append(("event", offset, when, Event(code), row[constants.EVENT_SUBSCRIPTION], about))
    assert found == expected


@each_way
def test_batches_are_cut_by_rows_and_by_bytes_but_a_message_never_is(kernel: ModuleType) -> None:
    data, _, _ = written([[build_batch("orders", [b"x" * 10] * 7 + [b"y" * 100], timestamp_us=1)]])
    by_rows = Scanned(kernel, data)
    assert by_rows.run(rows_max=3) == constants.MORE
    assert [row[constants.ROWS] for row in by_rows.rows] == [3, 3, 2]
    by_bytes = Scanned(kernel, data)
    assert by_bytes.run(bytes_max=25) == constants.MORE
    assert [row[constants.ROWS] for row in by_bytes.rows] == [2, 2, 2, 1, 1]


@each_way
@pytest.mark.parametrize("size", [10, 5000])
def test_any_flipped_bit_is_noticed(kernel: ModuleType, size: int) -> None:
    data, _, end = written(
        [[build_batch("orders", [b"x" * size], timestamp_us=1)], [EventPart(Event.ACKED, 1, 1).encode()]]
    )
    size_first = len(data) - RECORD_HEADER_SIZE - 32
    positions = [*range(min(size_first, 120)), *range(size_first - 8, size_first)]
    for position in positions:
        bad = bytearray(data)
        bad[position] ^= 1 << position % 8
        scanned = Scanned(kernel, bytes(bad))
        reason = scanned.run(end)
        assert reason in (constants.BAD, constants.MORE), position
        assert not scanned.rows
        if reason == constants.MORE:
            assert scanned.walk.needed > len(data)


@each_way
def test_parts_that_do_not_add_up_are_refused_though_their_checksum_is_right(kernel: ModuleType) -> None:
    good = build_batch("orders", [b"abc", b"d"], timestamp_us=1, keys=[b"k", b"l"])
    sizes = len(good)
    for position in range(0, sizes, 4):
        for value in (0, 1, 7, 0x7FFFFFFF, 0xFFFFFFFF, sizes, sizes + 8):
            part = bytearray(good)
            part[position : position + 4] = value.to_bytes(4, "little")
            record = bytearray(RECORD_HEADER_SIZE) + part
            stamp(record, 0)
            scanned = Scanned(kernel, bytes(record), topics=_Any())
            assert scanned.run(HUGE) in (constants.BAD, constants.MORE)
            for row in scanned.rows:
                assert row[constants.ROWS] > 0
                for column in range(4):
                    ends, first, size = row[constants.BATCH_COLUMNS + 3 * column :][:3]
                    assert 0 <= ends + first + size <= len(record)


class _Any(dict[bytes, int]):
    def __missing__(self, name: bytes) -> int:
        return 0


@each_way
def test_lost_offsets_are_told_of_as_far_as_they_are_wanted(kernel: ModuleType) -> None:
    tail = bytearray(RECORD_HEADER_SIZE) + build_batch("orders", [b"a"], timestamp_us=1)
    stamp(tail, 30)
    data = bytes(lost_record(0, 30) + tail)
    for start, limit, first, count in ((0, HUGE, 0, 30), (7, 20, 7, 13)):
        scanned = Scanned(kernel, data, start=start)
        assert scanned.run(limit) == constants.LOST
        assert (scanned.walk.lost_first, scanned.walk.lost_count) == (first, count)
        assert scanned.run(limit) == (constants.LIMIT if limit == 20 else constants.MORE)
        assert len(scanned.rows) == (limit != 20)


@each_way
def test_marks_are_left_about_every_64_kib(kernel: ModuleType) -> None:
    data, _, _ = written([[build_batch("orders", [b"x" * 1000], timestamp_us=1)] for _ in range(200)])
    scanned = Scanned(kernel, data)
    scanned.walk.origin = 64
    assert scanned.run(room=500) == constants.MORE
    size = len(data) // 200
    step = -(-constants.MARK_BYTES // size)
    assert scanned.walk.marks == [(number, 64 + number * size) for number in range(0, 200, step)]


@each_way
def test_a_tally_adds_batches_up_by_topic(kernel: ModuleType) -> None:
    contents = [[build_batch(TOPICS[number % 2], [b"xy"] * 3, timestamp_us=1)] for number in range(4)]
    data, _, _ = written([*contents, [EventPart(Event.ACKED, 1, 1).encode()]])
    walk = kernel.Walk(zlib.crc32, 3, {t.encode(): n for n, t in enumerate(TOPICS)})
    table = array("q", bytes(8 * constants.WIDTH * 9))
    kernel.scan(data, len(data), walk, HUGE, HUGE, HUGE, table)
    tallies = array("q", bytes(8 * 12))
    kernel.tally(table, walk.parts, tallies)
    assert list(tallies) == [0, 9, 6, 12, 3, 12, 6, 12, 0, 0, 0, 0]
