"""Tickets: what is said is what is read, and what makes no sense is refused with a reason."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed.schema import EVENTS, MESSAGES, BadColumns, select
from headrace.feed.ticket import OFFSET_MAX, TICKET_SIZE_MAX, BadTicket, Ticket

names = st.none() | st.lists(st.text(max_size=10), max_size=4)
offsets = st.none() | st.integers(0, OFFSET_MAX)


@given(
    stream=st.sampled_from(["messages", "events"]),
    topics=names,
    start=offsets,
    extra=st.integers(0, 1000),
    columns=names,
    skip=st.integers(0, 10),
    lossy=st.booleans(),
)
def test_a_ticket_survives_the_way(
    stream: str, topics: list[str] | None, start: int | None, extra: int, columns: object, skip: int, lossy: bool
) -> None:
    end = None if start is None else min(start + extra, OFFSET_MAX)
    fields = {"stream": stream, "topics": topics, "start": start, "end": end, "columns": columns, "skip": skip}
    ticket = Ticket.of({**fields, "lossy": lossy})
    assert Ticket.decode(ticket.encode()) == ticket
    assert Ticket.decode(json.dumps({**fields, "lossy": lossy}).encode()) == ticket


def test_what_is_not_said_has_its_default() -> None:
    assert Ticket.decode(b"{}") == Ticket()
    assert Ticket.decode(b'{"pattern":"a.*"}') == Ticket(pattern="a.*")


def test_a_range_can_be_replaced() -> None:
    assert Ticket(topics=("a",), lossy=True).over(3, 9) == Ticket(topics=("a",), start=3, end=9, lossy=True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "JSON object"),
        (b'{"topic":["a"]}', "unknown fields topic"),
        (b'{"stream":"rows"}', "messages or events"),
        (b'{"topics":"orders"}', "list of names"),
        (b'{"topics":[1]}', "list of names"),
        (b'{"columns":{"a":1}}', "list of names"),
        (b'{"topics":["a"],"pattern":"a"}', "not both"),
        (b'{"pattern":7}', "must be text"),
        (b'{"start":-1}', "start is -1"),
        (b'{"start":1.5}', "start is 1.5"),
        (b'{"start":true}', "start is True"),
        (b'{"start":9223372036854775808}', "start is"),
        (b'{"skip":null}', "skip is None"),
        (b'{"start":5,"end":4}', "before start"),
        (b'{"lossy":1}', "true or false"),
        (b'{"envelopes":1}', "true or false"),
        (b'{"stream":"events","envelopes":true}', "not among events"),
        (b'{"events":["acked"]}', "not among messages"),
        (b'{"stream":"events","events":"acked"}', "list of names"),
        (b'{"start":1e400}', "start is inf"),
        (b" " * (TICKET_SIZE_MAX + 1), "at most"),
    ],
)
def test_nonsense_is_refused_and_named(data: bytes, reason: str) -> None:
    with pytest.raises(BadTicket, match=reason):
        Ticket.decode(data)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_ticket_or_refused(data: bytes) -> None:
    with suppress(BadTicket):
        assert isinstance(Ticket.decode(data), Ticket)


def test_columns_keep_the_order_asked_for() -> None:
    assert select("messages", ("value", "key")).names == ["value", "key"]
    assert select("messages", None) is MESSAGES
    assert select("events", None) is EVENTS
    for columns in ((), ("value", "nope"), ("value", "value")):
        with pytest.raises(BadColumns, match="messages have key, value"):
            select("messages", columns)
