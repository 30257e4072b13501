"""The BlipMQ kernels, interpreted and compiled, against the plain way of building a batch."""

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish
from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways

NOW = 1_700_000_000_000_000
KERNELS = both_ways("blipmq")

each_way = pytest.mark.parametrize("kernel", KERNELS)
topics = st.sampled_from(["a", "orders", "orders.eu", "ünïcode", "x" * 1024])
messages = st.tuples(
    topics, st.sampled_from([0, 1]), st.binary(max_size=40), st.integers(min_value=0, max_value=2**64 - 1)
)


def frame(kind: int, tag: int, payload: bytes) -> bytes:
    return struct.pack(">IBQ", 9 + len(payload), kind, tag) + payload


def publish(topic: str | bytes, qos: int, value: bytes, tag: int) -> bytes:
    raw = topic if isinstance(topic, bytes) else topic.encode()
    return frame(3, tag, struct.pack(">BH", qos, len(raw)) + raw + value)


def plain_batches(published: list[tuple[str, int, bytes, int]]) -> list[Publish]:
    """What a scan must give, one message after the other, with the model's own batch builder."""
    groups: list[tuple[str, int, list[bytes], list[int]]] = []
    latest: dict[str, int] = {}
    for topic, qos, value, tag in published:
        number = latest.get(topic)
        if number is None or groups[number][1] != qos:
            latest[topic] = number = len(groups)
            groups.append((topic, qos, [], []))
        groups[number][2].append(value)
        groups[number][3].append(tag)
    return [
        Publish(
            topic,
            qos,
            len(values),
            bytearray(RECORD_HEADER_SIZE)
            + build_batch(topic, values, timestamp_us=NOW, qos=qos, protocol=Protocol.BLIPMQ),
            struct.pack(f">{len(tags)}Q", *tags),
        )
        for topic, qos, values, tags in groups
    ]


@each_way
@tried(150)
@given(published=st.lists(messages, max_size=60), before=st.binary(max_size=9), behind=st.binary(max_size=12))
def test_a_scan_builds_the_batches_the_model_would(
    kernel: ModuleType, published: list[tuple[str, int, bytes, int]], before: bytes, behind: bytes
) -> None:
    frames = b"".join(publish(*message) for message in published)
    data = before + frames + behind
    end = len(before) + len(frames)
    assert kernel.scan_publishes(data, len(before), end, NOW) == (end, plain_batches(published))


@each_way
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_read_in_place_and_let_go(kernel: ModuleType, kind: type) -> None:
    data = kind(publish("t", 1, b"v", 7))
    _, (batch,) = kernel.scan_publishes(data, 0, len(data), NOW)
    assert (batch.topic, batch.qos, batch.count, batch.tags) == ("t", 1, 1, struct.pack(">Q", 7))
    if isinstance(data, bytearray):
        data.clear()
    assert Batch(batch.record, RECORD_HEADER_SIZE, 0).value(0) == b"v"


@each_way
def test_a_hundred_topics_in_turn_keep_their_order(kernel: ModuleType) -> None:
    published = [(f"topic-{i % 100}", 1, b"%d" % i, i) for i in range(1000)]
    data = b"".join(publish(*message) for message in published)
    end, batches = kernel.scan_publishes(data, 0, len(data), NOW)
    assert end == len(data)
    assert [batch.topic for batch in batches] == [f"topic-{i}" for i in range(100)]
    assert batches == plain_batches(published)


@each_way
@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(frame(3, 1, b""), id="no payload"),
        pytest.param(frame(3, 1, b"\x01\x00"), id="topic length cut off"),
        pytest.param(frame(3, 1, b"\x01\x00\x05abcd"), id="topic cut off"),
        pytest.param(publish("", 1, b"v", 1), id="empty topic"),
        pytest.param(publish("t", 2, b"v", 1), id="unknown QoS"),
        pytest.param(publish(b"\xff\xfe", 1, b"v", 1), id="topic not UTF-8"),
        pytest.param(publish("t" * 1025, 1, b"v", 1), id="topic too long"),
        pytest.param(publish("a\nb", 1, b"v", 1), id="topic unprintable"),
        pytest.param(frame(7, 1, b""), id="another frame"),
        pytest.param(frame(7, 1, b"\x01\x00\x01t"), id="another frame with the same payload"),
        pytest.param(struct.pack(">I", 0), id="length 0"),
        pytest.param(struct.pack(">IBQBH", 2**32 - 1, 3, 1, 1, 1) + b"t", id="length beyond the end"),
        pytest.param(publish("t", 1, b"value", 1)[:-1], id="one byte missing"),
        pytest.param(publish("t", 1, b"", 1)[:15], id="only a head"),
        pytest.param(b"\x00\x00\x00", id="length cut off"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_scan_stops_before_what_is_not_plainly_valid(kernel: ModuleType, stop: bytes) -> None:
    good = publish("t", 1, b"", 1) + publish("u", 0, b"v" * 300, 2)
    data = good + stop
    at, batches = kernel.scan_publishes(data, 0, len(data), NOW)
    assert at == len(good)
    assert sum(batch.count for batch in batches) == 2
    assert kernel.scan_publishes(stop, 0, len(stop), NOW) == (0, [])


@each_way
def test_a_frame_that_reaches_beyond_the_end_is_left_alone(kernel: ModuleType) -> None:
    first = publish("t", 1, b"first", 1)
    data = first + publish("t", 1, b"second", 2)
    for end in range(len(data)):
        at, batches = kernel.scan_publishes(data, 0, end, NOW)
        assert at == (len(first) if end >= len(first) else 0)
        assert len(batches) == (end >= len(first))


@each_way
@tried(150)
@given(
    topic=topics,
    values=st.lists(st.binary(max_size=50), min_size=1, max_size=30),
    qos=st.sampled_from([0, 1]),
    place=st.data(),
)
def test_deliveries_are_the_frames_of_the_chosen_messages(
    kernel: ModuleType, topic: str, values: list[bytes], qos: int, place: st.DataObject
) -> None:
    index = place.draw(st.integers(0, len(values) - 1))
    count = place.draw(st.integers(0, len(values) - index))
    start = 8 * place.draw(st.integers(0, 3))
    buffer = bytes(start) + build_batch(topic, values, timestamp_us=NOW, keys=[b"k"] * len(values))
    chosen = values[index : index + count]
    consecutive = b"".join(publish(topic, qos, value, 2**40 + i) for i, value in enumerate(chosen))
    assert kernel.encode_deliveries(buffer, start, index, count, qos, 2**40, b"") == consecutive
    tags = [2**64 - 1 - 3 * i for i in range(count)]
    packed = struct.pack(f">{count}Q", *tags)
    if count:
        named = b"".join(publish(topic, qos, value, tag) for value, tag in zip(chosen, tags, strict=True))
        assert kernel.encode_deliveries(bytearray(buffer), start, index, count, qos, 0, packed) == named


@each_way
def test_publish_and_deliver_give_the_same_frames_back(kernel: ModuleType) -> None:
    frames = b"".join(publish("t", 1, bytes(size), size + 5) for size in range(200))
    _, (batch,) = kernel.scan_publishes(frames, 0, len(frames), NOW)
    assert kernel.encode_deliveries(batch.record, RECORD_HEADER_SIZE, 0, 200, 1, 5, b"") == frames
    assert kernel.encode_deliveries(batch.record, RECORD_HEADER_SIZE, 0, 200, 1, 0, batch.tags) == frames
