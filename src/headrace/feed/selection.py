"""What a ticket asks for of a log as it is, for somebody who may not see everything: a range, and topics."""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.auth import Identity
from headrace.feed.patterns import matcher
from headrace.feed.ticket import Ticket
from headrace.log.committed import Committed
from headrace.model.errors import BrokerError, Code, HeadraceError


class OffsetsGone(HeadraceError):
    """`count` offsets from `first` on were asked for and are not there."""

    def __init__(self, first: int, count: int, why: str) -> None:
        super().__init__(f"{count} offsets from {first} on {why}; read lossily to pass over them")
        self.first = first
        self.count = count


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets from `start` up to, not including, `end`."""

    start: int
    end: int


def range_of(ticket: Ticket, committed: Committed) -> Range:
    """The ticket's range among the offsets there are. Raises OffsetsGone for others, unless the ticket is lossy."""
    start = committed.earliest if ticket.start is None else ticket.start
    end = max(start, committed.latest) if ticket.end is None else ticket.end
    if end > committed.latest:
        if not ticket.lossy:
            first = max(start, committed.latest)
            raise OffsetsGone(first, end - first, f"are not there: the log ends at {committed.latest}")
        end = committed.latest
    if start < min(end, committed.earliest) and not ticket.lossy:
        first = min(end, committed.earliest)
        raise OffsetsGone(start, first - start, f"are gone: the log begins at {committed.earliest}")
    start = max(start, committed.earliest)
    return Range(min(start, end), end)


class Topics(dict[bytes, int]):
    """The topics a ticket wants, numbered as they are met; -1 for others. `names` are those that have a number."""

    def __init__(self, wants: Callable[[str], bool]) -> None:
        super().__init__()
        self.names: list[str] = []
        self._wants = wants

    def __missing__(self, name: bytes) -> int:
        text = name.decode(errors="replace")
        code = -1
        if self._wants(text):
            code = len(self.names)
            self.names.append(text)
        self[name] = code
        return code


def wanted(ticket: Ticket, identity: Identity) -> Callable[[str], bool] | None:
    """Whether a topic is to be read, by its name; None when every topic is.

    Raises BrokerError: FORBIDDEN for topics named that the identity may not read, INVALID for a pattern that is none.
    Of topics that merely match one the identity gets what it may read.
    """
    if ticket.topics is not None:
        for topic in ticket.topics:
            if not identity.may_subscribe(topic):
                raise BrokerError(Code.FORBIDDEN, f"not allowed to read {topic}")
        return frozenset(ticket.topics).__contains__
    if ticket.pattern is not None:
        matches = matcher(ticket.pattern)
        return lambda topic: identity.may_subscribe(topic) and matches(topic)
    return None if "*" in identity.subscribe.patterns else identity.may_subscribe
