"""The questions a reader may ask: topics, offsets, times, shares. Bodies and answers are JSON."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from headrace.auth import Identity
from headrace.feed.selection import range_of, wanted
from headrace.feed.ticket import OFFSET_MAX, Ticket
from headrace.feed.watch import Watch
from headrace.feed.whereabouts import whereabouts
from headrace.log.bearings import Cell, cells, offset_at
from headrace.log.follower import Follower
from headrace.model.errors import BrokerError, Code

WAIT_S_MAX = 30.0
PARTS_MAX = 100_000
BODY_SIZE_MAX = 1 << 20

Action = Callable[[Identity, bytes], object]
"""A question: who asks and its body in, the answer out, or what to await for it. Called in a thread; it may block."""


class WaitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `wait`."""

    beyond: Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
    timeout_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)]


class OffsetAtBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `offset_at`."""

    timestamp_us: Annotated[int, Meta(ge=-OFFSET_MAX, le=OFFSET_MAX)]


class NoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a question without arguments."""


T = TypeVar("T")


class Actions:
    """Answers from a followed log."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._watch = Watch(lambda: follower.committed().latest)
        self.actions: dict[str, Action] = {
            "topics": self.topics,
            "span": self.span,
            "wait": self.wait,
            "offset_at": self.offset_at,
            "split": self.split,
            "whereabouts": self.whereabouts,
        }

    def topics(self, identity: Identity, body: bytes) -> object:
        """Every topic the identity may read, by name. Raises BrokerError."""
        _decoded(body, NoBody)
        return [
            {"topic": name, "earliest": tally.first, "latest": tally.end, "messages": tally.messages}
            for name, tally in sorted(self._follower.topics().items())
            if identity.may_subscribe(name)
        ]

    def span(self, identity: Identity, body: bytes) -> object:
        """The oldest and the newest offset. Raises BrokerError."""
        _decoded(body, NoBody)
        committed = self._follower.committed()
        return {"earliest": committed.earliest, "latest": committed.latest}

    async def wait(self, identity: Identity, body: bytes) -> object:
        """The newest offset, once it is beyond one that is known. Raises BrokerError."""
        wanted = _decoded(body, WaitBody)
        return {"latest": await self._watch.wait(wanted.beyond, wanted.timeout_s)}

    def offset_at(self, identity: Identity, body: bytes) -> object:
        """The first offset at or after a time. Raises BrokerError."""
        return {"offset": offset_at(self._follower, _decoded(body, OffsetAtBody).timestamp_us)}

    def split(self, identity: Identity, body: bytes) -> object:
        """A ticket's range in parts of about equal bytes. Raises BrokerError, BadTicket and OffsetsGone."""
        given = _decoded(body, dict[str, Any])
        parts = given.pop("parts", None)
        if not isinstance(parts, int) or isinstance(parts, bool) or not 0 < parts <= PARTS_MAX:
            raise BrokerError(Code.INVALID, f"parts is {parts!r}; it must be a whole number from 1 to {PARTS_MAX}")
        ticket = Ticket.of({**given, "lossy": True})
        wants = wanted(ticket, identity) if ticket.stream == "messages" else None
        offsets = range_of(ticket, self._follower.committed())
        shares = cells(self._follower, offsets.start, offsets.end, wants)
        return split_cells(offsets.start, offsets.end, shares, parts)

    def whereabouts(self, identity: Identity, body: bytes) -> object:
        """Where the log is, for those who may read all of it; null for others. Raises BrokerError."""
        _decoded(body, NoBody)
        place = whereabouts(self._follower.directory) if "*" in identity.subscribe.patterns else None
        return place._asdict() if place is not None else None


def split_cells(start: int, end: int, shares: Sequence[Cell], parts: int) -> list[dict[str, int]]:
    """Neighbouring ranges from `start` to `end`, at most so many, with about as many bytes in each."""
    if start >= end:
        return []
    share = max(1, -(-sum(cell.bytes for cell in shares) // parts))
    found = [{"start": start, "end": end, "rows": 0, "bytes": 0}]
    for cell in shares:
        last = found[-1]
        if last["bytes"] >= share and cell.first > last["start"] and len(found) < parts:
            last["end"] = cell.first
            last = {"start": cell.first, "end": end, "rows": 0, "bytes": 0}
            found.append(last)
        last["rows"] += cell.rows
        last["bytes"] += cell.bytes
    return found


def _decoded(body: bytes, kind: type[T]) -> T:
    if len(body) > BODY_SIZE_MAX:
        raise BrokerError(Code.LIMIT, f"{len(body)} bytes; at most {BODY_SIZE_MAX} are read")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokerError(Code.INVALID, f"bad body: {error}") from None


def encoded(answer: object) -> bytes:
    """An answer as it travels."""
    return json.dumps(answer, separators=(",", ":")).encode()
