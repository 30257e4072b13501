"""How fast rows go: not more than so many a second. Time is an argument."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """At most `rate` rows a second, None for as fast as it goes. What was not sent in time is not made up for."""

    rate: int | None = None
    free_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """How long to wait before the next rows may go."""
        return max(0.0, self.free_s - now_s)

    def sent(self, rows: int, now_s: float) -> None:
        """So many rows go now."""
        if self.rate is not None:
            self.free_s = now_s + rows / self.rate
