"""A clock that a test can turn."""

from headrace.server.clock import Clock


class TurnedClock(Clock):
    """The real clock, ahead by as much as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_us = 0

    def now(self) -> int:
        """Microseconds since the epoch, as far as the broker knows."""
        return super().now() + self.ahead_us

    def turn(self, seconds: float) -> None:
        """Let time pass."""
        self.ahead_us += int(seconds * 1e6)


class StillClock(TurnedClock):
    """Stands still until it is turned: a slow machine changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._began_us = Clock.now(self)

    def now(self) -> int:
        """The same microsecond, and what was turned."""
        return self._began_us + self.ahead_us
