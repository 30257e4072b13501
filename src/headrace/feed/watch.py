"""Waits for the log to grow, for any number of callers at the price of one."""

import asyncio
from collections.abc import Callable

from headrace.model.errors import StorageError

POLL_S = 0.001
POLL_S_MAX = 0.01
POLL_GROWTH = 1.1


class Watch:
    """Looks at the newest offset every few milliseconds while somebody waits, and not at all otherwise.

    The longer nothing comes, the longer the pauses. Belongs to one event loop.
    """

    def __init__(self, latest: Callable[[], int]) -> None:
        self._latest = latest
        self._seen = 0
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, beyond: int, timeout_s: float) -> int:
        """The newest offset as soon as it is greater than `beyond`, or after the time-out whatever it is.

        Raises StorageError.
        """
        latest = self._latest()
        if latest > beyond or timeout_s <= 0:
            return latest
        grown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[grown] = beyond
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="feed-watch")
        try:
            await asyncio.wait({grown}, timeout=timeout_s)
        finally:
            del self._waiting[grown]
        return self._latest()

    async def _look(self) -> None:
        pause_s = POLL_S
        try:
            while self._waiting:
                try:
                    latest = self._latest()
                except StorageError:
                    latest = self._seen  # the callers look for themselves when their time is up, and are told
                if latest != self._seen:
                    self._seen = latest
                    pause_s = POLL_S
                    for grown, beyond in self._waiting.items():
                        if latest > beyond and not grown.done():
                            grown.set_result(None)
                await asyncio.sleep(pause_s)
                pause_s = min(POLL_GROWTH * pause_s, POLL_S_MAX)
        finally:
            self._looking = None
