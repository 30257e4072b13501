"""The load of `headrace bench`: one publisher and one subscriber over BlipMQ, first flat out, then at a fixed rate.

A message begins with the moment it was made, so latency is from the publisher's hand to the subscriber's.
"""

import asyncio
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.cli.connection import connected
from headrace.cli.output import Meter, progress
from headrace.cli.render import percentile
from headrace.cli.target import Target
from headrace.protocols.blipmq.client import BlipmqClient, Subscription

STAMP = struct.Struct("<d")
TAKE = 1024
SAMPLE_EVERY = 16
CALM_RATE = 1000
CALM_SECONDS = 2.0
CALM_STEP_S = 0.01


@dataclass(frozen=True)
class Load:
    """How much to send: `count` messages, or as many as go in `seconds`."""

    message_size: int
    count: int | None
    seconds: float

    def messages(self) -> Iterator[bytes]:
        """Stamped messages until there are enough or the time is over."""
        padding = bytes(self.message_size - STAMP.size)
        end = time.perf_counter() + self.seconds
        made = 0
        while made != self.count:
            now = time.perf_counter()
            if self.count is None and now >= end:
                return
            made += 1
            yield STAMP.pack(now) + padding


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
        self._wanted: int | None = None
        self.received = 0
        self.latencies: list[float] = []

    def expect(self, count: int) -> None:
        """So many were sent in all."""
        self._wanted = count

    async def run(self, meter: Meter) -> None:
        """Receive everything; returns with the last acknowledgement sent."""
        while self._wanted is None or self.received < self._wanted:
            deliveries = await self._subscription.take(TAKE, wait=False)
            if not deliveries:
                await asyncio.sleep(0)
                continue
            now = time.perf_counter()
            for delivery in deliveries[::SAMPLE_EVERY]:
                self.latencies.append(now - STAMP.unpack_from(delivery.message)[0])
            await self._subscription.ack(deliveries)
            self.received += len(deliveries)
            meter(self.received)


async def run(target: Target, load: Load) -> list[Result]:
    """Both phases on one broker, in a topic of their own; the subscription is removed at the end."""
    topic = f"bench.{os.getpid()}"
    async with connected(target) as publisher, connected(target) as subscriber:
        subscription = await subscriber.subscribe(topic)
        try:
            return [
                await _phase("flat out", publisher, subscriber, subscription, topic, load),
                await _phase(f"{CALM_RATE:,} a second", publisher, subscriber, subscription, topic, load, calm=True),
            ]
        finally:
            await subscriber.fence()
            await asyncio.to_thread(_remove, target, subscription.id)


async def _phase(
    name: str,
    publisher: BlipmqClient,
    subscriber: BlipmqClient,
    subscription: Subscription,
    topic: str,
    load: Load,
    *,
    calm: bool = False,
) -> Result:
    receiver = Receiver(subscription)
    began = time.perf_counter()
    with progress(name, None if calm else load.count, unit="messages") as meter:
        receiving = asyncio.create_task(receiver.run(meter))
        try:
            sent = await (_calm(publisher, topic, load) if calm else publisher.publish_many(topic, load.messages()))
            receiver.expect(sent)
            await receiving
            await subscriber.fence()
        finally:
            receiving.cancel()
    return Result(name, sent, load.message_size, time.perf_counter() - began, sorted(receiver.latencies))


async def _calm(publisher: BlipmqClient, topic: str, load: Load) -> int:
    """Publish at the calm rate, in small steps, each durable before the next."""
    loop = asyncio.get_running_loop()
    step = int(CALM_RATE * CALM_STEP_S)
    part = Load(load.message_size, step, load.seconds)
    began = loop.time()
    sent = 0
    while sent < CALM_RATE * CALM_SECONDS:
        await asyncio.sleep(began + sent / CALM_RATE - loop.time())
        sent += await publisher.publish_many(topic, part.messages())
    return sent


def _remove(target: Target, subscription_id: int) -> None:
    if "http" in target.endpoints:
        with target.api() as api:
            api.request("DELETE", f"/api/subscriptions/{subscription_id}")
