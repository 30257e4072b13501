"""Lines between broker and feed: the same however they are cut, and nothing that makes no sense gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import KeyEntry
from headrace.feed.messages import (
    BadLine,
    Commit,
    FromBroker,
    FromFeed,
    Keys,
    Lines,
    Listening,
    Open,
    Ping,
    Pong,
    Receipt,
    Reply,
    encode,
    from_broker,
    from_feed,
)

RECEIPT = Receipt(writer="w", batch=1, part="p", file="f", rows=1, bytes=2, crc=3)
TO_FEED: list[FromBroker] = [
    Open(log="log", staging="staging", host="::1", port=0, api_keys=("k", KeyEntry(name="ann", key="secret"))),
    Keys(api_keys=("k",)),
    Ping(),
    Reply(id=7, ok={"replayed": False}),
    Reply(id=8, code="invalid", detail="no\nnewline gets out"),
]
TO_BROKER: list[FromFeed] = [
    Listening(port=8815),
    Pong(),
    Commit(id=1, owner="ann", subscribe=("*",), writer="w", batch=1, staged=(RECEIPT,)),
]


def test_messages_come_back_as_they_were_said() -> None:
    assert [from_broker(encode(message)) for message in TO_FEED] == TO_FEED
    assert [from_feed(encode(message)) for message in TO_BROKER] == TO_BROKER


@given(cuts=st.lists(st.integers(1, 400), max_size=20))
def test_how_the_bytes_are_cut_changes_nothing(cuts: list[int]) -> None:
    data = b"".join(map(encode, TO_FEED))
    lines, found = Lines(), []
    for cut in [*cuts, len(data)]:
        found += [from_broker(line) for line in lines.receive(data[:cut])]
        data = data[cut:]
    assert found == TO_FEED


@pytest.mark.parametrize("line", [b"", b"{}", b"null", b'{"op":"open"}', b'{"op":"jump","id":1}', b"\xff", b"[" * 5000])
def test_nonsense_is_refused(line: bytes) -> None:
    for read in (from_broker, from_feed):
        with pytest.raises(BadLine):
            read(line)


def test_a_line_without_end_is_refused() -> None:
    lines = Lines(100)
    assert list(lines.receive(b"x" * 100)) == []
    with pytest.raises(BadLine, match="more than 100 bytes"):
        list(lines.receive(b"x"))


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(TO_FEED[0])
    assert "k" not in repr(Keys(api_keys=("k",)))[4:]
