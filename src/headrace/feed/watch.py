"""Waits for the log to grow, for any number of callers at the price of one."""

import threading
import time
from collections.abc import Callable

from headrace.model.errors import StorageError

POLL_S = 0.001
POLL_S_MAX = 0.01
POLL_GROWTH = 1.1
WAITERS_MAX = 256
CROWDED_S = 0.1


class Watch:
    """Looks at the newest offset every few milliseconds while somebody waits, and not at all otherwise.

    The longer nothing comes, the longer the pauses.
    """

    def __init__(self, latest: Callable[[], int]) -> None:
        self._latest = latest
        self._seen = 0
        self._changed = threading.Condition()
        self._waiters = 0
        self._looking = False

    def wait(self, beyond: int, timeout_s: float) -> int:
        """The newest offset as soon as it is greater than `beyond`, or after the time-out whatever it is.

        In a crowd everybody's patience is short: who is answered early asks again. Raises StorageError.
        """
        latest = self._latest()
        if latest > beyond:
            return latest
        with self._changed:
            if self._waiters >= WAITERS_MAX:
                timeout_s = min(timeout_s, CROWDED_S)
            self._waiters += 1
            if not self._looking:
                self._looking = True
                threading.Thread(target=self._look, name="watch", daemon=True).start()
            try:
                self._changed.wait_for(lambda: self._seen > beyond, timeout_s)
            finally:
                self._waiters -= 1
        return self._latest()

    def _look(self) -> None:
        pause_s = POLL_S
        while True:
            try:
                latest = self._latest()
            except StorageError:
                latest = self._seen  # the callers look for themselves when their time is up, and are told
            with self._changed:
                if not self._waiters:
                    self._looking = False
                    return
                if latest != self._seen:
                    self._seen = latest
                    self._changed.notify_all()
                    pause_s = POLL_S
            time.sleep(pause_s)
            pause_s = min(POLL_GROWTH * pause_s, POLL_S_MAX)
