"""Cells collected into columns, interpreted and compiled, against the model's own way of taking messages out."""

import zlib
from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import records
from headrace.kernels.columns import HEADERS, KEY, MESSAGE_ID, VALUE
from headrace.model.batch import Batch, Headers, encode_headers
from headrace.model.events import RANGE, EventPart
from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways
from tests.unit.kernels.test_records import HUGE, TOPICS, payloads, written

each_way = pytest.mark.parametrize("kernel", both_ways("columns"))

headers_of_one = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=4)


def scanned(data: bytes, start: int, limit: int) -> tuple["array[int]", records.Walk]:
    """One table with everything in it."""
    walk = records.Walk(zlib.crc32, 3, {topic.encode(): code for code, topic in enumerate(TOPICS)})
    walk.next = start
    table = array("q", bytes(8 * records.WIDTH * 100))
    records.scan(data, len(data), walk, limit, HUGE, HUGE, table)
    return table, walk


def ints(count: int) -> memoryview:
    return memoryview(bytearray(4 * count)).cast("i")


@each_way
@tried(150)
@given(contents=st.lists(payloads, min_size=1, max_size=4), cut=st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_cells_are_gathered_as_the_model_finds_them(
    kernel: ModuleType, contents: list[list[bytes]], cut: tuple[int, int]
) -> None:
    data, parts, end = written(contents)
    start, limit = min(cut), min(max(cut), end)
    table, walk = scanned(data, start, limit)
    of_batches = [row for row in range(walk.parts) if table[row * records.WIDTH] == 1]
    batches = array("q")
    for row in of_batches:
        batches.extend(table[row * records.WIDTH : (row + 1) * records.WIDTH])
    expected = [
        (part, index)
        for part in parts
        if isinstance(part, Batch)
        for index in range(part.count)
        if start <= part.base + index < limit
    ]
    for column in (VALUE, KEY, HEADERS, MESSAGE_ID):
        slot = records.BATCH_COLUMNS + 3 * column
        size = sum(batches[slot + 2 :: records.WIDTH])
        ends, cells = memoryview(bytearray(4 * len(expected))).cast("I"), memoryview(bytearray(size))
        kernel.gather_cells(data, batches, len(of_batches), column, ends, cells)
        assert bytes(cells) == b"".join(_cell(part, index, column) for part, index in expected)
        assert list(ends) == [_own_end(part, index, column) for part, index in expected]


def _cell(part: Batch, index: int, column: int) -> bytes:
    message = part.message(index)
    found = (message.value, message.key, encode_headers(message.headers), (message.message_id or "").encode())
    return found[column] or b""


def _own_end(part: Batch, index: int, column: int) -> int:
    return sum(len(_cell(part, before, column)) for before in range(index + 1))


@each_way
@tried(100)
@given(contents=st.lists(payloads, min_size=1, max_size=4))
def test_ranges_are_gathered_as_written(kernel: ModuleType, contents: list[list[bytes]]) -> None:
    data, parts, end = written(contents)
    walk = records.Walk(zlib.crc32, records.EVENTS, {})
    table = array("q", bytes(8 * records.WIDTH * 100))
    records.scan(data, len(data), walk, end, HUGE, HUGE, table)
    events: list[EventPart] = [part[1] for part in parts if not isinstance(part, Batch)]
    expected = b"".join(RANGE.pack(*each) for event in events for each in event.ranges)
    found = bytearray(len(expected))
    kernel.gather_ranges(data, table, walk.parts, found)
    assert found == expected


@each_way
@tried(200)
@given(rows=st.lists(headers_of_one, max_size=6))
def test_headers_are_taken_apart(kernel: ModuleType, rows: list[Headers]) -> None:
    cells = [encode_headers(headers) for headers in rows]
    ends = ints(len(rows) + 1)
    for number, cell in enumerate(cells):
        ends[number + 1] = ends[number] + len(cell)
    joined = b"".join(cells)
    every = [(key.encode(), value) for headers in rows for key, value in headers]
    count, keys_size, values_size = kernel.measure_headers(ends, joined)
    assert count == len(every)
    assert keys_size == sum(len(key) for key, _ in every)
    assert values_size == sum(len(value) for _, value in every)
    list_ends, key_ends, value_ends = ints(len(rows) + 1), ints(count + 1), ints(count + 1)
    keys, values = bytearray(keys_size), bytearray(values_size)
    kernel.split_headers(ends, joined, list_ends, key_ends, keys, value_ends, values)
    assert [list_ends[n + 1] - list_ends[n] for n in range(len(rows))] == [len(headers) for headers in rows]
    found = [
        (bytes(keys[key_ends[n] : key_ends[n + 1]]), bytes(values[value_ends[n] : value_ends[n + 1]]))
        for n in range(count)
    ]
    assert found == every


@each_way
@tried(300)
@given(cell=st.binary(max_size=30), claimed=st.integers(-2, 40))
def test_cells_that_are_no_headers_are_refused(kernel: ModuleType, cell: bytes, claimed: int) -> None:
    ends = ints(2)
    ends[1] = claimed
    count, keys_size, values_size = kernel.measure_headers(ends, cell)
    assert (count, keys_size, values_size) == (-1, -1, -1) or 6 * count + keys_size + values_size == claimed
