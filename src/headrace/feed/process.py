"""The feed process, put together: opened by the broker, which it does not outlive."""

import json
import logging
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from headrace.auth import BadKeyEntry, Keyring
from headrace.feed.access import Access
from headrace.feed.link import Link
from headrace.feed.messages import BadLine, Keys, Listening, Open, Ping, Pong
from headrace.feed.messages import Subscriptions as ListSubscriptions
from headrace.feed.server import FeedServer, Tls
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.writing import Writing
from headrace.log.disk import OsDisk
from headrace.log.follower import Follower
from headrace.model.errors import HeadraceError

log = logging.getLogger("headrace.feed")


class Process:
    """One feed process: opened once, given new keys any number of times."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._access: Access | None = None
        self._server: FeedServer | None = None

    def run(self) -> int:
        """Serve until the broker hangs up; the exit code."""
        try:
            for message in self._link.news():
                if isinstance(message, Open) and self._server is None and not self._open(message):
                    return 1
                if isinstance(message, Ping):
                    self._link.say(Pong())
                if isinstance(message, Keys) and self._access is not None:
                    self._access.keyring = Keyring.from_settings(message.api_keys, message.certificates)
        except (BadLine, BadKeyEntry) as error:
            log.error("feed.nonsense", extra={"cause": str(error)})
            return 1
        except ConnectionError:
            return 0
        return 0

    def _open(self, opening: Open) -> bool:
        """Serve the log; whether that worked, which the broker is told."""
        try:
            self._access = Access(
                Keyring.from_settings(opening.api_keys, opening.certificates),
                allow_unauthenticated=opening.allow_unauthenticated,
            )
            disk = OsDisk()
            follower = Follower(Path(opening.log), disk)
            writing = Writing(Path(opening.staging), disk, self._link.ask)
            subscriptions = Subscriptions(lambda: self._link.ask(ListSubscriptions(id=0)))
            self._server = FeedServer(
                opening.host, opening.port, follower, self._access, writing, subscriptions, _tls(opening)
            )
        except (HeadraceError, OSError, pa.ArrowException) as error:
            self._link.say(Listening(failure=str(error).partition("\n")[0]))
            return False
        self._link.say(Listening(port=self._server.port))
        return True


class _JsonLines(logging.Formatter):
    """One JSON object a line, like those of the broker, whose standard error this process shares."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            "session": "-",
            "cause": getattr(record, "cause", None),
            "exception": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return json.dumps({name: value for name, value in line.items() if value is not None})


def _tls(opening: Open) -> Tls | None:
    if not opening.cert:
        return None
    client_ca = Path(opening.client_ca).read_bytes() if opening.client_ca else None
    return Tls(Path(opening.cert).read_bytes(), Path(opening.key).read_bytes(), client_ca)


def run(channel: int) -> NoReturn:
    """Serve, and end at once when the broker is gone: calls under way could not be answered any more.

    `channel` is the descriptor of the socket shared with it.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    code = Process(Link(socket.socket(fileno=channel))).run()
    logging.shutdown()
    os._exit(code)
