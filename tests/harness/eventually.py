"""Waiting for a condition that another process or task brings about."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 20.0


async def eventually(condition: Callable[[], T | None]) -> T:
    """What the condition gives, as soon as that is something; other tasks run meanwhile.

    Raises TimeoutError when that takes far too long.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not (found := condition()):
        if loop.time() > deadline:
            raise TimeoutError("it never happened")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.005)
    return found
