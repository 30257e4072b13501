"""BlipMQ at the command line: subscriptions of one's own, from now on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.cli.connection import connected
from headrace.cli.doors.door import Incoming, Outgoing, Received
from headrace.cli.failure import Failure
from headrace.cli.target import Target
from headrace.protocols.blipmq.client import BlipmqClient, ClientSettings, Subscription

GOODBYE_S = 5


class BlipmqPublisher:
    """Publishes with a fence behind each batch."""

    confirms = True

    def __init__(self, client: BlipmqClient, asked: Outgoing) -> None:
        self._client = client
        self._asked = asked

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish in order; durable on return."""
        await self._client.publish_many(self._asked.topic, messages, qos=self._asked.qos)


class BlipmqConsumer:
    """Polls one subscription."""

    def __init__(self, client: BlipmqClient, subscription: Subscription, asked: Incoming) -> None:
        self._client = client
        self._subscription = subscription
        self._keeps = asked.keep or asked.subscription is not None
        self.place = f"subscription {subscription.id} to {asked.topic}"
        self.ending = ""

    async def take(self, limit: int) -> list[Received]:
        """Up to `limit` deliveries, at least one."""
        return [
            Received(topic=found.topic, value=found.message, tag=found.tag, told={"qos": found.qos}, handle=found)
            for found in await self._subscription.take(limit)
        ]

    async def settle(self, deliveries: Sequence[Received], *, failed: bool) -> int:
        """Acknowledge them."""
        assert not failed, "BlipMQ knows no failure"
        await self._subscription.ack([delivery.handle for delivery in deliveries])
        return len(deliveries)

    async def leave(self, target: Target) -> None:
        """Make the acknowledgements durable and take the subscription out of the broker, unless it is to stay."""
        number, removed = self._subscription.id, False
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._client.fence()
                if not self._keeps:
                    await asyncio.to_thread(_remove, target, number)
                    removed = True
        except (TimeoutError, Failure):
            pass
        self.ending = f"subscription {number} removed" if removed else f"go on with --subscription {number}"


@asynccontextmanager
async def publisher(target: Target, asked: Outgoing) -> AsyncIterator[BlipmqPublisher]:
    """A connection that publishes."""
    async with connected(target) as client:
        yield BlipmqPublisher(client, asked)


@asynccontextmanager
async def consumer(target: Target, asked: Incoming) -> AsyncIterator[BlipmqConsumer]:
    """A connection that consumes a subscription: the one named, else a new one, removed at the end."""
    exact = asked.count is not None and (asked.keep or asked.subscription is not None)
    async with connected(target, ClientSettings(prefetch=1) if exact else ClientSettings()) as client:
        subscription = (
            client.subscription(asked.subscription)
            if asked.subscription is not None
            else await client.subscribe(asked.topic, qos=asked.qos)
        )
        consuming = BlipmqConsumer(client, subscription, asked)
        try:
            yield consuming
        finally:
            await consuming.leave(target)


def _remove(target: Target, subscription_id: int) -> None:
    with target.api() as api:
        api.request("DELETE", f"/api/subscriptions/{subscription_id}")
