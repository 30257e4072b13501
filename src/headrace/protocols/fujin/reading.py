"""The client's readers: pull by `fetch`, push by iteration; settled by the delivery itself or by ack and nack."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from headrace.protocols.fujin.errors import NO_MESSAGES
from headrace.protocols.fujin.frames import (
    IDS_MAX,
    Command,
    ReaderType,
    Response,
    encode_connect_reader,
    encode_fetch,
    encode_settle,
)
from headrace.protocols.fujin.line import CONNECTED, Disconnected, Line, Refused, Speaker, Stopping


class Delivery(NamedTuple):
    """One message handed to this reader. Its id is empty, and nothing is to be done, where auto commit is on."""

    id: bytes
    value: bytes
    reader: "Reading"

    async def ack(self) -> bool:
        """The message is done with; whether this settled it, durably."""
        return (await self.reader.ack((self.id,)))[0]

    async def nack(self) -> bool:
        """The message failed and is to be tried again; whether this settled the delivery."""
        return (await self.reader.nack((self.id,)))[0]


class Reading(Speaker):
    """One stream that reads one topic, which it shares with every other reader of it.

    Leaving it, or `close`, disconnects; what is not settled then comes back to some reader.
    """

    async def ack(self, ids: Sequence[bytes]) -> list[bool]:
        """These messages are done with; which of them this settled, durably. Raises Refused or ConnectionLost."""
        return await self._settle(Command.ACK, Response.ACK, ids)

    async def nack(self, ids: Sequence[bytes]) -> list[bool]:
        """These messages failed and are to be tried again; for which of them this was in time."""
        return await self._settle(Command.NACK, Response.NACK, ids)

    async def _connect(self, kind: ReaderType, topic: str) -> None:
        command = encode_connect_reader(kind, not self._line.terms.message_ids, topic)
        await self._line.call(CONNECTED, command)

    async def _settle(self, command: Command, response: Response, ids: Sequence[bytes]) -> list[bool]:
        results: list[bool] = []
        for first in range(0, len(ids), IDS_MAX):
            tag = self._line.take_ids()
            settle = encode_settle(command, tag, ids[first : first + IDS_MAX])
            results += await self._line.call((response, tag), settle, late=True)
        return results


class FujinReader(Reading):
    """A reader that asks for its messages."""

    @classmethod
    async def open(cls, line: Line, topic: str) -> Self:
        """Connect. Raises Refused or ConnectionLost."""
        reader = cls(line)
        await reader._connect(ReaderType.PULL, topic)
        return reader

    async def fetch(self, count: int, *, timeout_s: float | None = None) -> list[Delivery]:
        """Up to `count` messages, at least one unless the broker's patience is over.

        Raises Refused, Stopping when the broker stops, and ConnectionLost.
        """
        tag = self._line.take_ids()
        try:
            found = await self._line.call((Response.FETCH, tag), encode_fetch(tag, count), timeout_s=timeout_s)
        except Refused as refused:
            if refused.text == NO_MESSAGES:
                return []
            self._line.check()
            raise
        return [Delivery(name, value, self) for name, value in found]


class FujinSubscription(Reading):
    """A reader the broker sends messages to. One task at a time may iterate over it.

    Iteration ends when the subscription is closed, or when the broker stops: what is held can still be settled then.
    """

    @classmethod
    async def open(cls, line: Line, topic: str) -> Self:
        """Connect. Raises Refused or ConnectionLost."""
        subscription = cls(line)
        await subscription._connect(ReaderType.PUSH, topic)
        return subscription

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        try:
            return (await self.take(1))[0]
        except (Disconnected, Stopping):
            raise StopAsyncIteration from None

    async def take(self, limit: int) -> list[Delivery]:
        """Up to `limit` messages, at least one. Raises ConnectionLost when no more will come."""
        line = self._line
        while not line.arrived:
            line.check()
            line.changed.clear()
            await line.changed.wait()
        pairs = [line.arrived.popleft() for _ in range(min(limit, len(line.arrived)))]
        line.changed.set()
        return [Delivery(name, value, self) for name, value in pairs]
