"""Who has been promised room for how many bytes. A promise is made before a peer may send, so nothing sent exceeds it.

Whoever finds no room waits; those waiting are served in their order, each within its own share.
"""

from collections import Counter
from collections.abc import Callable, Hashable


class Ledger:
    """Room for `limit` bytes, of which one holder has at most `share`."""

    def __init__(self, limit: int, share: int) -> None:
        self.limit = limit
        self.share = share
        self.promised = 0
        self.holders: Counter[Hashable] = Counter()
        self._waiting: dict[Callable[[], bool], None] = {}

    def take(self, holder: Hashable, size: int) -> bool:
        """Promise room; False when there is none. A holder who has nothing may always have one promise."""
        held = self.holders[holder]
        if held and (held + size > self.share or self.promised + size > self.limit):
            return False
        if not held and self.promised + size > self.limit + self.share:
            del self.holders[holder]
            return False
        self.promised += size
        self.holders[holder] = held + size
        return True

    def give(self, holder: Hashable, size: int) -> None:
        """Take a promise back; whoever waits may have it."""
        if not size:
            return
        self.promised -= size
        self.holders[holder] -= size
        if not self.holders[holder]:
            del self.holders[holder]
        for again in list(self._waiting):
            if again():
                self._waiting.pop(again, None)

    def wait(self, again: Callable[[], bool]) -> None:
        """Have `again` called when there is room, until it says that it got what it wanted."""
        self._waiting[again] = None

    def forget(self, again: Callable[[], bool]) -> None:
        """Wait no more."""
        self._waiting.pop(again, None)


class Allowance:
    """So many at once and so many a second, for what costs us something and brings a peer nothing."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, burst: int, rate: float) -> None:
        self._burst = self._left = float(burst)
        self._rate = rate
        self._at = 0.0

    def spend(self, now: float) -> bool:
        """Whether it may have one more."""
        if self._left < 1:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
            self._at = now
            if self._left < 1:
                return False
        elif self._left >= self._burst:
            self._at = now
        self._left -= 1
        return True

    def earn(self, count: int) -> None:
        """It has been given a reason for so many more."""
        self._left = min(self._burst, self._left + count)
