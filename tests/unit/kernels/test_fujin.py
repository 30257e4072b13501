"""The scan of Fujin's WRITEs, interpreted and compiled, against the plain way of building a batch."""

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish
from headrace.protocols.fujin.frames import HEADER_STRINGS_MAX, encode_write
from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways

NOW = 1_700_000_000_000_000
MESSAGE_MAX = 100_000
HEADERS_MAX = 2000
ROUTES = {b"route": "orders", b"r\xff": "a"}

Headers = list[tuple[str, bytes]]
Written = tuple[str, bytes, Headers, int]

each_way = pytest.mark.parametrize("kernel", both_ways("fujin"))
topics = st.sampled_from(["a", "orders", "orders.eu", "ünïcode", "route", "x" * 1024])
headers = st.lists(st.tuples(st.text(max_size=12), st.binary(max_size=12)), max_size=4)
values = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"same size", b"v" * 70_000]))
tags = st.integers(min_value=0, max_value=2**32 - 1)
written = st.tuples(topics, values, st.one_of(st.just([]), headers), tags)


def form(kernel: ModuleType, with_headers: bool) -> object:
    return kernel.Form(with_headers, MESSAGE_MAX, HEADERS_MAX, HEADER_STRINGS_MAX, ROUTES)


def plain_batches(writes: list[Written]) -> list[Publish]:
    """What a scan must give, one message after the other, with the model's own batch builder."""
    groups: list[tuple[str, list[Written]]] = []
    latest: dict[str, int] = {}
    for write in writes:
        topic = ROUTES.get(write[0].encode(), write[0])
        number = latest.get(topic)
        if number is None or groups[number][0] != write[0]:
            latest[topic] = number = len(groups)
            groups.append((write[0], []))
        groups[number][1].append(write)
    return [plain_batch(ROUTES.get(name.encode(), name), group) for name, group in groups]


def plain_batch(topic: str, group: list[Written]) -> Publish:
    part = build_batch(
        topic,
        [value for _, value, _, _ in group],
        timestamp_us=NOW,
        protocol=Protocol.FUJIN,
        headers=[pairs for _, _, pairs, _ in group] if any(pairs for _, _, pairs, _ in group) else None,
    )
    ids = struct.pack(f">{len(group)}I", *(tag for *_, tag in group))
    return Publish(topic, 1, len(group), bytearray(RECORD_HEADER_SIZE) + part, b"\2" + ids, True)


@each_way
@pytest.mark.parametrize("with_headers", [True, False])
@tried(150)
@given(writes=st.lists(written, max_size=30), before=st.binary(max_size=9), cut=st.integers(0, 13))
def test_a_scan_is_the_plain_batches(
    kernel: ModuleType, with_headers: bool, writes: list[Written], before: bytes, cut: int
) -> None:
    if not with_headers:
        writes = [(topic, value, [], tag) for topic, value, _, tag in writes]
    commands = [encode_write(tag, topic, value, pairs if with_headers else None) for topic, value, pairs, tag in writes]
    unfinished = encode_write(1, "a", b"unfinished", () if with_headers else None)[: max(cut, 1)]
    data = before + b"".join(commands) + unfinished
    at, publishes = kernel.scan_writes(data, len(before), len(data), form(kernel, with_headers), NOW)
    assert at == len(data) - len(unfinished)
    assert publishes == plain_batches(writes)


@each_way
@pytest.mark.parametrize("with_headers", [True, False])
def test_runs_of_one_size_are_scanned_like_all_others(kernel: ModuleType, with_headers: bool) -> None:
    writes: list[Written] = [("orders", b"%06d" % i, [], i) for i in range(1000)]
    writes[700] = ("orders", b"longer than the others", [("k", b"v")] if with_headers else [], 700)
    data = b"".join(encode_write(tag, topic, value, h if with_headers else None) for topic, value, h, tag in writes)
    at, publishes = kernel.scan_writes(data, 0, len(data), form(kernel, with_headers), NOW)
    assert at == len(data)
    assert publishes == [plain_batch("orders", writes)]


@each_way
def test_headers_are_read_back_as_pairs(kernel: ModuleType) -> None:
    data = encode_write(1, "a", b"x", [("clé", b"\xff"), ("", b"")]) + encode_write(2, "a", b"y")
    _, (publish,) = kernel.scan_writes(data, 0, len(data), form(kernel, True), NOW)
    batch = Batch(publish.record, RECORD_HEADER_SIZE, 0)
    assert [batch.message(i).headers for i in range(2)] == [[("clé", b"\xff"), ("", b"")], ()]


def head(tag: int, topic: bytes) -> bytes:
    return struct.pack(">BII", 3, tag, len(topic)) + topic


NOT_PLAIN = {
    "another command": b"\x04" + bytes(30),
    "no topic": head(1, b"") + struct.pack(">HI", 0, 9) + b"x" * 9,
    "a topic too long": head(1, b"x" * 1025) + struct.pack(">HI", 0, 1) + b"x",
    "a topic that is no text": head(1, b"\xff") + struct.pack(">HI", 0, 1) + b"x",
    "a topic nobody can print": head(1, b"\x07") + struct.pack(">HI", 0, 1) + b"x",
    "a topic longer than what is there": struct.pack(">BII", 3, 1, 900) + b"x" * 40,
    "an odd count of strings": head(1, b"a") + struct.pack(">HII", 1, 0, 1) + b"x",
    "too many strings": head(1, b"a") + struct.pack(">H", 258) + bytes(4 * 258) + struct.pack(">I", 1) + b"x",
    "headers too long": head(1, b"a") + struct.pack(">HI", 2, 2001) + bytes(2001 + 4) + struct.pack(">I", 1) + b"x",
    "headers too long together": head(1, b"a")
    + struct.pack(">HI", 2, 1990)
    + bytes(1990)
    + struct.pack(">I", 7)
    + bytes(7)
    + struct.pack(">I", 1)
    + b"x",
    "a key that is no text": encode_write(1, "a", b"x", [("k", b"v")]).replace(b"k", b"\xff"),
    "a message too long": head(1, b"a") + struct.pack(">HI", 0, MESSAGE_MAX + 1) + bytes(MESSAGE_MAX + 1),
    "a message not whole": head(1, b"a") + struct.pack(">HI", 0, 9) + b"x" * 8,
    "a message without a size": head(1, b"a") + struct.pack(">HI", 2, 0) + b"\0\0\0\0\0\0",
}


@each_way
@pytest.mark.parametrize("wrong", NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_a_scan_stops_before_what_is_not_plainly_valid(kernel: ModuleType, wrong: bytes) -> None:
    good = encode_write(7, "a", b"good") * 3
    for before in (b"", good):
        at, publishes = kernel.scan_writes(before + wrong, 0, len(before + wrong), form(kernel, True), NOW)
        assert at == len(before)
        assert [publish.count for publish in publishes] == [3][: len(before)]


@each_way
def test_the_largest_headers_and_the_largest_message_fit(kernel: ModuleType) -> None:
    pairs = [("k" * 100, b"v" * (HEADERS_MAX - 104))]
    many = [("", b"")] * (HEADER_STRINGS_MAX // 2)
    data = encode_write(1, "a", bytes(MESSAGE_MAX), pairs) + encode_write(2, "a", b"", many)
    at, publishes = kernel.scan_writes(data, 0, len(data), form(kernel, True), NOW)
    assert at == len(data)
    assert publishes == [plain_batch("a", [("a", bytes(MESSAGE_MAX), pairs, 1), ("a", b"", many, 2)])]
