"""The load client for Fujin over QUIC: takes the options of the C client and prints the same figures.

publish   one writer, WRITEs pipelined as far as its client lets them; each is answered when it is durable
drain     a backlog first, then one push reader takes it, and acks what each turn brought with one ACK

The client is our own asyncio client in a process of its own; on two cores it costs as much as the broker.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from headrace.protocols.fujin.client import FujinClient, Security

TOPIC = "bench"
MESSAGES_A_CALL = 10_000
CALL_BYTES = 8 << 20
NO_LATENCY: dict[str, float] = {}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options this client needs; those of the C client it does not know are ignored."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "scenario"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("port", 4848), ("size", 100), ("backlog", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_known_args(arguments)[0]


class Load:
    """One run."""

    def __init__(self, client: FujinClient, size: int) -> None:
        self._client = client
        self._messages = [os.urandom(size)] * min(MESSAGES_A_CALL, max(1, CALL_BYTES // size))

    async def publish(self, *, until: float = float("inf"), count: int | None = None) -> tuple[int, float]:
        """Publish until a time, or so many messages; how many, and how long it took."""
        sent = 0
        async with await self._client.writer() as writer:
            began = time.perf_counter()

            async def call() -> None:
                nonlocal sent
                while time.perf_counter() < until and (count is None or sent < count):
                    messages = self._messages if count is None else self._messages[: count - sent]
                    sent += len(messages)
                    await writer.write_many(TOPIC, messages)

            await asyncio.gather(call(), call())
            return sent, time.perf_counter() - began

    async def drain(self, count: int) -> tuple[int, float]:
        """Take and ack everything through one push reader; how many messages, how long it took."""
        received = 0
        acks: set[asyncio.Task[list[bool]]] = set()
        async with await self._client.subscribe(TOPIC) as subscription:
            began = time.perf_counter()
            while received < count:
                deliveries = await subscription.take(count)
                received += len(deliveries)
                acks.add(asyncio.create_task(subscription.ack([delivery.id for delivery in deliveries])))
            results = await asyncio.gather(*acks)
            assert all(map(all, results)), "an ACK came too late"
            return received, time.perf_counter() - began


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run, named as the C client names them."""
    stored = published = received = 0
    backlog_s = publish_s = seconds = 0.0
    endpoint = f"quic://127.0.0.1:{options.port}"
    async with await FujinClient.connect(endpoint, security=Security(verify=False)) as client:
        load = Load(client, options.size)
        if options.backlog:
            stored, backlog_s = await load.publish(count=options.backlog)
        if options.scenario == "drain":
            received, seconds = await load.drain(stored)
        else:
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
        "redelivered": 0,
        "client_cpu_s": times.user + times.system,
        "latency_us": NO_LATENCY,
        "confirm_us": NO_LATENCY,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(parse()))))
