"""Wall time that never goes backwards, in microseconds."""

import time


class Clock:
    """Wall time at start plus monotonic time since: a step of the system clock moves no deadline."""

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000

    def now(self) -> int:
        """Microseconds since the epoch."""
        return self._offset_us + time.monotonic_ns() // 1000
