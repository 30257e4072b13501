"""The demo's readers: a dashboard that subscribes over BlipMQ, and a label printer of the old days that speaks SSPQ."""

import asyncio
import json
from collections.abc import Sequence

from headrace.cli.connection import connected, refusal
from headrace.cli.demo.books import LABELS, PAYMENTS, Books
from headrace.cli.doors import sspq
from headrace.cli.doors.door import Incoming
from headrace.cli.target import Target
from headrace.protocols.blipmq.client import BlipmqClient, ConnectionLost, Delivery

TAKE = 500


class Dashboard:
    """Adds payments up, each acknowledged behind a fence.

    It works on bare connections that are never mended: an answer counts only on the connection that asked.
    """

    def __init__(self, books: Books) -> None:
        self._ledger = books.payments
        self._counted: set[int] = set()
        self.subscription = 0
        self.revenue = 0

    async def run(self, target: Target, subscribed: asyncio.Event) -> None:
        """Read until cancelled or the connection breaks."""
        async with connected(target) as client:
            subscription = await client.subscribe(PAYMENTS)
            self.subscription = subscription.id
            subscribed.set()
            while True:
                try:
                    await self._settle(client, await subscription.take(TAKE))
                except ConnectionLost:
                    return

    async def _settle(self, client: BlipmqClient, deliveries: Sequence[Delivery]) -> None:
        link = await client.link()
        payments = [json.loads(delivery.message) for delivery in deliveries]
        numbers = [payment["n"] for payment in payments]
        self._ledger.mark_delivered(numbers)
        self.revenue += sum(payment["amount"] for payment in payments if payment["order"] not in self._counted)
        self._counted.update(payment["order"] for payment in payments)
        self._ledger.mark_acked(numbers)
        link.ack(self.subscription, [delivery.tag for delivery in deliveries])
        await link.fence()
        if link.ack_refusals:
            raise refusal(link.ack_refusals[0])
        self._ledger.mark_settled(numbers)


class LabelPrinter:
    """Prints one label at a time. SSPQ confirms nothing to it, so its books never say *settled*."""

    def __init__(self, books: Books) -> None:
        self._ledger = books.labels

    async def run(self, target: Target) -> None:
        """Print until cancelled."""
        async with sspq.consumer(target, Incoming(topic=LABELS)) as printer:
            while True:
                labels = await printer.take(1)
                numbers = [json.loads(label.value)["n"] for label in labels]
                self._ledger.mark_delivered(numbers)
                self._ledger.mark_acked(numbers)
                await printer.settle(labels, failed=False)
