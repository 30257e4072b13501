"""The order of frames: any split of the bytes means the same, each breach has its code, windows hold both ways."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from headrace.http2 import frames
from headrace.http2.frames import Http2Error
from headrace.http2.session import EVENTS_MAX, NOISE_BURST, RESETS_BURST, Session
from headrace.http2.streams import Opened, Received, Reset, Stream
from tests.harness.http2 import Frame, Wire, codes, frame, frames_in, message

WINDOW = 16_384
STREAMS = 8


def session(streams: int = STREAMS) -> Session:
    return Session(streams_max=streams, window=WINDOW, header_list_max=16_384)


@dataclass
class Heard:
    """What a session was told, in a form that does not depend on how the bytes came."""

    opened: list[tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]] = field(default_factory=list)
    bodies: Counter[int] = field(default_factory=Counter)
    data: dict[int, bytes] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    reset: list[tuple[int, int]] = field(default_factory=list)

    def take(self, heard: Session) -> None:
        """Add what there is, and give the bytes back."""
        for event in heard.events:
            if isinstance(event, Opened):
                self.opened.append((event.stream.id, event.request.path, event.request.fields))
                if event.ended:
                    self.ended.append(event.stream.id)
            elif isinstance(event, Received):
                number = event.stream.id
                self.data[number] = self.data.get(number, b"") + bytes(event.data)
                if event.ended:
                    self.ended.append(number)
                heard.release(event.stream, event.size)
            elif isinstance(event, Reset):
                self.reset.append((event.stream.id, event.code))
        heard.events.clear()


def feed(heard: Session, data: bytes, now: float = 0.0) -> Heard:
    """Give a session bytes as a connection does: what it leaves comes again, with more behind."""
    found = Heard()
    while data:
        done = heard.receive(memoryview(data), now)
        found.take(heard)
        if not done:
            break
        data = data[done:]
    return found


def sent(by: Session) -> list[Frame]:
    """What a session would write."""
    return list(frames_in(b"".join(by.data_to_send(1 << 30))))


def conversation() -> bytes:
    """A bit of everything a peer may send."""
    wire = Wire()
    block = wire.block("/a.B/C", ("x-long", "y" * 300))
    padded = bytes([7]) + b"padded body" + bytes(7)
    priority = b"\x00\x00\x00\x00\x10"
    return b"".join((
        wire.hello({frames.INITIAL_WINDOW_SIZE: 100_000, 0x77: 1}),
        frames.SETTINGS_ACK,
        frame(frames.WINDOW_UPDATE, payload=frames.U32.pack(1 << 20)),
        frame(frames.HEADERS, 0, 1, block[:10]),
        frame(frames.CONTINUATION, 0, 1, block[10:11]),
        frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[11:]),
        frame(frames.DATA, frames.PADDED, 1, padded),
        frame(frames.PING, payload=b"12345678"),
        frame(0xEE, payload=b"a frame of a kind nobody knows"),
        wire.call(3, "/a.B/D", b"x" * 12_000, ("k", "v")),
        frame(frames.PRIORITY, 0, 5, priority),
        frame(frames.HEADERS, frames.WITH_PRIORITY | frames.PADDED | frames.END_HEADERS, 5,
              bytes([3]) + priority + wire.block("/a.B/E") + bytes(3)),
        frame(frames.RST_STREAM, 0, 5, frames.U32.pack(frames.CANCEL)),
        frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, wire.encoder.encode([("x-trailer", "t")])),
        wire.headers(7, "/a.B/F", end=True),
    ))  # fmt: skip


def outcome(cuts: list[int]) -> tuple[Heard, Counter[bytes]]:
    """What comes of the conversation when it arrives in these pieces."""
    data, heard, found, rest = conversation(), session(), Heard(), b""
    said: Counter[bytes] = Counter()
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        rest += data[start:end]
        rest = rest[heard.receive(memoryview(rest), 0.0) :]
        found.take(heard)
    assert not rest
    for each in sent(heard):
        if each.kind == frames.WINDOW_UPDATE:
            said[b"credit %d" % each.stream] += each.number
        else:
            said[bytes((each.kind, each.flags, each.stream)) + each.payload] += 1
    return found, said


def test_a_conversation_means_what_it_says() -> None:
    found, said = outcome([])
    assert [(number, path) for number, path, _ in found.opened] == [
        (1, b"/a.B/C"), (3, b"/a.B/D"), (5, b"/a.B/E"), (7, b"/a.B/F"),
    ]  # fmt: skip
    assert found.data[1] == b"padded body"
    assert found.data[3] == message(b"x" * 12_000)
    assert sorted(found.ended) == [1, 3, 7]
    assert found.reset == [(5, frames.CANCEL)]
    assert said[bytes((frames.PING, frames.ACK, 0)) + b"12345678"] == 1


def test_every_single_cut_means_the_same() -> None:
    whole, data = outcome([]), conversation()
    assert outcome(list(range(1, len(data), 97))) == whole
    for cut in [*range(1, 700), *range(len(data) - 200, len(data))]:
        assert outcome([cut])[0] == whole[0]


def test_byte_by_byte_means_the_same() -> None:
    assert outcome(list(range(1, len(conversation()))))[0] == outcome([])[0]


@given(st.lists(st.integers(1, len(conversation()) - 1), max_size=20))
def test_any_cuts_mean_the_same(cuts: list[int]) -> None:
    assert outcome(sorted(cuts))[0] == outcome([])[0]


def wire_and(*more: bytes) -> bytes:
    return Wire().hello() + b"".join(more)


def opened(flags: int = frames.END_HEADERS, number: int = 1) -> bytes:
    return frame(frames.HEADERS, flags, number, Wire().block("/a.B/C"))


def bomb() -> bytes:
    """A block that names one large entry of the table again and again."""
    encoder = Encoder()
    first = encoder.encode([("x", "y" * 3000)])
    return first + encoder.encode([("x", "y" * 3000)]) * 200


BREACHES = {
    "no preface": (b"GET / HTTP/1.1\r\n\r\n", frames.PROTOCOL_ERROR),
    "no settings": (frames.PREFACE + frame(frames.PING, payload=bytes(8)), frames.PROTOCOL_ERROR),
    "a giant frame": (wire_and(frames.head(1 << 20, frames.DATA, 0, 1)), frames.FRAME_SIZE_ERROR),
    "the largest length": (wire_and(b"\xff\xff\xff" + bytes(6)), frames.FRAME_SIZE_ERROR),
    "data for nobody": (wire_and(frame(frames.DATA, 0, 1, b"x")), frames.PROTOCOL_ERROR),
    "data for the connection": (wire_and(frame(frames.DATA, 0, 0, b"x")), frames.PROTOCOL_ERROR),
    "a stream of the server's": (wire_and(opened(number=2)), frames.PROTOCOL_ERROR),
    "a stream that went back": (wire_and(opened(number=5), opened(number=3)), frames.STREAM_CLOSED),
    "headers within headers": (wire_and(opened(0), opened(number=3)), frames.PROTOCOL_ERROR),
    "continuation of nothing": (wire_and(frame(frames.CONTINUATION, 4, 1)), frames.PROTOCOL_ERROR),
    "continuation without end": (
        wire_and(opened(0), *[frame(frames.CONTINUATION, 0, 1)] * 40), frames.ENHANCE_YOUR_CALM,
    ),
    "a block without end": (
        wire_and(opened(0), *[frame(frames.CONTINUATION, 0, 1, bytes(16_000))] * 3), frames.ENHANCE_YOUR_CALM,
    ),
    "no HPACK": (wire_and(frame(frames.HEADERS, 4, 1, b"\xff" * 50)), frames.COMPRESSION_ERROR),
    "an index of nothing": (wire_and(frame(frames.HEADERS, 4, 1, b"\xfe")), frames.COMPRESSION_ERROR),
    "a table that grows and shrinks": (
        wire_and(frame(frames.HEADERS, 4, 1, b"\x20\x3f\xe1\x1f" * 100)), frames.COMPRESSION_ERROR,
    ),
    "a header bomb": (wire_and(frame(frames.HEADERS, 4, 1, bomb())), frames.ENHANCE_YOUR_CALM),
    "settings of a stream": (wire_and(frame(frames.SETTINGS, 0, 1)), frames.PROTOCOL_ERROR),
    "half a setting": (wire_and(frame(frames.SETTINGS, 0, 0, b"x")), frames.FRAME_SIZE_ERROR),
    "a window out of bounds": (
        Wire().hello({frames.INITIAL_WINDOW_SIZE: 1 << 31}), frames.FLOW_CONTROL_ERROR,
    ),
    "a frame size out of bounds": (Wire().hello({frames.MAX_FRAME_SIZE: 100}), frames.PROTOCOL_ERROR),
    "too much credit": (
        wire_and(*[frame(frames.WINDOW_UPDATE, payload=frames.U32.pack((1 << 31) - 1))] * 2), frames.FLOW_CONTROL_ERROR,
    ),
    "credit of nothing": (wire_and(frame(frames.WINDOW_UPDATE, payload=bytes(4))), frames.PROTOCOL_ERROR),
    "a short ping": (wire_and(frame(frames.PING, payload=b"x")), frames.FRAME_SIZE_ERROR),
    "a push": (wire_and(frame(frames.PUSH_PROMISE, 4, 1, bytes(10))), frames.PROTOCOL_ERROR),
    "padding of more than there is": (
        wire_and(opened(), frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(9))), frames.PROTOCOL_ERROR,
    ),
    "many pings": (wire_and(*[frame(frames.PING, payload=bytes(8))] * (NOISE_BURST + 1)), frames.ENHANCE_YOUR_CALM),
    "many settings": (wire_and(*[frame(frames.SETTINGS)] * 100), frames.ENHANCE_YOUR_CALM),
    "many priorities": (
        wire_and(*[frame(frames.PRIORITY, 0, 3, bytes(5))] * (NOISE_BURST + 1)), frames.ENHANCE_YOUR_CALM,
    ),
    "much empty data": (
        wire_and(opened(), *[frame(frames.DATA, 0, 1)] * (NOISE_BURST + 1)), frames.ENHANCE_YOUR_CALM,
    ),
    "many bits of credit": (
        wire_and(*[frame(frames.WINDOW_UPDATE, payload=frames.U32.pack(1))] * (NOISE_BURST + 1)),
        frames.ENHANCE_YOUR_CALM,
    ),
    "many unknown frames": (wire_and(*[frame(0xAA)] * (NOISE_BURST + 1)), frames.ENHANCE_YOUR_CALM),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
def test_each_breach_has_its_code(name: str) -> None:
    data, code = BREACHES[name]
    broken = session()
    with pytest.raises(Http2Error) as raised:
        feed(broken, data)
    assert raised.value.code == code
    last = sent(broken)[-1]
    assert (last.kind, last.number) == (frames.GOAWAY, code)


def rapid(count: int, first: int = 1) -> bytes:
    """Calls begun and given up at once."""
    wire = Wire()
    numbers = range(first, first + 2 * count, 2)
    reset = frames.U32.pack(frames.CANCEL)
    return b"".join(wire.headers(n, "/a.B/C") + frame(frames.RST_STREAM, 0, n, reset) for n in numbers)


def test_rapid_reset_ends_the_connection_and_slow_reset_does_not() -> None:
    with pytest.raises(Http2Error, match="given up") as raised:
        feed(session(), wire_and(rapid(RESETS_BURST + 1)))
    assert raised.value.code == frames.ENHANCE_YOUR_CALM
    calm = session()
    feed(calm, wire_and())
    wire, first = Wire(), 1
    for second in range(30):
        for _ in range(500):
            reset = frame(frames.RST_STREAM, 0, first, frames.U32.pack(frames.CANCEL))
            feed(calm, wire.headers(first, "/a.B/C") + reset, float(second))
            first += 2
    assert not calm.streams


def test_too_many_streams_are_refused_one_by_one() -> None:
    full, wire = session(), Wire()
    feed(full, wire.hello() + b"".join(wire.headers(n, "/a.B/C") for n in range(1, 2 * STREAMS + 21, 2)))
    assert len(full.streams) == STREAMS
    assert codes(sent(full), frames.RST_STREAM) == [frames.REFUSED_STREAM] * 10


def test_a_read_is_worked_off_in_turns() -> None:
    busy, wire = session(streams=1000), Wire()
    data = wire.hello() + b"".join(wire.headers(n, "/a.B/C") for n in range(1, 1601, 2))
    done = busy.receive(memoryview(data), 0.0)
    assert len(busy.events) == EVENTS_MAX
    assert done < len(data)
    busy.events.clear()
    assert len(feed(busy, data[done:]).opened) == 800 - EVENTS_MAX


@pytest.mark.parametrize("acked", [False, True])
def test_more_data_than_was_allowed_ends_the_stream(acked: bool) -> None:
    wire, full = Wire(), session()
    feed(full, wire.hello() + (frames.SETTINGS_ACK if acked else b"") + wire.headers(1, "/a.B/C"))
    allowed = WINDOW if acked else frames.WINDOW_DEFAULT
    full.receive(memoryview(wire.data(1, bytes(allowed))), 0.0)
    assert full.streams[1].unread == allowed
    if not acked:
        full.receive(memoryview(wire.headers(3, "/a.B/C") + wire.data(3, b"")), 0.0)
        with pytest.raises(Http2Error, match="window"):
            full.receive(memoryview(wire.data(3, b"x")), 0.0)
        return
    full.receive(memoryview(wire.data(1, b"x")), 0.0)
    assert codes(sent(full), frames.RST_STREAM) == [frames.FLOW_CONTROL_ERROR]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40_000)), max_size=60), st.integers(0, 2))
def test_a_peer_is_never_allowed_more_than_the_target(steps: list[tuple[int, int]], wider: int) -> None:
    """Whatever is sent and given back: what is unread and what may still come stay within what was promised."""
    wire, held = Wire(), session()
    feed(held, wire.hello() + frames.SETTINGS_ACK + b"".join(wire.headers(2 * i - 1, "/a.B/C") for i in (1, 2, 3)))
    streams = [held.streams[number] for number in (1, 3, 5)]
    target = WINDOW << wider
    held.open_connection(4 * target)
    for stream in streams:
        held.open_stream(stream, target)
    for which, size in steps:
        stream = streams[which - 1]
        size = min(size, max(0, stream.left))
        held.receive(memoryview(wire.data(stream.id, bytes(size))), 0.0)
        held.events.clear()
        assert stream.left + stream.unread <= target
        held.release(stream, stream.unread // 2 if size % 2 else stream.unread)
        assert stream.left + stream.unread <= target
        assert all(each.left > 0 for each in streams if not each.unread), "whoever is read may go on"


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 70_000)), max_size=40),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60_000)), max_size=60),
    st.sampled_from([0, 1, 16_384, 65_535, 1 << 20]),
)
def test_what_is_sent_stays_within_what_the_peer_allows_and_all_comes_in_the_end(
    messages: list[tuple[int, int]], granted: list[tuple[int, int]], initial: int
) -> None:
    wire, sending = Wire(), session()
    hello = wire.hello({frames.INITIAL_WINDOW_SIZE: initial})
    feed(sending, hello + b"".join(wire.headers(n, "/a.B/C", end=True) for n in (1, 3, 5)))
    streams = [sending.streams[n] for n in (1, 3, 5)]
    allowed = {0: frames.WINDOW_DEFAULT} | {stream.id: initial for stream in streams}
    expected: dict[int, bytes] = {stream.id: b"" for stream in streams}
    got: dict[int, bytes] = {stream.id: b"" for stream in streams}

    def drain() -> None:
        for each in sent(sending):
            if each.kind == frames.DATA:
                assert len(each.payload) <= frames.FRAME_SIZE_MAX
                got[each.stream] += each.payload
                allowed[each.stream] -= len(each.payload)
                allowed[0] -= len(each.payload)
                assert min(allowed[each.stream], allowed[0]) >= 0

    for i, (which, size) in enumerate(messages):
        piece = bytes([i % 256]) * size
        expected[streams[which].id] += piece
        sending.send_data(streams[which], (piece[: size // 3], memoryview(piece)[size // 3 :]), size)
        if i % 3 == 0:
            drain()
    for which, credit in granted:
        number = 0 if which == 3 else streams[which].id
        allowed[number] += credit
        feed(sending, frame(frames.WINDOW_UPDATE, 0, number, frames.U32.pack(credit)))
        drain()
    for stream in streams:
        sending.send_trailers(stream, b"\x88")
    for number in (0, 1, 3, 5):
        allowed[number] += 1 << 29
        feed(sending, frame(frames.WINDOW_UPDATE, 0, number, frames.U32.pack(1 << 29)))
    drain()
    assert got == expected
    assert not sending.queued
    assert not sending.streams


def test_a_smaller_table_is_acknowledged_before_the_first_block() -> None:
    wire, answering = Wire(), session()
    feed(answering, wire.hello({frames.HEADER_TABLE_SIZE: 100}) + wire.headers(1, "/a.B/C", end=True))
    answering.send_headers(answering.streams[1], b"\x88")
    answering.send_headers(answering.streams[1], b"\x88", end=True)
    blocks = [each.payload for each in sent(answering) if each.kind == frames.HEADERS]
    assert blocks == [b"\x20\x88", b"\x88"]


def late(stream: Stream, leaving: Session, data: bytes) -> list[int]:
    """What a session says to data that comes after the end of a stream."""
    sent(leaving)
    leaving.receive(memoryview(data), 0.0)
    assert not leaving.events
    return codes(sent(leaving), frames.RST_STREAM)


def test_what_was_on_its_way_when_a_call_was_answered_is_passed_over() -> None:
    wire, answering = Wire(), session()
    feed(answering, wire.hello() + wire.headers(1, "/a.B/C"))
    stream = answering.streams[1]
    answering.send_headers(stream, b"\x88", end=True)
    assert late(stream, answering, wire.data(1, b"x")) == [frames.NO_ERROR]
    assert late(stream, answering, wire.data(1, b"x" * 10_000)) == []
    assert late(stream, answering, wire.data(1, b"", end=True)) == []


def test_after_goodbye_no_call_begins() -> None:
    wire, leaving = Wire(), session()
    feed(leaving, wire.hello() + wire.headers(1, "/a.B/C"))
    leaving.go_away(frames.NO_ERROR)
    assert feed(leaving, wire.call(3, "/a.B/C", b"late")).opened == []
    (goodbye,) = (each for each in sent(leaving) if each.kind == frames.GOAWAY)
    assert goodbye.payload[:8] == frames.TWO_U32.pack(1, frames.NO_ERROR)
    assert feed(leaving, wire.data(1, b"goes on", end=True)).data == {1: b"goes on"}
