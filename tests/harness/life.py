"""Sends one message through a broker and prints every function of ours that ran, in order, as JSON.

Run interpreted (HEADRACE_PURE=1), or the kernels would not be seen. What the feed and Spark do in processes of their
own is done here, without the network between them.
"""

import asyncio
import json
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import pyarrow.parquet as pq

import headrace
from headrace.auth import ANONYMOUS
from headrace.feed.reading import Reader
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.ticket import Ticket
from headrace.log import OsDisk
from headrace.log.follower import Follower
from headrace.spark.lake.commit import commit
from headrace.spark.lake.staging import stage
from headrace.spark.lake.stores import open_store
from headrace.spark.pipeline.messages import TABLE
from headrace.testing import broker
from tests.harness.peer import PING, frame, publish
from tests.harness.stream import connected

SRC = str(Path(headrace.__file__).parent) + "/"
names: dict[CodeType, tuple[str, str] | None] = {}
calls: list[tuple[str, str]] = []


def note(python_frame: FrameType, event: str, _: object) -> None:
    """Profile hook: remember calls into our own source."""
    if event != "call":
        return
    code = python_frame.f_code
    if code not in names:
        path = code.co_filename
        names[code] = (path.removeprefix(SRC), code.co_qualname) if path.startswith(SRC) else None
    if (name := names[code]) is not None:
        calls.append(name)


async def live(data_dir: str) -> None:
    """Publish, fence, poll, ack, fence; then start again on the same directory."""
    async with broker(data_dir) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"orders")
        calls.clear()
        peer.send(publish(b"orders", b"one") + frame(PING, 1))
        assert await peer.until_pong() == []
        ((tag, value),) = await peer.take(subscription, 1)
        assert value == b"one"
        peer.ack(subscription, tag)
        assert await peer.fence() == []
        assert tabled(Path(data_dir)) == [b"one"]
    async with broker(data_dir) as node:
        assert node.engine.broker.counters.acked == 1


def tabled(data_dir: Path) -> list[bytes]:
    """The topic's rows through the feed into the table `messages`; the values that are in its files then."""
    reader = Reader(Follower(data_dir / "log", OsDisk()), Subscriptions(list))
    rows = [batch for batch, _ in reader.read(Ticket(topics=("orders",)), ANONYMOUS).batches]
    store = open_store(data_dir / "lake", "parquet", TABLE.spec)
    assert commit(store, "query", 0, stage(rows, TABLE.spec, store.staging))
    found = [pq.read_table(file.path, columns=["value"], partitioning=None) for file in store.files()]
    return [row["value"] for table in found for row in table.to_pylist()]


if __name__ == "__main__":
    threading.setprofile(note)
    sys.setprofile(note)
    asyncio.run(live(sys.argv[1]))
    sys.setprofile(None)
    sys.stdout.write(json.dumps(calls))
