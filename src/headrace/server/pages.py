"""Lists as pages: how many rows and bytes one holds, where the next one begins, and which topics a caller may see.

Knows keys, names and sizes; nothing of what the rows tell.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Iterator
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.auth import Identity
from headrace.broker import Broker
from headrace.model.errors import BrokerError, Code
from headrace.model.names import DEAD_PREFIX
from headrace.server.replies import document
from headrace.server.walk import Turns

PAGE_BYTES_MAX = 4 << 20
"""The most a page weighs as JSON, its envelope aside. No row may weigh more."""

SCAN_BYTES_MAX = 32 << 20
"""The most that is read from the log to make one page, the batch that exceeds it included."""

OFFSET_MAX = (1 << 63) - 1
CHUNK = 256
_DIGITS_MAX = 20
_CURSOR_SIZE_MAX = 16384

T = TypeVar("T")


class Page:
    """Rows of one page, encoded as they come."""

    def __init__(self, limit: int) -> None:
        self.full = limit < 1
        self._left = limit
        self._bytes = 0
        self._scanned = 0
        self.rows: list[msgspec.Raw] = []

    def add(self, row: object) -> bool:
        """Take in a row if there is room for it; the first one always fits."""
        if self.full:
            return False
        data = msgspec.json.encode(row)
        if self.rows and self._bytes + len(data) > PAGE_BYTES_MAX:
            self.full = True
            return False
        self.rows.append(msgspec.Raw(data))
        self._bytes += len(data) + 1
        self._left -= 1
        self.full = self._left < 1
        return True

    def scanned(self, size: int) -> None:
        """So many bytes were read for the page; when that is enough it is full, but for a first row."""
        self._scanned += size
        if self._scanned > SCAN_BYTES_MAX and self.rows:
            self.full = True

    def document(self, name: str, **rest: object) -> Response:
        """The answer: the rows under this name, and what else there is to say."""
        return document({name: self.rows, **rest})


async def visible_topics(
    identity: Identity, broker: Broker, turns: Turns, *, after: str = "", prefix: str = ""
) -> AsyncGenerator[str, None]:
    """The topics behind `after` that this identity may read and that begin with the prefix, in order.

    Only names that begin as one of its patterns does are looked at, so that what others own costs nothing.
    """
    for head in _heads(identity, prefix):
        for name in _names(broker, head, max(head, after + "\0" if after else "")):
            await turns.step()
            if identity.may_subscribe(name):
                yield name


async def visible_subscriptions(
    identity: Identity, broker: Broker, turns: Turns, *, after: tuple[str, int]
) -> AsyncGenerator[tuple[str, int], None]:
    """The subscriptions to topics this identity may read, as (topic, id) in that order, behind one of them."""
    for head in _heads(identity, ""):
        for topic, subscription in _placed(broker, head, max((head, 0), (after[0], after[1] + 1))):
            await turns.step()
            if identity.may_subscribe(topic):
                yield topic, subscription


def _names(broker: Broker, head: str, start: str) -> Iterator[str]:
    while found := broker.topic_names(start, CHUNK):
        for name in found:
            if not name.startswith(head):
                return
            yield name
        start = found[-1] + "\0"


def _placed(broker: Broker, head: str, start: tuple[str, int]) -> Iterator[tuple[str, int]]:
    while found := broker.placed(*start, CHUNK):
        for topic, subscription in found:
            if not topic.startswith(head):
                return
            yield topic, subscription
        start = found[-1][0], found[-1][1] + 1


def _heads(identity: Identity, prefix: str) -> list[str]:
    """How the names of topics begin that the identity may read, in order, none the beginning of another."""
    own = identity.subscribe.heads
    heads: list[str] = []
    for head in sorted({*own, *(DEAD_PREFIX + each for each in own)}):
        if head.startswith(prefix):
            wanted = head
        elif prefix.startswith(head):
            wanted = prefix
        else:
            continue
        if not heads or not wanted.startswith(heads[-1]):
            heads.append(wanted)
    return heads


def number(request: Request, name: str, default: int, most: int = OFFSET_MAX) -> int:
    """A number in the query. Raises BrokerError(INVALID) for one that is none, or too big."""
    text = request.query_params.get(name)
    return default if text is None else whole_number(name, text, most)


def whole_number(name: str, text: str, most: int = OFFSET_MAX) -> int:
    """A number in decimal digits, however many a stranger may send. Raises BrokerError(INVALID)."""
    digits = text.lstrip("0") or "0"
    if not (text.isascii() and text.isdigit()) or len(digits) > _DIGITS_MAX or int(digits) > most:
        raise BrokerError(Code.INVALID, f"{name} must be a number from 0 to {most}")
    return int(digits)


def cursor(place: object) -> str:
    """A place in a list as it is handed out, to be handed back unread."""
    return urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def place_of(request: Request, default: T, kind: type[T]) -> T:
    """Where a list goes on: the query's `after`, else the default. Raises BrokerError(INVALID)."""
    text = request.query_params.get("after")
    if not text:
        return default
    try:
        if len(text) > _CURSOR_SIZE_MAX:
            raise ValueError
        return msgspec.msgpack.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise BrokerError(Code.INVALID, "after must be the `next` of an earlier page") from None
