"""Work that blocks, in a bounded number of threads, of which one owner has at most his share."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """A pool. Belongs to one event loop; an owner who has as many jobs as he may waits, others go ahead of him."""

    def __init__(self, name: str, count: int, share: int) -> None:
        self._pool = ThreadPoolExecutor(count, name)
        self._share = share
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, owner: str, job: Callable[[], T]) -> T:
        """What the job returns or raises. Who is cancelled leaves the job to itself."""
        await self._turn(owner)
        running = self._pool.submit(job)
        running.add_done_callback(_done(asyncio.get_running_loop(), lambda: self._end(owner)))
        return await asyncio.wrap_future(running)

    def leave(self, job: Callable[[], object]) -> None:
        """Have something done that nobody waits for: it must not raise."""
        self._pool.submit(job)

    async def _turn(self, owner: str) -> None:
        if self._busy[owner] < self._share:
            self._busy[owner] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(owner)
            raise

    def _end(self, owner: str) -> None:
        """One job of this owner less: the next of his may begin."""
        waiting = self._waiting.get(owner)
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._waiting.pop(owner, None)
        self._busy[owner] -= 1
        if not self._busy[owner]:
            del self._busy[owner]


def _done(loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> Callable[[object], None]:
    def _call(_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(then)

    return _call


class Worker:
    """The blocking work of one call: one piece after the other, whatever becomes of the call."""

    def __init__(self, threads: Threads, owner: str) -> None:
        self._threads = threads
        self._owner = owner
        self._lock = Lock()
        self._is_left = False

    async def run(self, job: Callable[[], T]) -> T:
        """What the job returns or raises."""
        return await self._threads.run(self._owner, lambda: self._next(job))

    def leave(self, job: Callable[[], object]) -> None:
        """Have this done last, after what is being done, with nobody waiting: it must not raise."""
        self._threads.leave(lambda: self._last(job))

    def _next(self, job: Callable[[], T]) -> T:
        with self._lock:
            if self._is_left:
                raise CancelledError
            return job()

    def _last(self, job: Callable[[], object]) -> None:
        with self._lock:
            self._is_left = True
            job()
