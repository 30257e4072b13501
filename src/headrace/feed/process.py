"""The feed process, put together: opened by the broker, which it does not outlive."""

import asyncio
import json
import logging
import os
import socket
import ssl
import sys
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import uvloop

from headrace.auth import BadKeyEntry, Keyring
from headrace.feed.access import Access
from headrace.feed.link import Link
from headrace.feed.messages import BadLine, FromBroker, Keys, Listening, Open, Ping, Pong
from headrace.feed.messages import Subscriptions as ListSubscriptions
from headrace.feed.room import Room
from headrace.feed.sending import WINDOW_BYTES
from headrace.feed.server import FeedServer
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.writing import Writing
from headrace.log.disk import OsDisk
from headrace.log.follower import Follower
from headrace.model.errors import HeadraceError

log = logging.getLogger("headrace.feed")


class Process:
    """One feed process: opened once, given new keys any number of times. Belongs to one event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._server: FeedServer | None = None
        self._news: asyncio.Queue[FromBroker | BadLine | None] = asyncio.Queue()

    async def run(self) -> int:
        """Serve until the broker hangs up; the exit code."""
        listening = partial(self._listen, asyncio.get_running_loop())
        threading.Thread(target=listening, name="feed-link", daemon=True).start()
        try:
            while (message := await self._news.get()) is not None:
                if isinstance(message, BadLine):
                    raise message
                if isinstance(message, Open) and self._server is None and not await self._open(message):
                    return 1
                if isinstance(message, Ping):
                    self._link.say(Pong())
                if isinstance(message, Keys) and self._server is not None:
                    keyring = Keyring.from_settings(message.api_keys, message.certificates)
                    self._server.take_keys(keyring)
        except (BadLine, BadKeyEntry) as error:
            log.error("feed.nonsense", extra={"cause": str(error)})
            return 1
        except ConnectionError:
            return 0
        return 0

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass on what the broker says, from a thread of its own."""
        last: BadLine | None = None
        try:
            for message in self._link.news():
                loop.call_soon_threadsafe(self._news.put_nowait, message)
        except BadLine as error:
            last = error
        loop.call_soon_threadsafe(self._news.put_nowait, last)

    async def _open(self, opening: Open) -> bool:
        """Serve the log; whether that worked, which the broker is told."""
        try:
            access = Access(
                Keyring.from_settings(opening.api_keys, opening.certificates),
                allow_unauthenticated=opening.allow_unauthenticated,
                certified=bool(opening.client_ca),
            )
            disk = OsDisk()
            follower = Follower(Path(opening.log), disk, WINDOW_BYTES)
            staging = Path(opening.staging)
            room = Room(
                staging,
                uploads=opening.uploads_max,
                files=opening.staged_files_max,
                size=opening.staged_bytes_max,
                free_min=opening.staging_free_min,
            )
            writing = Writing(staging, disk, self._link.asked, room)
            subscriptions = Subscriptions(lambda: self._link.ask(ListSubscriptions(id=0)))
            server = FeedServer(follower, access, writing, subscriptions, _tls(opening))
            port = await server.start(opening.host, opening.port)
        except (HeadraceError, OSError) as error:
            self._link.say(Listening(failure=str(error).partition("\n")[0]))
            return False
        self._server = server
        self._link.say(Listening(port=port))
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


def _tls(opening: Open) -> ssl.SSLContext | None:
    """Raises OSError for files that cannot be used."""
    if not opening.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(opening.cert, opening.key)
    if opening.client_ca:
        context.load_verify_locations(cafile=opening.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def run(channel: int) -> NoReturn:
    """Serve, and end at once when the broker is gone: calls under way could not be answered any more.

    `channel` is the descriptor of the socket shared with it.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    uvloop.run(_until_the_end(Process(Link(socket.socket(fileno=channel)))))
    raise AssertionError("the process has ended")


async def _until_the_end(process: Process) -> None:
    """Within the loop: its own end would tell every caller that he had cancelled his call."""
    code = await process.run()
    logging.shutdown()
    os._exit(code)
