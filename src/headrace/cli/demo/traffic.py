"""The demo's clients: for each topic one that publishes and one that consumes, each keeping the books honestly.

They work on bare connections that are never mended: an answer counts only on the connection that asked.
"""

import asyncio
import json

from headrace.cli.connection import connected, refusal
from headrace.cli.demo.ledger import Ledger
from headrace.cli.target import Target
from headrace.protocols.blipmq.client import BlipmqClient, ConnectionLost, Delivery

BURST = 50
BURSTS_A_SECOND = 40
TAKE = 500


class Lane:
    """One topic with its publisher, its consumer and their books."""

    def __init__(self, topic: str, ledger: Ledger, poison: int | None = None) -> None:
        """The message numbered `poison` is never acknowledged, as if nobody could process it."""
        self.topic = topic
        self.ledger = ledger
        self.subscription = 0
        self.hurried = False
        self.stopping = False
        self._poison = poison

    async def publish(self, target: Target) -> None:
        """Publish bursts, each followed by a fence, until `stopping` or the connection breaks."""
        async with connected(target) as client:
            link = await client.link()
            while not self.stopping:
                numbers = self.ledger.send(BURST)
                try:
                    await link.publish(self.topic, [self._value(number) for number in numbers], 1)
                except ConnectionLost:
                    return
                self.ledger.mark_durable(numbers)
                await asyncio.sleep(0 if self.hurried else 1 / BURSTS_A_SECOND)

    async def consume(self, target: Target, subscribed: asyncio.Event) -> None:
        """Take and acknowledge, each window followed by a fence, until cancelled or the connection breaks."""
        async with connected(target) as client:
            subscription = await client.subscribe(self.topic)
            self.subscription = subscription.id
            subscribed.set()
            while True:
                deliveries = await subscription.take(TAKE)
                try:
                    await self._settle(client, deliveries)
                except ConnectionLost:
                    return

    async def _settle(self, client: BlipmqClient, deliveries: list[Delivery]) -> None:
        link = await client.link()
        arrived = {delivery.tag: json.loads(delivery.message)["n"] for delivery in deliveries}
        self.ledger.mark_delivered(arrived.values())
        done = {tag: number for tag, number in arrived.items() if number != self._poison}
        self.ledger.mark_acked(done.values())
        link.ack(self.subscription, list(done))
        await link.fence()
        if link.ack_refusals:
            raise refusal(link.ack_refusals[0])
        self.ledger.mark_settled(done.values())

    def _value(self, number: int) -> bytes:
        note = "nobody can process this one" if number == self._poison else "all well"
        return json.dumps({"n": number, "topic": self.topic, "note": note}).encode()
