"""Where published messages come from."""

import io
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.sources import BATCH, Lines, from_arguments, from_stream, paced


async def everything(batches: AsyncIterator[list[bytes]]) -> list[bytes]:
    return [message async for batch in batches for message in batch]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_how_a_stream_is_cut_never_changes_its_lines(data: bytes, cuts: list[int]) -> None:
    whole, pieces = Lines(), Lines()
    expected = whole.feed(data) + whole.end()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    found = [line for a, b in pairwise(bounds) for line in pieces.feed(data[a:b])] + pieces.end()
    assert found == expected


def test_a_line_ends_with_either_kind_of_end_or_with_the_stream() -> None:
    lines = Lines()
    assert lines.feed(b"one\r\ntwo\n\nfo") == [b"one", b"two", b""]
    assert lines.feed(b"ur") == []
    assert lines.end() == [b"four"]
    assert lines.end() == []


async def test_a_stream_gives_all_its_lines() -> None:
    data = b"".join(b"%d\n" % n for n in range(3 * BATCH))
    assert len(await everything(from_stream(io.BytesIO(data), None))) == 3 * BATCH


@pytest.mark.parametrize("count", [0, 1, 5, 7])
async def test_a_count_ends_the_stream_early(count: int) -> None:
    found = await everything(from_stream(io.BytesIO(b"a\nb\nc\nd\ne"), count))
    assert found == [b"a", b"b", b"c", b"d", b"e"][:count]


async def test_arguments_are_sent_once_or_in_turn_until_the_count() -> None:
    assert await everything(from_arguments([b"a", b"b"], None)) == [b"a", b"b"]
    assert await everything(from_arguments([b"a", b"b"], 5)) == [b"a", b"b", b"a", b"b", b"a"]
    assert len(await everything(from_arguments([b"a"], 2 * BATCH + 1))) == 2 * BATCH + 1


async def test_a_rate_changes_the_pace_and_not_the_messages() -> None:
    found = await everything(paced(from_arguments([b"a", b"b"], 250), 1_000_000))
    assert found == [b"a", b"b"] * 125
