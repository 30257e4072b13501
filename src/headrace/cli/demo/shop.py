"""The demo's shop and its payment desk: orders go in and are handled over grpcq, by a worker as services write them.

The desk answers each order with one Fujin transaction, a payment and a label, all or nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace.cli.demo.books import LABELS, ORDERS, PAYMENTS, Books
from headrace.cli.demo.ledger import Ledger
from headrace.cli.doors.fujin import connected
from headrace.cli.target import Target
from headrace.grpcq.adapter import ConsumeResult, Item, Receipt, Unavailable
from headrace.grpcq.brokered import HeadraceAdapter
from headrace.grpcq.producer import Call, Producer
from headrace.grpcq.registry import Registry
from headrace.grpcq.worker import Worker
from headrace.protocols.fujin.client import FujinWriter
from headrace.protocols.grpcq.grpcq_pb2 import Message

SERVICE, ACTION = "shop.Orders", "Placed"
BURST = 10
BURSTS_A_SECOND = 10
DESKS = 8
VISIBILITY_S = 2.0
ITEMS = ("teapot", "lamp", "atlas", "kite", "violin")
BAD_ORDER = 7
PARTNERS = "partners"


class Shop:
    """Sends orders, in bursts, each confirmed before the next."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.hurried = False
        self.stopping = False

    async def run(self, target: Target) -> None:
        """Send until `stopping`, or until nobody answers."""
        adapter = HeadraceAdapter.connect(target.url("grpc"), target.key)
        producer = Producer(adapter, "shop")
        try:
            while not self.stopping:
                numbers = self._books.orders.send(BURST)
                await producer.send_batch(ORDERS, [_call(number) for number in numbers])
                self._books.orders.mark_durable(numbers)
                await asyncio.sleep(0 if self.hurried else 1 / BURSTS_A_SECOND)
        except Unavailable:
            return
        finally:
            await adapter.close()


def _call(number: int) -> Call:
    order = {"n": number, "item": ITEMS[number % len(ITEMS)], "amount": 5 + number % 95}
    return Call(
        topic=SERVICE,
        action=ACTION,
        request=json.dumps(order).encode(),
        metadata={"customer": f"c{number % 100}"},
        message_id=f"order-{number}",
    )


class CardDeclined(Exception):
    """What happens to one order until somebody talks to its bank."""


class PaymentDesk:
    """Handles orders: a grpcq worker whose handler writes with Fujin."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._writers: asyncio.Queue[FujinWriter] = asyncio.Queue()
        self.bank_agrees = False

    async def run(self, target: Target) -> None:
        """Work until cancelled; then what is under way fails rather than waits for a broker that may be gone."""
        registry = Registry()
        registry.register(SERVICE, ACTION, self.charge)
        async with connected(target) as client, AsyncExitStack() as held:
            self._writers = asyncio.Queue()
            for _ in range(DESKS):
                self._writers.put_nowait(await held.enter_async_context(await client.writer()))
            adapter = HeadraceAdapter.connect(target.url("grpc"), target.key)
            held.push_async_callback(adapter.close)
            booked = BookedAdapter(adapter, self._books.orders)
            worker = Worker(booked, registry, ORDERS, concurrency=DESKS, visibility_s=VISIBILITY_S)
            working = asyncio.create_task(worker.run())
            try:
                await asyncio.shield(working)
            finally:
                working.cancel()
                await client.close()
                await asyncio.gather(working, return_exceptions=True)

    async def charge(self, request: bytes, context: Any) -> None:
        """The handler of shop.Orders/Placed. Raises CardDeclined."""
        order = json.loads(request)
        if order["n"] == BAD_ORDER and not self.bank_agrees:
            raise CardDeclined("the bank says no")
        if self._books.is_paid(order["n"]):
            return
        async with self._writer() as writer:
            number = self._books.begin(order["n"])
            async with writer.transaction():
                await writer.write(PAYMENTS, _json(n=number, order=order["n"], amount=order["amount"]))
                await writer.write(LABELS, _json(n=number, order=order["n"], item=order["item"]))
            self._books.committed(number)

    @asynccontextmanager
    async def _writer(self) -> AsyncIterator[FujinWriter]:
        """One of the writers, for as long as one transaction takes."""
        writer = await self._writers.get()
        try:
            yield writer
        finally:
            self._writers.put_nowait(writer)


async def send_nonsense(target: Target) -> None:
    """A partner's message that claims to be a grpcq envelope and is none."""
    async with connected(target) as client, await client.writer() as writer:
        await writer.write(PARTNERS, b"\xffno order at all", headers=[("content-type", b"application/grpcq")])


def _json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@dataclass(frozen=True)
class BookedReceipt:
    """A receipt that keeps the books."""

    receipt: Receipt
    ledger: Ledger
    number: int

    async def ack(self) -> None:
        """The order is done."""
        self.ledger.mark_acked((self.number,))
        await self.receipt.ack()
        self.ledger.mark_settled((self.number,))

    async def nack(self, reason: str = "", *, dead: bool = False) -> None:
        """The order failed."""
        await self.receipt.nack(reason, dead=dead)


class BookedAdapter:
    """A queue adapter that notes what passes through it."""

    def __init__(self, adapter: HeadraceAdapter, ledger: Ledger) -> None:
        self._adapter = adapter
        self._ledger = ledger

    async def publish(self, queue: str, *messages: Message) -> None:
        """Pass on."""
        await self._adapter.publish(queue, *messages)

    async def consume(
        self, queue: str, max_batch: int, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> ConsumeResult:
        """Pass on, and note what came."""
        found = await self._adapter.consume(queue, max_batch, wait_s=wait_s, visibility_s=visibility_s)
        return ConsumeResult([self._booked(item) for item in found.items])

    async def close(self) -> None:
        """Pass on."""
        await self._adapter.close()

    def _booked(self, item: Item) -> Item:
        number = json.loads(item.message().payload)["n"]
        self._ledger.mark_delivered((number,))
        return Item(item.data, BookedReceipt(item.receipt, self._ledger, number), item.attempt)
