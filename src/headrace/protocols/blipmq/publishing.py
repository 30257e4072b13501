"""One call of publish_many on its way: chunks in flight, in order, each settled by a fence or sent again."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator

from headrace.protocols.blipmq.frames import LENGTH_MAX
from headrace.protocols.blipmq.link import Link, Refused
from headrace.protocols.dialling import ConnectionLost

CHUNK_BYTES = 256 * 1024
CHUNK_MESSAGES = 4096


class Chunk:
    """Neighbouring messages that travel together; `start` is the place of the first in the call."""

    def __init__(self, start: int, messages: list[bytes]) -> None:
        self.start = start
        self.messages = messages
        self.settled: asyncio.Future[None] | None = None

    @property
    def outcome(self) -> BaseException | bool:
        """What became of it: True when it is stored, False while that is not known."""
        if self.settled is None or not self.settled.done() or self.settled.cancelled():
            return False
        return self.settled.exception() or True

    def forget(self) -> None:
        """Nobody will ask what became of it."""
        if self.settled is not None and not self.settled.cancel() and not self.settled.cancelled():
            self.settled.exception()


class Publishing:
    """The chunks of one call that are not settled yet.

    With `retry`, chunks that a lost connection left unsettled are sent again, in order and before any later one;
    otherwise its loss ends the call.
    """

    def __init__(
        self,
        find_link: Callable[[], Awaitable[Link]],
        topic: str,
        *,
        qos: int,
        retry: bool,
        unfenced_bytes_max: int,
    ) -> None:
        self.refusals: list[Refused] = []
        self._find_link = find_link
        self._link: Link | None = None
        self._topic = topic
        self._qos = qos
        self._retry = retry
        self._unfenced_bytes_max = unfenced_bytes_max
        self._unsettled: deque[Chunk] = deque()

    async def send(self, chunk: Chunk) -> None:
        """Send as soon as there is room. Raises ConnectionLost unless retrying."""
        while True:
            try:
                link = await self._current_link()
                await link.drained(self._unfenced_bytes_max)
            except ConnectionLost:
                if not self._retry:
                    raise
            else:
                break
        self._transmit(link, chunk)
        self._unsettled.append(chunk)
        while self._unsettled and self._unsettled[0].outcome is True:
            self._unsettled.popleft()

    async def settle(self) -> None:
        """Wait until every chunk is stored or refused. Raises ConnectionLost unless retrying."""
        while self._unsettled:
            oldest = self._unsettled[0]
            assert oldest.settled is not None
            try:
                await oldest.settled
            except ConnectionLost:
                if not self._retry:
                    raise
                await self._current_link()
                continue
            except Refused as refused:
                places = [oldest.start + i for i in refused.indexes]
                self.refusals.append(Refused(refused.code, refused.message, places))
            self._unsettled.popleft()

    def abandon(self) -> None:
        """Ask no more what became of the rest."""
        for chunk in self._unsettled:
            chunk.forget()

    async def _current_link(self) -> Link:
        link = await self._find_link()
        if link is not self._link:
            lost = [chunk for chunk in self._unsettled if isinstance(chunk.outcome, ConnectionLost)]
            if lost and not self._retry:
                raise ConnectionLost("the connection broke before every message was durable")
            for chunk in lost:
                self._transmit(link, chunk)
            self._link = link
        return link

    def _transmit(self, link: Link, chunk: Chunk) -> None:
        chunk.settled = link.publish(self._topic, chunk.messages, self._qos)


def chunks(topic: str, messages: Iterable[bytes]) -> Iterator[Chunk]:
    """The messages in order, by the chunk. Raises ValueError for one that fits into no frame."""
    room = LENGTH_MAX - 12 - len(topic.encode())
    start = size = 0
    held: list[bytes] = []
    for message in messages:
        if len(message) > room:
            raise ValueError(f"a message of {len(message)} bytes; {room} fit into a frame")
        if held and (size + len(message) > CHUNK_BYTES or len(held) == CHUNK_MESSAGES):
            yield Chunk(start, held)
            start, size, held = start + len(held), 0, []
        held.append(message)
        size += len(message)
    if held:
        yield Chunk(start, held)
