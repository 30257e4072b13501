"""How much one caller may have of the feed at a time: calls, streams and uploads by number, rows in memory by bytes."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.http2 import Ledger
from headrace.model.errors import BrokerError, Code

MEMORY_MAX = 160 << 20
MEMORY_SHARE = 40 << 20
"""Bytes of rows between the disk and the network, both ways: of all, and of one owner."""

OPEN_EACH = {"calls": 1024, "streams": 256, "uploads": 256}
OPEN_ALL = {"calls": 4096, "streams": 1024, "uploads": 512}


class Places:
    """How many of something are open, by owner and by address, and no more than allowed."""

    def __init__(self, what: str, each: int, everybody: int) -> None:
        self._what = what
        self._each = each
        self._everybody = everybody
        self._open: Counter[tuple[str, str]] = Counter()
        self.count = 0

    @contextmanager
    def taken(self, owner: str, address: str) -> Iterator[None]:
        """One more for as long as this lasts. Raises BrokerError(LIMIT)."""
        holders = [("key", owner), ("address", address)]
        for kind, name in holders:
            if self._open[kind, name] >= self._each:
                raise BrokerError(
                    Code.LIMIT, f"{self._each} {self._what} of one {kind} are open, more are not: end one of them first"
                )
        if self.count >= self._everybody:
            raise BrokerError(Code.LIMIT, f"{self._everybody} {self._what} are open, more are not: try again later")
        self.count += 1
        self._open.update(holders)
        try:
            yield
        finally:
            self.count -= 1
            self._open.subtract(holders)
            for holder in holders:
                if not self._open[holder]:
                    del self._open[holder]


class Memory:
    """Promises of memory. Who finds none waits, and is served in his turn."""

    def __init__(self, limit: int = MEMORY_MAX, share: int = MEMORY_SHARE) -> None:
        self._ledger = Ledger(limit, share)

    @property
    def promised(self) -> int:
        """The bytes promised now."""
        return self._ledger.promised

    def is_short(self, size: int) -> bool:
        """Whether so many bytes more are not to be had by anybody."""
        return self._ledger.promised + size > self._ledger.limit

    def try_take(self, owner: str, size: int) -> bool:
        """Promise so many bytes, if they are to be had now."""
        return self._ledger.take(owner, size)

    async def take(self, owner: str, size: int) -> None:
        """Promise so many bytes once they are to be had."""
        if self._ledger.take(owner, size):
            return
        promised: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def _again() -> bool:
            if promised.done() or not self._ledger.take(owner, size):
                return promised.done()
            promised.set_result(None)
            return True

        self._ledger.wait(_again)
        try:
            await promised
        except asyncio.CancelledError:
            self._ledger.forget(_again)
            if promised.done() and not promised.cancelled():
                self.give(owner, size)
            raise

    def give(self, owner: str, size: int) -> None:
        """Take a promise back."""
        self._ledger.give(owner, size)
