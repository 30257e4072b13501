"""An event loop in which time is a number: it jumps to the next timer when nothing is ready, and nothing is real.

Timers are late by chance, as they may be, so that things which happen at the same time happen in any order; chance is
seeded, so that they happen in the same order again. What belongs to one *process* can be killed at any moment between
two callbacks: nothing of it runs any more, no `finally`, no timer, no task.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from inspect import iscoroutine
from random import Random
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

LATE_S = 0.0004
CLOSES_MAX = 100

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Step = Generator[Any, None, T] | Coroutine[Any, Any, T]


class Stuck(Exception):
    """Nothing is ready and no timer is set: everybody waits for somebody else, for ever."""


class Process:
    """Callbacks and tasks that live and die together: those begun inside of `run`, and whatever they begin."""

    def __init__(self) -> None:
        self.alive = True
        self.context = copy_context()
        self.context.run(_process.set, self)
        self.tasks: list[asyncio.Task[Any]] = []

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call as this process."""
        return self.context.copy().run(function, *args, **kwargs)

    def perform(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Do what was to be done later, if there still is somebody to do it."""
        if self.alive:
            callback(*args)

    def kill(self) -> None:
        """Stop here and now. Its coroutines are thrown away, unable to do anything but to fall apart."""
        self.alive = False
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self.run(_throw_away, task.get_coro())


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `freeze` lets time pass in which nobody does anything. What a callback raises ends it all."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self._now = 0.0
        self._chance = chance
        self._selector = _Jump(self)
        self.ports: dict[int, Callable[[], asyncio.BaseProtocol]] = {}

    def time(self) -> float:
        """Seconds since the beginning of the world."""
        return self._now

    def freeze(self, seconds: float) -> None:
        """Let time pass at once, as when the machine was busy elsewhere."""
        self._now += seconds

    def pause(self, seconds: float) -> asyncio.Future[None]:
        """Something to await that takes this long."""
        future: asyncio.Future[None] = self.create_future()
        self.call_later(seconds, _come_true, future)
        return future

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As the real one, unless the process it is called for is dead."""
        owner = _owner(context)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(owner.perform, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As the real one, a little late; a dead process's timers never ring."""
        owner = _owner(context)
        if owner is None:
            return super().call_at(when + self._lateness(), callback, *args, context=context)
        if owner.alive:
            when += self._lateness()
        return super().call_at(when, owner.perform, callback, *args, context=context)

    def create_task(self, coro: Step[T], *, name: object = None, context: Context | None = None) -> asyncio.Task[T]:
        """As the real one; the task belongs to the process it is made in."""
        task: asyncio.Task[T] = super().create_task(coro, name=name and str(name), context=context)
        owner = _owner(context)
        if owner is not None:
            owner.tasks.append(task)
        return task

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_options: object
    ) -> "VirtualServer":
        """Listen at a port that nobody outside can see."""
        self.ports[port] = protocol_factory
        return VirtualServer(self, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what a callback raised, to be raised where the loop is run."""
        error = context.get("exception")
        if self.failure is None and error is not None:
            self.failure = error

    def _lateness(self) -> float:
        return self._chance.random() * LATE_S

    def _process_events(self, event_list: list[object]) -> None:
        """There are no sockets."""


class VirtualServer:
    """What TcpListener wants of an asyncio.Server."""

    def __init__(self, loop: VirtualLoop, port: int) -> None:
        self._loop = loop
        self._port = port

    @property
    def sockets(self) -> list["VirtualServer"]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return "virtual", self._port

    def close(self) -> None:
        """Accept nobody any more."""
        self._loop.ports.pop(self._port, None)


class _Jump:
    """In place of a selector: waiting is adding."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if self._loop.failure is not None:
            raise self._loop.failure
        if timeout is None:
            raise Stuck
        self._loop.freeze(timeout)
        return []


_process: ContextVar[Process] = ContextVar("process")


def _owner(context: Context | None) -> Process | None:
    return _process.get(None) if context is None else context.get(_process)


def _come_true(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _throw_away(coroutine: Any) -> None:
    """Close a coroutine, the innermost it awaits first, whatever it says or awaits on its way out."""
    chain = []
    while iscoroutine(coroutine):
        chain.append(coroutine)
        coroutine = coroutine.cr_await
    for each in reversed(chain):
        for _ in range(CLOSES_MAX):
            with suppress(BaseException):
                each.close()
                break
