"""Messages in a body: any split gives the same, nothing is unpacked or kept beyond the bound."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.http2.messages import Incoming
from headrace.http2.status import GrpcError, Status
from tests.harness.http2 import message

MAX = 1000


def taken(incoming: Incoming) -> list[tuple[bytes, int]]:
    found = []
    while incoming.complete:
        found.append(incoming.take())
    return found


@given(
    st.lists(st.tuples(st.binary(max_size=50), st.booleans()), max_size=20),
    st.lists(st.integers(0, 1500), max_size=30),
    st.booleans(),
)
def test_any_split_gives_the_same_messages(sent: list[tuple[bytes, bool]], cuts: list[int], eager: bool) -> None:
    packed = [message(gzip.compress(data), 1) if pack else message(data) for data, pack in sent]
    body, incoming, found = b"".join(packed), Incoming(MAX, "gzip"), []
    places = sorted({min(cut, len(body)) for cut in cuts})
    for start, end in zip([0, *places], [*places, len(body)], strict=True):
        incoming.feed(memoryview(body)[start:end])
        if eager:
            found += taken(incoming)
            assert incoming.held == end - sum(size for _, size in found)
    found += taken(incoming)
    assert found == [(data, len(raw)) for (data, _), raw in zip(sent, packed, strict=True)]
    assert not incoming.unfinished
    assert not incoming.held


@pytest.mark.parametrize("size", [MAX + 1, 1 << 20, (1 << 32) - 1])
@pytest.mark.parametrize("chunk", [1, 3, 5, 6, 100])
def test_a_giant_prefix_is_refused_as_soon_as_it_is_there(size: int, chunk: int) -> None:
    incoming, body = Incoming(MAX), b"\0" + size.to_bytes(4) + b"x" * 100

    def come() -> None:
        for at in range(0, len(body), chunk):
            incoming.feed(memoryview(body)[at : at + chunk])
            assert incoming.held < 5

    with pytest.raises(GrpcError, match=f"larger than max \\({size} vs. {MAX}\\)") as raised:
        come()
    assert raised.value.status is Status.RESOURCE_EXHAUSTED


def test_a_bad_message_behind_a_good_one_spares_the_good_one() -> None:
    incoming = Incoming(MAX)
    incoming.feed(memoryview(message(b"good") + b"\0\xff\xff\xff\xff"))
    assert incoming.take() == (b"good", 9)
    assert incoming.complete
    with pytest.raises(GrpcError, match="larger"):
        incoming.take()


BAD = {
    "a bomb": (gzip.compress(bytes(50_000_000)), Status.RESOURCE_EXHAUSTED),
    "one byte too many": (gzip.compress(bytes(MAX + 1)), Status.RESOURCE_EXHAUSTED),
    "no gzip": (b"plain", Status.INTERNAL),
    "zlib": (zlib.compress(b"x"), Status.INTERNAL),
    "cut short": (gzip.compress(b"x" * 100)[:-5], Status.INTERNAL),
    "empty": (b"", Status.INTERNAL),
    "two streams": (gzip.compress(b"x") * 2, Status.INTERNAL),
    "something behind": (gzip.compress(b"x") + b"y", Status.INTERNAL),
    "a bad sum": (gzip.compress(b"x")[:-8] + bytes(8), Status.INTERNAL),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_unpack_well(name: str) -> None:
    packed, status = BAD[name]
    incoming = Incoming(MAX if len(packed) <= MAX else len(packed), "gzip")
    incoming.feed(memoryview(message(packed, 1)))
    with pytest.raises(GrpcError) as raised:
        incoming.take()
    assert raised.value.status is status


@pytest.mark.parametrize(("flag", "encoding"), [(1, "identity"), (2, "gzip"), (255, "gzip"), (1, "")])
def test_flags_nobody_announced(flag: int, encoding: str) -> None:
    with pytest.raises(GrpcError, match="compressed") as raised:
        Incoming(MAX, encoding).feed(memoryview(message(b"x", flag)))
    assert raised.value.status is Status.INTERNAL
