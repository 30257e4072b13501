"""One request and its answer on an HTTP/2 connection, and what a session tells about it. Decides nothing."""

from collections import deque
from typing import Any

from headrace.http2.headers import Request
from headrace.model.batch import Buffer


class Stream:
    """One request and its answer."""

    __slots__ = (
        "call", "expected", "id", "left", "local_ended", "queue", "queued", "remote_ended", "send_window", "stuck_at",
        "stuck_since", "target", "trailers", "unread", "waiting",
    )  # fmt: skip

    def __init__(self, number: int, send_window: int, window: int) -> None:
        self.id = number
        self.call: Any = None
        self.remote_ended = False
        self.local_ended = False
        self.expected: int | None = None
        self.send_window = send_window
        self.queue: deque[Buffer] = deque()
        self.queued = 0
        self.trailers: bytes | None = None
        self.left = window
        self.target = window
        self.unread = 0
        self.waiting = False
        self.stuck_since: float | None = None
        self.stuck_at = 0


class Opened:
    """A peer begins a request; `ended`: without a body."""

    __slots__ = ("ended", "request", "stream")

    def __init__(self, stream: Stream, request: Request, ended: bool) -> None:
        self.stream = stream
        self.request = request
        self.ended = ended


class Received:
    """A piece of a body. The view is good until the next read; every byte is to be given back by `release`."""

    __slots__ = ("data", "ended", "size", "stream")

    def __init__(self, stream: Stream, data: memoryview, size: int, ended: bool) -> None:
        self.stream = stream
        self.data = data
        self.size = size
        self.ended = ended


class Reset:
    """A stream is gone: given up by the peer, or ended for what the peer did."""

    __slots__ = ("code", "stream")

    def __init__(self, stream: Stream, code: int) -> None:
        self.stream = stream
        self.code = code


Event = Opened | Received | Reset


def take(queue: deque[Buffer], size: int, out: list[Buffer]) -> None:
    """Move so many bytes from a queue, without copying them."""
    while size:
        piece = queue.popleft()
        length = len(piece)
        if length > size:
            view = memoryview(piece)
            out.append(view[:size])
            queue.appendleft(view[size:])
            return
        out.append(piece)
        size -= length
