"""An asyncio client of SSPQ: send and forget, receive one message at a time, confirm it, across lost connections.

    async with await SspqClient.connect("tcp://127.0.0.1:8888") as client:
        await client.send(b"one", retries=3)
        delivery = await client.receive()
        await delivery.confirm()

The protocol answers no SEND: `send` returns when the bytes are on their way. The broker stores them durably some
milliseconds later, and nothing tells the client; what was sent just before a connection broke may be lost. Whoever
must know uses a protocol that confirms. A connection is made again when it is next needed.
"""

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from headrace.model.errors import HeadraceError
from headrace.protocols.dialling import Address, ClientClosed, ConnectionLost, Dialling
from headrace.protocols.sspq.frames import PAYLOAD_MAX, RETRIES_UNLIMITED, encode_send
from headrace.protocols.sspq.link import Answer, Declined, Link, State

__all__ = [
    "ClientClosed",
    "ClientSettings",
    "ConnectionLost",
    "Declined",
    "Delivery",
    "NotConfirmed",
    "SspqClient",
]

DEFAULT_PORT = 8888
DEFAULT_RETRIES = 3
CHUNK_BYTES = 256 * 1024


class NotConfirmed(HeadraceError):
    """A connection holds one message at a time, and this one holds or waits for one already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How patient a client is, and how large a message it takes."""

    connect_timeout_s: float = 10
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 5
    payload_max: int = PAYLOAD_MAX


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One message, held until it is confirmed or the connection ends; then it is tried again, or a dead letter.

    `retries` is how often it will still be tried, 255 for ever; always 0 for a dead letter, which is never given up.
    """

    payload: bytes
    retries: int
    dead: bool
    _link: Link = field(repr=False)
    _answer: Answer = field(repr=False)

    async def confirm(self) -> None:
        """The message is done with. Returns when the CONFIRM is on its way; a second time does nothing.

        Raises ConnectionLost when the message went back to the broker meanwhile.
        """
        await self._link.confirm(self._answer)


class SspqClient:
    """One connection at a time to one broker. Any number of tasks may send; one at a time receives."""

    def __init__(self, endpoint: str, tls: ssl.SSLContext | None, settings: ClientSettings) -> None:
        self.settings = settings
        self._address = Address.parse(endpoint, DEFAULT_PORT, tls)
        self._dialling = Dialling(self._open, settings.reconnect_min_s, settings.reconnect_max_s)
        self._receiving = False

    @classmethod
    async def connect(
        cls, endpoint: str, *, tls: ssl.SSLContext | None = None, settings: ClientSettings | None = None
    ) -> Self:
        """A client that is connected. Raises ConnectionLost when nobody answers."""
        client = cls(endpoint, tls, settings or ClientSettings())
        await client._dialling.connect()
        return client

    async def send(self, payload: bytes, *, retries: int = DEFAULT_RETRIES) -> None:
        """Send one message; see `send_many`."""
        await self.send_many((payload,), retries=retries)

    async def send_many(self, payloads: Iterable[bytes], *, retries: int = DEFAULT_RETRIES) -> int:
        """Send in order, pipelined; how many, once the socket has taken them all.

        Each is delivered up to `retries` + 1 times, with 255 until it is confirmed.
        Raises ConnectionLost when the connection broke meanwhile: how many arrived is then unknown. SSPQ has no ids for
        messages, so what is sent again may be stored twice.
        """
        if not 0 <= retries <= RETRIES_UNLIMITED:
            raise ValueError(f"retries must be between 0 and {RETRIES_UNLIMITED}, not {retries}")
        count = 0
        for chunk in _chunks(payloads):
            link = await self.link()
            await link.send(b"".join(encode_send(retries, payload) for payload in chunk))
            count += len(chunk)
        return count

    async def receive(self, *, dead: bool = False, timeout: float | None = None) -> Delivery:  # noqa: ASYNC109
        """The next message, or with `dead` the next dead letter, waiting for one up to `timeout` seconds.

        Raises Declined, ConnectionLost, NotConfirmed, and TimeoutError. After a TimeoutError the broker still has the
        request, for the protocol cannot take it back: a message that comes is kept for the next `receive` of the same
        kind. Asking for the other kind hangs up instead, so that it goes back to the broker.
        """
        if self._receiving:
            raise NotConfirmed("another task is waiting for a message")
        self._receiving = True
        try:
            async with asyncio.timeout(timeout):
                link = await self._asked(dead)
                answer = await link.answer()
        finally:
            self._receiving = False
        return Delivery(answer.payload, answer.retries, dead, link, answer)

    async def close(self) -> None:
        """Send what was queued and hang up; a message that was not confirmed goes back to the broker."""
        await self._dialling.close()

    async def link(self) -> Link:
        """The connection, made again, with growing pauses, for as long as the broker cannot be reached.

        Raises ClientClosed.
        """
        return await self._dialling.wire()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _asked(self, dead: bool) -> Link:
        """A connection that has asked for a message of this kind. Raises NotConfirmed."""
        link = await self.link()
        if link.state is State.HELD:
            raise NotConfirmed("the last message was not confirmed")
        if link.state is not State.FREE and link.dead is not dead:
            await link.close()
            link = await self.link()
        if link.state is State.FREE:
            link.ask(dead=dead)
        return link

    async def _open(self) -> Link:
        return await self._address.dial(lambda: Link(self.settings.payload_max), self.settings.connect_timeout_s)


def _chunks(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The payloads in order, by what is written at once. Raises ValueError for one that fits into no packet."""
    size = 0
    held: list[bytes] = []
    for payload in payloads:
        if len(payload) > PAYLOAD_MAX:
            raise ValueError(f"a message of {len(payload)} bytes; {PAYLOAD_MAX} fit into a packet")
        if held and size + len(payload) > CHUNK_BYTES:
            yield held
            size, held = 0, []
        held.append(payload)
        size += len(payload) + 8
    if held:
        yield held
