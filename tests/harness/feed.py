"""A real feed process over a log that the test itself writes, with the test as its broker."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.feed.client import FeedClient
from headrace.feed.messages import (
    FromBroker,
    Lines,
    Listening,
    Open,
    Pong,
    Reply,
    Request,
    Subscriptions,
    encode,
    from_feed,
)

KEY = "test-key"


class Feeding:
    """The process, where it serves, and what it asked its broker."""

    def __init__(self, process: "subprocess.Popen[bytes]", end: socket.socket) -> None:
        self.process = process
        self.listening: Listening | None = None
        self.asked: list[Request] = []
        self.subscriptions: list[dict[str, Any]] = []
        self._end = end
        self._said = threading.Event()
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it serves."""
        assert self.listening is not None
        return self.listening.port

    @property
    def url(self) -> str:
        """The same as an address without TLS."""
        return f"grpc://127.0.0.1:{self.port}"

    def client(self, key: str | None = KEY, **settings: Any) -> FeedClient:
        """A client of it."""
        return FeedClient(self.url, key=key, **settings)

    def say(self, message: FromBroker) -> None:
        """Something from the broker."""
        self._end.sendall(encode(message))

    def open(self, message: Open) -> Listening:
        """Have it serve, or hear why it cannot."""
        self.say(message)
        assert self._said.wait(60)
        assert self.listening is not None
        return self.listening

    def resident_bytes(self, field: str = "VmRSS") -> int:
        """Its resident memory now, or by another field of its status."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) * 1024

    def hang_up(self) -> int:
        """Leave it alone; its exit code."""
        self._end.shutdown(socket.SHUT_RDWR)
        return self.process.wait(60)

    def _talk(self) -> None:
        lines = Lines()
        while data := self._receive():
            for line in lines.receive(data):
                message = from_feed(line)
                if isinstance(message, Listening):
                    self.listening = message
                    self._said.set()
                    continue
                if isinstance(message, Pong):
                    continue
                self.asked.append(message)
                answer = self.subscriptions if isinstance(message, Subscriptions) else {}
                self.say(Reply(id=message.id, ok=answer))

    def _receive(self) -> bytes:
        try:
            return self._end.recv(1 << 16)
        except OSError:
            return b""


@contextmanager
def started() -> Iterator[Feeding]:
    """A process that waits to be told what to serve."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [sys.executable, "-m", "headrace.feed", "--channel", str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        try:
            yield Feeding(process, ours)
        finally:
            process.kill()
            process.wait()


def opening(directory: Path, **settings: Any) -> Open:
    """What a broker would say about the log in `directory`."""
    staging = directory.parent / "staging"
    staging.mkdir(exist_ok=True)
    given: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "api_keys": (KEY,)} | settings
    return Open(log=str(directory), staging=str(staging), **given)


@contextmanager
def feeding(directory: Path, **settings: Any) -> Iterator[Feeding]:
    """A process that serves the log in this directory."""
    with started() as process:
        said = process.open(opening(directory, **settings))
        assert not said.failure, said.failure
        yield process
