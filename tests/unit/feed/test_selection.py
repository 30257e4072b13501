"""Ranges among the offsets there are, topics among those somebody may read."""

import sys

import pytest

from headrace.auth import Identity, Scope
from headrace.feed.patterns import matcher
from headrace.feed.selection import OffsetsGone, Range, Topics, range_of, wanted
from headrace.feed.ticket import Ticket
from headrace.log.committed import Committed
from headrace.model.errors import BrokerError, Code
from headrace.model.names import TOPIC_SIZE_MAX

LOG = Committed(1, 10, 50, 1)
CLERK = Identity("clerk", subscribe=Scope(["orders", "pay*"]))


@pytest.mark.parametrize(
    ("start", "end", "strict", "lossy"),
    [
        (None, None, Range(10, 50), Range(10, 50)),
        (10, 50, Range(10, 50), Range(10, 50)),
        (20, None, Range(20, 50), Range(20, 50)),
        (20, 20, Range(20, 20), Range(20, 20)),
        (50, None, Range(50, 50), Range(50, 50)),
        (5, 20, (5, 5), Range(10, 20)),
        (5, 7, (5, 2), Range(7, 7)),
        (5, 5, Range(5, 5), Range(5, 5)),
        (40, 60, (50, 10), Range(40, 50)),
        (60, 70, (60, 10), Range(50, 50)),
        (60, None, (60, 0), Range(50, 50)),
        (0, 100, (50, 50), Range(10, 50)),
    ],
)
def test_a_range_is_there_or_it_is_said_what_is_not(
    start: int | None, end: int | None, strict: Range | tuple[int, int], lossy: Range
) -> None:
    assert range_of(Ticket(start=start, end=end, lossy=True), LOG) == lossy
    if isinstance(strict, Range):
        assert range_of(Ticket(start=start, end=end), LOG) == strict
        return
    with pytest.raises(OffsetsGone, match="lossily") as gone:
        range_of(Ticket(start=start, end=end), LOG)
    assert (gone.value.first, gone.value.count) == strict


def test_everything_is_wanted_by_who_may_read_everything() -> None:
    assert wanted(Ticket(), Identity("all")) is None


def test_of_all_topics_and_of_a_pattern_one_gets_what_one_may_read() -> None:
    for ticket in (Ticket(), Ticket(pattern=".*")):
        wants = wanted(ticket, CLERK)
        assert wants is not None
        assert [name for name in ("orders", "stock", "payments", "$dead.orders") if wants(name)] == [
            "orders", "payments", "$dead.orders",
        ]  # fmt: skip


def test_topics_named_must_be_allowed() -> None:
    wants = wanted(Ticket(topics=("orders", "payments")), CLERK)
    assert wants is not None
    assert wants("orders")
    assert not wants("stock")
    with pytest.raises(BrokerError, match="not allowed to read stock"):
        wanted(Ticket(topics=("orders", "stock")), CLERK)


def test_topics_are_numbered_as_they_are_met() -> None:
    topics = Topics(lambda name: name != "b")
    assert [topics[name] for name in (b"a", b"b", b"c", b"a", b"\xff")] == [0, -1, 1, 0, 2]
    assert topics.names == ["a", "c", "\N{REPLACEMENT CHARACTER}"]


PATTERNS = ["(a*)*b", "(a|aa)+$", "(.*.*.*)*x", "a{500}", "a?" * 300 + "a" * 300, "(?i)" + "[a-z]*" * 200] + [
    f"({'a|' * n}a)*b" for n in (2, 50, 400)
]
"""Those that some matcher takes time without end for."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_takes_more_than_its_size_for_each_letter(pattern: str) -> None:
    assert matcher(pattern)("a" * TOPIC_SIZE_MAX) in (True, False)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "missing"),
        ("a(?=b)", "perl operator"),
        (r"(a)\1", "escape sequence"),
        ("(" * 4000, "missing|nesting"),
        ("(((a{100}){100}){100})", "repetition|too"),
        ("[a-z\u00e0-\uffff]{900}", "too"),
        ("\ud800", "not Unicode"),
    ],
)
def test_a_pattern_that_is_none_or_too_big_is_refused_with_the_reason(pattern: str, said: str) -> None:
    with pytest.raises(BrokerError, match=said) as refused:
        wanted(Ticket(pattern=pattern), CLERK)
    assert refused.value.code is Code.INVALID


def test_without_re2_patterns_are_refused_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    assert wanted(Ticket(topics=("orders",)), CLERK) is not None
    with pytest.raises(BrokerError, match="google-re2"):
        wanted(Ticket(pattern="orders"), CLERK)
