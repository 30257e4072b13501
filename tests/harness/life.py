"""Sends one message through a broker and prints every function of ours that ran, in order, as JSON.

Run interpreted (HEADRACE_PURE=1), or the kernels would not be seen.
"""

import asyncio
import json
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import headrace
from headrace.testing import broker
from tests.harness.peer import PING, frame, publish
from tests.harness.stream import connected

SRC = str(Path(headrace.__file__).parent) + "/"
names: dict[CodeType, tuple[str, str] | None] = {}
calls: list[tuple[str, str]] = []


def note(python_frame: FrameType, event: str, _: object) -> None:
    """Profile hook: remember calls into our own source."""
    if event != "call":
        return
    code = python_frame.f_code
    if code not in names:
        path = code.co_filename
        names[code] = (path.removeprefix(SRC), code.co_qualname) if path.startswith(SRC) else None
    if (name := names[code]) is not None:
        calls.append(name)


async def live(data_dir: str) -> None:
    """Publish, fence, poll, ack, fence; then start again on the same directory."""
    async with broker(data_dir) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"orders")
        calls.clear()
        peer.send(publish(b"orders", b"one") + frame(PING, 1))
        assert await peer.until_pong() == []
        ((tag, value),) = await peer.take(subscription, 1)
        assert value == b"one"
        peer.ack(subscription, tag)
        assert await peer.fence() == []
    async with broker(data_dir) as node:
        assert node.engine.broker.counters.acked == 1


if __name__ == "__main__":
    threading.setprofile(note)
    sys.setprofile(note)
    asyncio.run(live(sys.argv[1]))
    sys.setprofile(None)
    sys.stdout.write(json.dumps(calls))
