"""Who is connected without having shown a key: so few that they cost little, and never in the way of others.

A newcomer always gets in, but for a moment. When there are too many strangers, one has to go: of those from the address
with the most of them the one that was there first, so that whoever fills the place pushes out himself. Everybody has a
moment to show a key, and newcomers wait that long outside. Knows no sockets and no clock.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many fit in: strangers, callers who are known, and of those from one address; loopback is not counted.

    `moment_s` is what a stranger has before he must make room for another.
    """

    strangers_max: int
    moment_s: float
    callers_max: int
    callers_per_address_max: int


class Visit:
    """One connection, `here` until it ends; `leave` ends it."""

    __slots__ = ("address", "here", "known", "leave", "since")

    def __init__(self, address: str, since: float, leave: Callable[[], None]) -> None:
        self.address = address
        self.since = since
        self.here = True
        self.known = False
        self.leave = leave


class Lobby:
    """Everybody who is connected."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._strangers: dict[str, dict[Visit, None]] = {}
        self._stranger_count = 0
        self._callers: Counter[str] = Counter()
        self._caller_count = 0

    @property
    def strangers(self) -> int:
        """How many have not shown a key."""
        return self._stranger_count

    def opens_at(self) -> float:
        """When the next newcomer may enter; a time that has passed if there is room."""
        return self._next_to_go().since + self._room.moment_s if self._is_full() else 0.0

    def enter(self, address: str, now: float, leave: Callable[[], None]) -> Visit:
        """Take in a newcomer, who is a stranger until he is recognised; another one leaves if he must."""
        if self._is_full():
            oldest = self._next_to_go()
            self.gone(oldest)
            oldest.leave()
        visit = Visit(address, now, leave)
        self._strangers.setdefault(address, {})[visit] = None
        self._stranger_count += 1
        return visit

    def recognise(self, visit: Visit) -> bool:
        """The visitor showed a key; whether there is room for one more who did."""
        if visit.known or not visit.here:
            return visit.here
        address = visit.address
        loopback = address.startswith("127.") or address == "::1"
        if self._caller_count >= self._room.callers_max:
            return False
        if not loopback and self._callers[address] >= self._room.callers_per_address_max:
            return False
        self._forget_stranger(visit)
        visit.known = True
        self._callers[address] += 1
        self._caller_count += 1
        return True

    def gone(self, visit: Visit) -> None:
        """The connection has ended; said twice is said once."""
        if not visit.here:
            return
        visit.here = False
        if not visit.known:
            self._forget_stranger(visit)
            return
        self._caller_count -= 1
        self._callers[visit.address] -= 1
        if not self._callers[visit.address]:
            del self._callers[visit.address]

    def _is_full(self) -> bool:
        return self._stranger_count >= self._room.strangers_max

    def _next_to_go(self) -> Visit:
        crowd = max(self._strangers.values(), key=len)
        return next(iter(crowd))

    def _forget_stranger(self, visit: Visit) -> None:
        here = self._strangers.get(visit.address)
        if here is not None and visit in here:
            del here[visit]
            self._stranger_count -= 1
            if not here:
                del self._strangers[visit.address]
