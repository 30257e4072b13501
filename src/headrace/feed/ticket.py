"""What a reader asks the feed for, as JSON. Knows the standard library only, so that it can be shipped anywhere."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

Stream = Literal["messages", "events"]

OFFSET_MAX = (1 << 63) - 1
TICKET_SIZE_MAX = 1 << 20
PATTERN_SIZE_MAX = 4096


class BadTicket(ValueError):
    """A ticket that asks for nothing that could be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Rows of one stream with offsets from `start` up to, not including, `end`.

    `topics` and `pattern` (a regular expression in RE2's syntax, for the whole name) choose topics, None for both means
    all of them; whether the pattern is one is for the feed to say.
    Without `start` it is the oldest offset kept, without `end` the newest there is when the feed is asked. `skip` rows
    of the event at `start` are left out: a reader that was cut off in the middle of one goes on behind them.
    `lossy` passes over offsets that are gone instead of failing. `events` names the events wanted, None means all.
    `envelopes` leaves out batches of messages that cannot be grpcq envelopes: neither from there nor with headers.
    """

    stream: Stream = "messages"
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    start: int | None = None
    end: int | None = None
    columns: tuple[str, ...] | None = None
    skip: int = 0
    lossy: bool = False
    events: tuple[str, ...] | None = None
    envelopes: bool = False

    def __post_init__(self) -> None:
        for name in ("topics", "columns", "events"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, _names(name, given))
        if self.stream not in ("messages", "events"):
            raise BadTicket(f"stream is {self.stream!r}; it must be messages or events")
        if self.topics is not None and self.pattern is not None:
            raise BadTicket("give topics or a pattern, not both")
        for name in ("start", "end", "skip"):
            _check_offset(name, getattr(self, name))
        if self.start is not None and self.end is not None and self.end < self.start:
            raise BadTicket(f"end {self.end} is before start {self.start}")
        if (self.events is not None and self.stream != "events") or (self.envelopes and self.stream != "messages"):
            raise BadTicket(f"events are chosen among events, envelopes among messages, not among {self.stream}")
        for name in ("lossy", "envelopes"):
            if not isinstance(getattr(self, name), bool):
                raise BadTicket(f"{name} must be true or false")
        if self.pattern is not None and not _is_short_text(self.pattern):
            raise BadTicket(f"pattern must be text of at most {PATTERN_SIZE_MAX} characters")

    def over(self, start: int, end: int) -> "Ticket":
        """The same for another range."""
        return replace(self, start=start, end=end)

    def behind(self, position: bytes | None) -> "Ticket":
        """The ticket for what follows the rows at whose end this position was given."""
        if position is None:
            return self
        start, skip, end = json.loads(position)
        return replace(self, start=start, skip=skip, end=end)

    def encode(self) -> bytes:
        """The ticket as it travels."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Ticket":
        """The inverse of `encode`; what is not given has its default. Raises BadTicket."""
        if len(data) > TICKET_SIZE_MAX:
            raise BadTicket(f"a ticket of {len(data)} bytes; at most {TICKET_SIZE_MAX} are read")
        try:
            given = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadTicket(f"not JSON: {error}") from error
        if not isinstance(given, dict):
            raise BadTicket("a ticket is a JSON object")
        return cls.of(given)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Ticket":
        """The ticket with these fields. Raises BadTicket, also for unknown ones."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise BadTicket(f"unknown fields {', '.join(unknown)}; a ticket has {', '.join(known)}")
        return cls(**given)


def _names(name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, list | tuple) or not all(isinstance(n, str) for n in given):
        raise BadTicket(f"{name} must be a list of names")
    return tuple(given)


def _is_short_text(given: Any) -> bool:
    return isinstance(given, str) and len(given) <= PATTERN_SIZE_MAX


def _check_offset(name: str, value: Any) -> None:
    if value is None and name != "skip":
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= OFFSET_MAX:
        raise BadTicket(f"{name} is {value!r}; it must be a whole number from 0 to {OFFSET_MAX}")
