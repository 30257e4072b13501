"""Pipelines that follow the log from outside: no subscription, no deliveries, only how far each has come.

A reader reports the offset below which it needs nothing any more; retention waits for it as for a subscription.
"""

from collections.abc import Sequence

import msgspec

from headrace.broker.alarms import NEVER
from headrace.broker.journal import Journal
from headrace.broker.ordered import Ordered
from headrace.broker.shares import Shares
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event

READERS_MAX = 10_000
TOPICS_MAX = 10_000
OWNERS_PAGE = 256


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A reader of `topics`, None for all of them, that needs nothing below `offset`.

    Without an offset it is gone. What a REPORTED event tells; the time is the event's.
    """

    owner: str
    reader: str
    topics: tuple[str, ...] | None = None
    offset: int | None = None
    reported_us: int = 0


class Readers:
    """Every reader, by owner and name."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.shares = Shares("readers", "limits.readers_per_key_max")
        self._known: dict[tuple[str, str], Reader] = {}
        self._ordered: Ordered[tuple[str, str]] = Ordered()

    def __len__(self) -> int:
        return len(self._known)

    def report(self, owner: str, name: str, topics: Sequence[str] | None, offset: int, now: int) -> None:
        """The reader needs nothing below this offset any more; the first report makes it known.

        An offset before the last one is taken at its word: a pipeline may begin again.
        Raises BrokerError(LIMIT) when there are too many readers, of all or of this owner, or topics of one.
        """
        if (owner, name) not in self._known:
            if len(self._known) >= READERS_MAX:
                raise BrokerError(Code.LIMIT, f"there are {READERS_MAX} readers; remove one that is gone")
            self.shares.check(owner)
        if topics is not None and len(topics) > TOPICS_MAX:
            raise BrokerError(Code.LIMIT, f"{len(topics)} topics; report at most {TOPICS_MAX}, or all as null")
        chosen = None if topics is None else tuple(topics)
        self._record(Reader(owner=owner, reader=name, topics=chosen, offset=offset, reported_us=now))

    def remove(self, owner: str, name: str, now: int) -> None:
        """The reader is gone: nothing waits for it any more. An unknown one is nothing to do."""
        if (owner, name) in self._known:
            self._record(Reader(owner=owner, reader=name, reported_us=now))

    def reported(self, reader: Reader) -> None:
        """Fold what a reader reported."""
        key = reader.owner, reader.reader
        if reader.offset is None:
            if self._known.pop(key, None) is not None:
                self._ordered.remove((reader.reader, reader.owner))
                self.shares.give(reader.owner)
            return
        if key not in self._known:
            self._ordered.add((reader.reader, reader.owner))
            self.shares.add(reader.owner)
        self._known[key] = reader

    def page(self, start: tuple[str, str], limit: int) -> list[Reader]:
        """The first readers from this (name, owner) on, in that order, at most so many."""
        return [self._known[owner, name] for name, owner in self._ordered.page(start, limit)]

    def owners(self, name: str) -> set[str]:
        """Who has a reader of this name."""
        found: set[str] = set()
        start = name, ""
        while page := self._ordered.page(start, OWNERS_PAGE):
            for each, owner in page:
                if each != name:
                    return found
                found.add(owner)
            start = name, page[-1][1] + "\0"
        return found

    def all(self) -> list[Reader]:
        """Every reader."""
        return list(self._known.values())

    def needed_from(self) -> int:
        """The lowest offset any reader still needs; NEVER when there is none."""
        return min((reader.offset for reader in self._known.values() if reader.offset is not None), default=NEVER)

    def _record(self, reader: Reader) -> None:
        self.reported(reader)
        self._journal.told(Event.REPORTED, reader.reported_us, msgspec.json.encode(reader))
