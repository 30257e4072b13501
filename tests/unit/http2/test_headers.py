"""Header blocks: remembered ones mean what a plain decoder says, lists are judged, literals are read by anybody."""

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from headrace.http2 import frames
from headrace.http2.frames import Http2Error, StreamError
from headrace.http2.headers import BLOCK_MAX, KEPT_BLOCKS_MAX, HeaderReader, literals

CALL = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), ("content-type", "application/grpc")]
names = st.sampled_from(["a", "b", "grpc-timeout", "x-long-name", "authorization"])
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40)
lists = st.lists(st.tuples(names, values), max_size=6)


def raw(fields: list[tuple[str, str]]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.encode(), value.encode()) for name, value in fields)


@given(st.lists(st.tuples(lists, st.sampled_from([None, None, None, 0, 64, 300, 4096])), max_size=30))
def test_what_is_remembered_means_what_a_decoder_says(steps: list[tuple[list[tuple[str, str]], int | None]]) -> None:
    encoder, reader, plain = Encoder(), HeaderReader(), Decoder()
    for fields, table in steps:
        if table is not None:
            encoder.header_table_size = table
        for _ in range(3):
            block = encoder.encode([*CALL, *fields])
            expected = tuple((bytes(n), bytes(v)) for n, v in plain.decode(block, raw=True))
            assert reader.request(block).fields == expected[3:]


def test_a_block_is_kept_while_the_table_stays_and_no_longer() -> None:
    encoder, reader = Encoder(), HeaderReader()
    reader.request(encoder.encode(CALL))
    steady = encoder.encode(CALL)
    first = reader.request(steady)
    assert reader.request(steady) is first
    assert len(reader._kept) == 1
    for i in range(KEPT_BLOCKS_MAX * 2):
        reader.request(steady + literals([(b"n", b"%d" % i)]))
    assert len(reader._kept) == KEPT_BLOCKS_MAX
    reader.request(encoder.encode([*CALL, ("new", "entry")]))
    assert reader._kept == {}


@given(st.lists(st.tuples(names, st.text(st.characters(max_codepoint=127), max_size=1000)), max_size=5))
def test_literals_are_read_by_anybody(fields: list[tuple[str, str]]) -> None:
    block = literals(raw(fields))
    assert tuple(Decoder().decode(block, raw=True)) == raw(fields)


def plainly(decoder: Decoder, block: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
    """What the library makes of a block; None if it refuses."""
    try:
        return tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))
    except (HPACKError, IndexError):
        return None


def ours(reader: HeaderReader, block: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
    """What we make of it."""
    try:
        return reader._decode(block)[0]
    except Http2Error:
        return None


@given(lists, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3), st.binary(max_size=20))
def test_damaged_blocks_are_read_as_the_library_reads_them(
    fields: list[tuple[str, str]], damage: list[tuple[int, int]], behind: bytes
) -> None:
    encoder, reader, plain = Encoder(), HeaderReader(), Decoder()
    first = encoder.encode([*CALL, ("x", "y" * 50)])
    assert ours(reader, first) == plainly(plain, first)
    block = bytearray(encoder.encode([*CALL, *fields]))
    for place, byte in damage:
        block[place % len(block)] = byte
    expected = plainly(plain, bytes(block) + behind)
    found = ours(reader, bytes(block) + behind)
    assert found == expected or (found is None and block[:1] >= b"\x20" and block[0] & 0xE0 == 0x20)
    if found is not None:
        assert list(reader._table.dynamic_entries) == list(plain.header_table.dynamic_entries)


BAD = {
    "no method": CALL[1:],
    "no path": [each for each in CALL if each[0] != ":path"],
    "an empty path": [*CALL[:2], (":path", "")],
    "two methods": [CALL[0], *CALL],
    "a pseudo-header of answers": [(":status", "200"), *CALL],
    "a pseudo-header late": [*CALL, (":authority", "x")],
    "upper case": [*CALL, ("X-Upper", "x")],
    "no name": [*CALL, ("", "x")],
    "a name with a space": [*CALL, ("a b", "x")],
    "a name that is not ASCII": [*CALL, ("é", "x")],
    "two lines": [*CALL, ("a", "x\r\ny")],
    "a zero": [*CALL, ("a", "x\0y")],
    "of the connection": [*CALL, ("connection", "close")],
    "upgrade": [*CALL, ("upgrade", "h2c")],
    "te": [*CALL, ("te", "gzip")],
    "two lengths": [*CALL, ("content-length", "1"), ("content-length", "2")],
    "a length in words": [*CALL, ("content-length", "one")],
    "a length below nothing": [*CALL, ("content-length", "-1")],
    "a length of 5,000 digits": [*CALL, ("content-length", "9" * 5000)],
}


@pytest.mark.parametrize("name", BAD)
def test_a_list_that_is_no_request(name: str) -> None:
    with pytest.raises(StreamError) as raised:
        HeaderReader().request(literals(raw(BAD[name])))
    assert raised.value.code == frames.PROTOCOL_ERROR


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_a_breach(block: bytes) -> None:
    code = None
    try:
        HeaderReader().request(block)
    except (Http2Error, StreamError) as error:
        code = error.code
    assert code in (None, frames.COMPRESSION_ERROR, frames.ENHANCE_YOUR_CALM, frames.PROTOCOL_ERROR)


@pytest.mark.parametrize("piece", [b"\x82", b"\x00\x01a\x00", b"\x40\x01a\x00", b"\x20", b"\xbe", b"\x41\x00", b"\x7f"])
def test_a_large_block_of_the_cheapest_pieces_is_bounded(piece: bytes) -> None:
    reader = HeaderReader()
    with pytest.raises((Http2Error, StreamError)):
        reader.request(piece * (BLOCK_MAX // len(piece)))
    assert reader._kept == {}
