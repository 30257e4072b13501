"""The feed's end of the socket it shares with the broker: questions out, answers and news in.

Knows lines and who waits for which; what is in them is told by `messages`. Threads may ask side by side, and so may an
event loop.
"""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import ExitStack, contextmanager

import msgspec

from headrace.feed.messages import Commit, FromBroker, FromFeed, Lines, Reply, Request, encode, from_broker
from headrace.model.errors import BrokerError, Code, HeadraceError

ANSWER_S = 120.0
_READ_SIZE = 1 << 16
_CODES = {code.value: code for code in Code}


class BrokerFault(HeadraceError):
    """The broker failed at answering."""


class Link:
    """A conversation with the broker; ends when the broker does."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()
        self._numbering = threading.Lock()
        self._last_id = 0
        self._waiting: dict[int, Future[Reply]] = {}

    def say(self, message: FromFeed) -> None:
        """Send one message. Raises OSError when nobody is there."""
        with self._sending:
            self._end.sendall(encode(message))

    def ask(self, request: Request) -> object:
        """Put a question, with a number of its own, and wait for the answer: to a commit for as long as it takes.

        Raises BrokerError when it is refused or nobody answers, BrokerFault when the broker fails at it.
        """
        with self._asked(request) as answer:
            try:
                return _answered(answer.result(_patience_s(request)))
            except NoAnswer:
                raise _silence() from None

    async def asked(self, request: Request) -> object:
        """The same for an event loop, which goes on meanwhile."""
        with ExitStack() as asking:
            answer = await asyncio.to_thread(lambda: asking.enter_context(self._asked(request)))
            try:
                return _answered(await asyncio.wait_for(asyncio.wrap_future(answer), _patience_s(request)))
            except TimeoutError:
                raise _silence() from None

    @contextmanager
    def _asked(self, request: Request) -> "Iterator[Future[Reply]]":
        """The answer to come, for as long as somebody waits for it."""
        answer: Future[Reply] = Future()
        with self._numbering:
            self._last_id = number = self._last_id + 1
            self._waiting[number] = answer
        try:
            try:
                self.say(msgspec.structs.replace(request, id=number))
            except OSError:
                raise _silence() from None
            yield answer
        finally:
            with self._numbering:
                del self._waiting[number]

    def news(self) -> Iterator[FromBroker]:
        """What the broker says unasked, until it hangs up; answers go to whoever waits for them. Raises BadLine."""
        lines = Lines()
        while data := self._receive():
            for line in lines.receive(data):
                message = from_broker(line)
                if isinstance(message, Reply):
                    with self._numbering:
                        waiting = self._waiting.get(message.id)
                    if waiting is not None and waiting.set_running_or_notify_cancel():
                        waiting.set_result(message)
                else:
                    yield message

    def _receive(self) -> bytes:
        try:
            return self._end.recv(_READ_SIZE)
        except ConnectionError:
            return b""


def _patience_s(request: Request) -> float | None:
    return None if isinstance(request, Commit) else ANSWER_S


def _silence() -> BrokerError:
    return BrokerError(Code.DRAINING, "the broker does not answer")


def _answered(reply: Reply) -> object:
    if not reply.code:
        return reply.ok
    if reply.code in _CODES:
        raise BrokerError(_CODES[reply.code], reply.detail)
    raise BrokerFault(reply.detail)
