"""An asyncio client of BlipMQ: publish durably, subscribe, iterate and acknowledge, across lost connections.

    async with await BlipmqClient.connect("tcp://127.0.0.1:5555", key) as client:
        await client.publish("orders", b"one")
        async for delivery in await client.subscribe("orders"):
            await delivery.ack()

`publish` returns when the message is as durable as the broker promises. A connection is made again when it is next
needed; subscriptions live in the broker and are polled again by the same id.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from headrace.model.names import check_topic
from headrace.protocols.blipmq.link import Link, Refused
from headrace.protocols.blipmq.publishing import Publishing, chunks
from headrace.protocols.dialling import Address, ClientClosed, ConnectionLost, Dialling

__all__ = ["BlipmqClient", "ClientClosed", "ClientSettings", "ConnectionLost", "Delivery", "Refused", "Subscription"]

DEFAULT_PORT = 5555


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How patient and how greedy a client is.

    `prefetch` bounds how many messages a subscription reads ahead; `read_ahead_s` how long they lie there, for the
    broker delivers again what is not acknowledged in time.
    """

    connect_timeout_s: float = 10
    reply_timeout_s: float = 60
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 5
    unfenced_bytes_max: int = 8 * 1024 * 1024
    prefetch: int = 1024
    read_ahead_s: float = 0.05
    empty_wait_min_s: float = 0.001
    empty_wait_max_s: float = 0.05


class Delivery(NamedTuple):
    """One message handed to one subscription; unacknowledged, a QoS 1 delivery comes again."""

    subscription: "Subscription"
    tag: int
    topic: str
    message: bytes
    qos: int

    async def ack(self) -> None:
        """The message is done with. Returns when the ACK is on its way; `client.fence` waits for it to be durable."""
        await self.subscription.ack((self,))


class BlipmqClient:
    """One connection at a time to one broker, shared by any number of tasks."""

    def __init__(self, endpoint: str, key: str, tls: ssl.SSLContext | None, settings: ClientSettings) -> None:
        self.settings = settings
        self._address = Address.parse(endpoint, DEFAULT_PORT, tls)
        self._key = key
        self._dialling = Dialling(self._open, settings.reconnect_min_s, settings.reconnect_max_s)

    @classmethod
    async def connect(
        cls,
        endpoint: str,
        key: str,
        *,
        tls: ssl.SSLContext | None = None,
        settings: ClientSettings | None = None,
    ) -> Self:
        """A client that is connected. Raises Refused for a bad key and ConnectionLost when nobody answers."""
        client = cls(endpoint, key, tls, settings or ClientSettings())
        await client._dialling.connect()
        return client

    async def publish(self, topic: str, message: bytes, *, qos: int = 1, retry: bool = False) -> None:
        """Publish one message durably; see `publish_many`."""
        await self.publish_many(topic, (message,), qos=qos, retry=retry)

    async def publish_many(self, topic: str, messages: Iterable[bytes], *, qos: int = 1, retry: bool = False) -> int:
        """Publish in order, pipelined; how many, once all are as durable as the broker promises.

        Raises Refused, with the places of the messages that were not stored, and ConnectionLost when the connection
        broke before all were durable: whether the last of them were stored is then unknown. With `retry` they are sent
        again instead, so a message may be stored twice: BlipMQ has no ids that the broker could know it by.
        """
        check_topic(topic)
        publishing = Publishing(
            self.link, topic, qos=qos, retry=retry, unfenced_bytes_max=self.settings.unfenced_bytes_max
        )
        count = 0
        try:
            for chunk in chunks(topic, messages):
                await publishing.send(chunk)
                count += len(chunk.messages)
            await publishing.settle()
        finally:
            publishing.abandon()
        if publishing.refusals:
            first = publishing.refusals[0]
            raise Refused(first.code, first.message, [i for refused in publishing.refusals for i in refused.indexes])
        return count

    async def subscribe(self, topic: str, *, qos: int = 1) -> "Subscription":
        """Create a subscription to what is published from now on. Raises Refused or ConnectionLost."""
        check_topic(topic)
        link = await self.link()
        return Subscription(self, await link.subscribe(topic, qos))

    def subscription(self, subscription_id: int) -> "Subscription":
        """A subscription that exists already, of this key; an unknown one looks empty for ever."""
        return Subscription(self, subscription_id)

    async def fence(self) -> None:
        """Wait until all this client sent is as durable as promised. Raises Refused if an ACK was refused meanwhile."""
        link = await self.link()
        await link.fence()
        if link.ack_refusals:
            refused = link.ack_refusals[0]
            link.ack_refusals.clear()
            raise refused

    async def close(self) -> None:
        """Send what was queued and close; what waits for a reply gets ConnectionLost."""
        await self._dialling.close()

    async def link(self) -> Link:
        """The connection, made again, with growing pauses, for as long as the broker cannot be reached.

        Raises ClientClosed, and Refused when the key is no longer good.
        """
        return await self._dialling.wire()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> Link:
        settings = self.settings
        return await self._address.dial(
            lambda: Link(settings.reply_timeout_s), settings.connect_timeout_s, lambda link: link.introduce(self._key)
        )


class Subscription:
    """A cursor in the broker, read ahead by windows of POLLs. One task at a time may iterate over it."""

    def __init__(self, client: BlipmqClient, subscription_id: int) -> None:
        self.id = subscription_id
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Delivery] = deque()
        self._window: asyncio.Future[int] | None = None
        self._window_size = 1
        self._came = 0
        self._asked_at = self._loop.time()
        self._empty_wait_s = client.settings.empty_wait_min_s
        self._news = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        return (await self.take(1))[0]

    async def take(self, limit: int, *, wait: bool = True) -> list[Delivery]:
        """Up to `limit` deliveries, at least one; without `wait` none when the broker has none now."""
        settings = self._client.settings
        while not self._arrived and not await self._look():
            if not wait:
                return []
            await asyncio.sleep(self._empty_wait_s)
            self._empty_wait_s = min(2 * self._empty_wait_s, settings.empty_wait_max_s)
        self._empty_wait_s = settings.empty_wait_min_s
        taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        brisk = self._loop.time() - self._asked_at < settings.read_ahead_s
        if self._closed_window() and brisk and len(self._arrived) < self._window_size // 2:
            await self._ask()
        return taken

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """The messages are done with; deliveries of QoS 0 need no ACK and get none."""
        tags = [delivery.tag for delivery in deliveries if delivery.qos]
        if not tags:
            return
        link = await self._client.link()
        link.ack(self.id, tags)
        await link.drained(self._client.settings.unfenced_bytes_max)

    async def _look(self) -> bool:
        """Wait for the window in flight, or a new one; False when the broker has nothing."""
        if self._closed_window():
            await self._ask()
        while not self._arrived:
            if self._closed_window():
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def _closed_window(self) -> bool:
        """Whether no window is open, having noted how many came by the last one. Raises Refused."""
        if self._window is not None and self._window.done():
            window, self._window = self._window, None
            try:
                self._came = window.result()
            except ConnectionLost:
                self._came = 0
        return self._window is None

    async def _ask(self) -> None:
        """Open a window: larger after a full one that was soon done with, smaller after a slow one."""
        settings = self._client.settings
        link = await self._client.link()
        now = self._loop.time()
        if not self._came:
            self._window_size = 1
        elif now - self._asked_at > settings.read_ahead_s:
            self._window_size = max(1, self._window_size // 2)
        elif self._came == self._window_size:
            self._window_size = min(2 * self._window_size, settings.prefetch)
        self._asked_at = now
        self._window = link.poll(self.id, self._window_size, self._arrive)
        self._window.add_done_callback(lambda _: self._news.set())

    def _arrive(self, tag: int, topic: str, message: bytes, qos: int) -> None:
        self._arrived.append(Delivery(self, tag, topic, message, qos))
        self._news.set()
