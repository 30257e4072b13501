"""When to look at what again: one time for each key, the earliest asked for. Knows no clock."""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

NEVER = 1 << 63
SLACK = 64

Key = TypeVar("Key", int, str)


class Alarms(Generic[Key]):
    """A heap of times in which an earlier time for a key replaces a later one."""

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[Key, int] = {}
        self._heap: list[tuple[int, Key]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def wake_by(self, key: Key, due: int) -> None:
        """Come back to the key at this time, unless an earlier one is set."""
        if due >= self._due.get(key, NEVER):
            return
        self._due[key] = due
        heappush(self._heap, (due, key))
        if len(self._heap) > SLACK + 2 * len(self._due):
            self._heap = [(due, key) for key, due in self._due.items()]
            heapify(self._heap)

    def cancel(self, key: Key) -> None:
        """Do not come back to the key."""
        self._due.pop(key, None)

    def pop(self, now: int) -> Key | None:
        """The next key whose time has come; it has none from then on."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            due, key = heappop(heap)
            if self._due.get(key) == due:
                del self._due[key]
                return key
        return None

    def next_due(self) -> int:
        """The earliest time set, NEVER when there is none."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER
