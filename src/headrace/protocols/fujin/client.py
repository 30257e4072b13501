"""An asyncio client of Fujin, over QUIC or TLS: durable writes, transactions, pull and push readers.

    async with await FujinClient.connect("quic://127.0.0.1:4848", security=Security(ca="ca.pem")) as client:
        writer = await client.writer()
        await writer.write("orders", b"one")
        async with writer.transaction():
            await writer.write("orders", b"two")
            await writer.write("invoices", b"2")
        async for delivery in await client.subscribe("orders"):
            await delivery.ack()

`write` returns when the message is durable. Each writer and reader is a stream of its own, and lives no longer than its
connection: what is lost says so, and is made anew by its user.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.model.errors import HeadraceError
from headrace.model.names import check_topic
from headrace.protocols.fujin.frames import PING
from headrace.protocols.fujin.line import Disconnected, Line, NoReply, Refused, Stopping, Terms
from headrace.protocols.fujin.reading import Delivery, FujinReader, FujinSubscription
from headrace.protocols.fujin.settings import Dialect
from headrace.protocols.fujin.streams import ConnectionLost, Security, Stream, StreamTransport
from headrace.protocols.fujin.transports import connect
from headrace.protocols.fujin.writing import FujinWriter

__all__ = [
    "ClientSettings",
    "ConnectionLost",
    "Delivery",
    "Dialect",
    "Disconnected",
    "FujinClient",
    "FujinReader",
    "FujinSubscription",
    "FujinWriter",
    "NoReply",
    "Refused",
    "Security",
    "Stopping",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How patient and how greedy a client is, and whose word counts in what it reads.

    `prefetch` bounds how many pushed messages lie unread on this side. `reply_timeout_s` must be longer than the broker
    lets a FETCH wait.
    """

    dialect: Dialect = Dialect.DOCUMENT
    connect_timeout_s: float = 10
    reply_timeout_s: float = 60
    prefetch: int = 4096


class FujinClient:
    """One connection to one broker, shared by any number of tasks."""

    def __init__(self, transport: StreamTransport, settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings()
        self._transport = transport
        self._lines: set[Line] = set()
        self._pings: set[asyncio.Task[None]] = set()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(
        cls, endpoint: str, *, security: Security | None = None, settings: ClientSettings | None = None
    ) -> Self:
        """A client connected to `quic://host:port` or `tls://host:port`.

        Raises BadEndpoint, CertificateFileError for the files of `security`, and ConnectionLost.
        """
        settings = settings or ClientSettings()
        return cls(await connect(endpoint, security, settings.connect_timeout_s), settings)

    async def writer(self, writer_id: int | str = 0, *, headers: bool | None = None) -> FujinWriter:
        """A stream that writes. `headers`: whether its WRITEs carry any; unless told, as the dialect has it.

        Raises Refused or ConnectionLost.
        """
        if headers is None:
            headers = self.settings.dialect is Dialect.DOCUMENT
        line = await self._line(message_ids=False)
        return await self._opened(line, FujinWriter.open(line, writer_id, headers=headers))

    async def reader(self, topic: str, *, auto_commit: bool = False) -> FujinReader:
        """A stream that fetches from a topic. Raises Refused or ConnectionLost."""
        check_topic(topic)
        line = await self._line(message_ids=not auto_commit)
        return await self._opened(line, FujinReader.open(line, topic))

    async def subscribe(self, topic: str, *, auto_commit: bool = False) -> FujinSubscription:
        """A stream the broker sends a topic's messages to. Raises Refused or ConnectionLost."""
        check_topic(topic)
        line = await self._line(message_ids=not auto_commit, alone=True)
        return await self._opened(line, FujinSubscription.open(line, topic))

    async def close(self) -> None:
        """Disconnect every stream, then the connection."""
        await asyncio.gather(*(line.disconnect() for line in self._lines))
        self._lines.clear()
        self._listening.cancel()
        for ping in self._pings:
            ping.cancel()
        await asyncio.gather(self._listening, *self._pings, return_exceptions=True)
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _line(self, *, message_ids: bool, alone: bool = False) -> Line:
        settings = self.settings
        reference = settings.dialect is Dialect.REFERENCE
        terms = Terms(reference, settings.reply_timeout_s, message_ids, settings.prefetch)
        line = Line(await self._transport.open_stream(alone=alone), terms)
        self._lines = {known for known in self._lines if known.lost is None}
        self._lines.add(line)
        return line

    async def _opened(self, line: Line, opening: Coroutine[Any, Any, T]) -> T:
        try:
            return await opening
        except HeadraceError:
            await line.disconnect()
            raise
        except BaseException:
            line.abandon()
            raise

    async def _listen(self) -> None:
        """Answer the broker's pings until the connection is over."""
        while (stream := await self._transport.accept_stream()) is not None:
            ping = asyncio.create_task(_pong(stream))
            self._pings.add(ping)
            ping.add_done_callback(self._pings.discard)


async def _pong(stream: Stream) -> None:
    """Answer one ping; what is no ping is not answered."""
    with contextlib.suppress(ConnectionLost):
        if (await stream.read())[:1] != PING:
            stream.close()
            return
        stream.write(PING)
        stream.write_eof()
        while await stream.read():
            pass
