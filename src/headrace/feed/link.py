"""The feed's end of the socket it shares with the broker: questions out, answers and news in.

Knows lines and who waits for which; what is in them is told by `messages`. Blocks; threads may ask side by side.
"""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer

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
        answer: Future[Reply] = Future()
        with self._numbering:
            self._last_id = number = self._last_id + 1
            self._waiting[number] = answer
        try:
            self.say(msgspec.structs.replace(request, id=number))
            reply = answer.result(None if isinstance(request, Commit) else ANSWER_S)
        except (OSError, NoAnswer):
            raise BrokerError(Code.DRAINING, "the broker does not answer") from None
        finally:
            with self._numbering:
                del self._waiting[number]
        if not reply.code:
            return reply.ok
        if reply.code in _CODES:
            raise BrokerError(_CODES[reply.code], reply.detail)
        raise BrokerFault(reply.detail)

    def news(self) -> Iterator[FromBroker]:
        """What the broker says unasked, until it hangs up; answers go to whoever waits for them. Raises BadLine."""
        lines = Lines()
        while data := self._receive():
            for line in lines.receive(data):
                message = from_broker(line)
                if isinstance(message, Reply):
                    with self._numbering:
                        waiting = self._waiting.get(message.id)
                    if waiting is not None:
                        waiting.set_result(message)
                else:
                    yield message

    def _receive(self) -> bytes:
        try:
            return self._end.recv(_READ_SIZE)
        except ConnectionError:
            return b""
