"""The load of `headrace bench`: one publisher and one subscriber over BlipMQ, first flat out, then at a fixed rate.

A message begins with the moment it was made, so latency is from the publisher's hand to the subscriber's.
"""

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.cli.connection import connected
from headrace.cli.output import Meter, progress
from headrace.cli.render import percentile
from headrace.cli.target import Target
from headrace.protocols.blipmq.client import BlipmqClient, ClientSettings, Subscription

STAMP = struct.Struct("<d")
BATCH = 1024
OUTSTANDING_MAX = 2 * BATCH
TAKE = 1024
SAMPLE_EVERY = 8
CALM_RATE = 1000
CALM_SECONDS = 2.0
CALM_BATCH = 10
SUBSCRIBER = ClientSettings(prefetch=2 * TAKE, empty_wait_max_s=0.002)


@dataclass(frozen=True)
class Load:
    """How much to send: `count` messages, or as many as go in `seconds`."""

    message_size: int
    count: int | None
    seconds: float

    def batch(self, size: int) -> list[bytes]:
        """Messages stamped with this moment."""
        return [STAMP.pack(time.perf_counter()) + bytes(self.message_size - STAMP.size)] * size


@dataclass(frozen=True)
class Result:
    """One phase as measured; latencies in order of length, never empty."""

    phase: str
    messages: int
    message_size: int
    seconds: float
    latencies: list[float]

    def row(self) -> dict[str, Any]:
        """As a row to print."""
        return {
            "phase": self.phase,
            "messages": self.messages,
            "seconds": self.seconds,
            "msgs_per_s": self.messages / self.seconds,
            "bytes_per_s": self.messages * self.message_size / self.seconds,
            "p50_s": percentile(self.latencies, 0.5),
            "p99_s": percentile(self.latencies, 0.99),
        }


class Receiver:
    """Takes and acknowledges until told how many there will be and all of them came."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._progress = asyncio.Condition()
        self.received = 0
        self.latencies: list[float] = []

    async def reached(self, count: int) -> None:
        """Wait until so many came in all."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.received >= count)

    async def run(self, meter: Meter) -> None:
        """Receive until cancelled."""
        while True:
            deliveries = await self._subscription.take(TAKE)
            now = time.perf_counter()
            for delivery in deliveries[::SAMPLE_EVERY]:
                self.latencies.append(now - STAMP.unpack_from(delivery.message)[0])
            await self._subscription.ack(deliveries)
            async with self._progress:
                self.received += len(deliveries)
                self._progress.notify_all()
            meter(self.received)


Sender = Callable[[Load, Receiver], Awaitable[int]]


async def run(target: Target, load: Load) -> list[Result]:
    """Both phases on one broker, in a topic of their own; the subscription is removed at the end."""
    topic = f"bench.{os.getpid()}"
    async with connected(target) as publisher, connected(target, SUBSCRIBER) as subscriber:
        subscription = await subscriber.subscribe(topic)
        try:
            return [
                await _phase("flat out", load, partial(_flat_out, publisher, topic), subscriber, subscription),
                await _phase(
                    f"{CALM_RATE:,} a second", load, partial(_calm, publisher, topic), subscriber, subscription
                ),
            ]
        finally:
            await subscriber.fence()
            await asyncio.to_thread(_remove, target, subscription.id)


async def _phase(name: str, load: Load, send: Sender, subscriber: BlipmqClient, subscription: Subscription) -> Result:
    """Send and receive everything; the time is until the last acknowledgement is durable."""
    receiver = Receiver(subscription)
    began = time.perf_counter()
    with progress(name, load.count, unit="messages") as meter:
        receiving = asyncio.create_task(receiver.run(meter))
        try:
            sent = await send(load, receiver)
            await receiver.reached(sent)
            await subscriber.fence()
        finally:
            receiving.cancel()
    return Result(name, sent, load.message_size, time.perf_counter() - began, sorted(receiver.latencies))


async def _flat_out(publisher: BlipmqClient, topic: str, load: Load, receiver: Receiver) -> int:
    """Publish as fast as the subscriber takes; never more than a few batches ahead of it."""
    end = time.perf_counter() + load.seconds
    sent = 0
    while (load.count is None or sent < load.count) and time.perf_counter() < end:
        size = BATCH if load.count is None else min(BATCH, load.count - sent)
        sent += await publisher.publish_many(topic, load.batch(size))
        await receiver.reached(sent - OUTSTANDING_MAX)
    return sent


async def _calm(publisher: BlipmqClient, topic: str, load: Load, receiver: Receiver) -> int:
    """Publish at the calm rate, in small steps, each durable before the next."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    sent = 0
    while sent < CALM_RATE * CALM_SECONDS:
        await asyncio.sleep(began + sent / CALM_RATE - loop.time())
        sent += await publisher.publish_many(topic, load.batch(CALM_BATCH))
    return sent


def _remove(target: Target, subscription_id: int) -> None:
    if "http" in target.endpoints:
        with target.api() as api:
            api.request("DELETE", f"/api/subscriptions/{subscription_id}")
