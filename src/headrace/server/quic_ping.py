"""When to ask a silent peer whether it is there, and when to stop believing it. Time is an argument."""

from enum import Enum, auto


class Verdict(Enum):
    """What to do now."""

    WAIT = auto()
    PING = auto()
    GIVE_UP = auto()


class Pinger:
    """One peer's pings: one at a time, the next an interval after the last was sent."""

    __slots__ = ("_asked_at", "_due_at", "_interval_s", "_timeout_s")

    def __init__(self, interval_s: float, timeout_s: float, now: float) -> None:
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._due_at = now + interval_s
        self._asked_at: float | None = None

    @property
    def next_at(self) -> float:
        """When `judge` will have something to say, unless an answer comes first."""
        return self._due_at if self._asked_at is None else self._asked_at + self._timeout_s

    def judge(self, now: float, *, heard: bool = True) -> Verdict:
        """PING when it is time, GIVE_UP when no answer came in time.

        `heard` is false while the peer's words are held back: its answer may be among them, so it gets more time.
        """
        if now < self.next_at:
            return Verdict.WAIT
        if self._asked_at is None:
            self._asked_at = now
            self._due_at = now + self._interval_s
            return Verdict.PING
        if not heard:
            self._asked_at = now
            return Verdict.WAIT
        return Verdict.GIVE_UP

    def answered(self) -> None:
        """The peer is there."""
        self._asked_at = None
