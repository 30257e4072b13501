"""The load client for grpcq: takes the options of the C client and prints the same figures.

publish   calls of --batch messages, several in flight; a call is answered when its messages are durable
drain     a backlog first, then one stream takes it, every delivery acked and every ack answered

A message is one serialized envelope of --size bytes of payload. The client is our own asyncio client; with a batch of 1
it is what limits.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from headrace.kernels.grpcq_envelope import UUID_SIZE
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.publishing import uuids

QUEUE = "bench"
WINDOW = 8192
CALLS_OF_MANY, CALLS_OF_ONE = 4, 32
ID_FIELD = bytes((0x2A, UUID_SIZE))
"""What precedes a message id of that size in an envelope; each message has its own, for an id is stored once."""

NO_LATENCY: dict[str, float] = {}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options this client needs; those of the C client it does not know are ignored."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "scenario"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("port", 50051), ("size", 100), ("batch", 1000), ("backlog", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_known_args(arguments)[0]


class Load:
    """One run."""

    def __init__(self, client: GrpcqClient, options: argparse.Namespace) -> None:
        self._client = client
        self._options = options
        message = Message(
            originator="bench",
            topic="bench.Bench",
            action="Work",
            payload=os.urandom(options.size),
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        self._message = message.SerializeToString() + ID_FIELD
        self._calls = CALLS_OF_ONE if options.batch == 1 else CALLS_OF_MANY

    def _batch(self) -> list[bytes]:
        """As many messages as a call has, each with an id of its own."""
        size = self._options.batch
        ids = uuids(os.urandom(16 * size))
        return [self._message + ids[at : at + UUID_SIZE] for at in range(0, UUID_SIZE * size, UUID_SIZE)]

    async def publish(self, *, until: float = float("inf"), count: int | None = None) -> tuple[int, float]:
        """Publish until a time, or so many messages; how many, and how long it took."""
        sent = 0

        async def caller() -> None:
            nonlocal sent
            while time.perf_counter() < until and (count is None or sent < count):
                sent += self._options.batch
                await self._client.publish(QUEUE, self._batch())

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(self._calls)))
        return sent, time.perf_counter() - began

    async def drain(self, count: int) -> tuple[int, int, float]:
        """Take and ack everything through one stream; how many messages, how many again, how long it took."""
        received = redelivered = 0
        began = time.perf_counter()
        async with self._client.stream(QUEUE, WINDOW) as stream:
            answered = 0
            while received < count or answered < stream.requests:
                deliveries, settled = await stream.read()
                if deliveries:
                    received += len(deliveries)
                    redelivered += sum(delivery.attempt > 1 for delivery in deliveries)
                    await stream.settle([delivery.receipt for delivery in deliveries])
                if settled is not None:
                    assert not settled.refused, settled.refused[0].error
                    answered = settled.request
            return received, redelivered, time.perf_counter() - began


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run."""
    stored = published = received = redelivered = 0
    backlog_s = publish_s = seconds = 0.0
    async with GrpcqClient(f"grpc://127.0.0.1:{options.port}", "dev-key") as client:
        load = Load(client, options)
        if options.scenario == "drain":
            stored, backlog_s = await load.publish(count=options.backlog)
            received, redelivered, seconds = await load.drain(stored)
        else:
            await load.publish(count=1)
            published, publish_s = await load.publish(until=time.perf_counter() + options.seconds)
    times = os.times()
    return {
        "target": options.target,
        "scenario": options.scenario,
        "size": options.size,
        "backlog": stored,
        "backlog_s": backlog_s,
        "published": published,
        "publish_s": publish_s,
        "received": received,
        "seconds": seconds or publish_s,
        "redelivered": redelivered,
        "client_cpu_s": times.user + times.system,
        "latency_us": NO_LATENCY,
        "confirm_us": NO_LATENCY,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(parse()))))
