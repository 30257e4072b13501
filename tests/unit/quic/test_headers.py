"""What can be read of a datagram before it is decrypted."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qh3.quic.packet import encode_quic_version_negotiation

from headrace.quic.headers import Hello, destination, hello

ID = bytes(range(8))


def initial(token: bytes = b"", size: int = 1100, version: int = 1, destination: bytes = ID) -> bytes:
    head = bytes([0xC0]) + pack(">I", version) + bytes([len(destination)]) + destination + b"\x03abc"
    return head + bytes([len(token)]) + token + pack(">H", 0x4000 | size) + bytes(size)


def test_a_first_packet() -> None:
    data = initial()
    assert destination(data) == ID
    assert hello(data) == Hello(1, ID, b"abc", b"", len(data))
    assert hello(data + bytes(50)) == Hello(1, ID, b"abc", b"", len(data))
    assert hello(data[:-1]) == Hello(1, ID, b"abc", b"", 0)


def test_a_token() -> None:
    found = hello(initial(token=b"t" * 40))
    assert found is not None
    assert found.token == b"t" * 40


def test_another_version_may_begin_nothing_here() -> None:
    assert hello(initial(version=7)) == Hello(7, ID, b"abc", None)


def test_a_short_header_has_an_id_of_ours() -> None:
    assert destination(b"\x40" + ID + b"rest") == ID
    assert hello(b"\x40" + ID + b"rest") is None


def test_version_negotiation_begins_nothing() -> None:
    packet = encode_quic_version_negotiation(source_cid=ID, destination_cid=b"abc", supported_versions=[1])
    found = hello(packet)
    assert found is not None
    assert (found.version, found.token) == (0, None)


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\xc0\0\0\0\1", b"\xc0\0\0\0\1\xff" + bytes(300)])
def test_cut_headers(data: bytes) -> None:
    destination(data)
    assert hello(data) is None


@given(st.binary(max_size=80), st.sampled_from([b"", b"\xc0\0\0\0\1", b"\xc0\0\0\0\1\x08" + ID + b"\0"]))
def test_any_bytes_are_read_without_a_word(data: bytes, head: bytes) -> None:
    destination(head + data)
    found = hello(head + data)
    assert found is None or found.end <= len(head + data)
