"""Where `headrace publish` gets messages from: its arguments, or the lines of a file or a pipe, as they come."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import BinaryIO

BATCH = 4096
CHUNK = 1 << 18


class Lines:
    """Splits what a stream gives into lines without their ends; half a line waits for its other half."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.removesuffix(b"\r") for line in whole]

    def end(self) -> list[bytes]:
        """The last line, if it had no end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


async def from_stream(stream: BinaryIO, count: int | None) -> AsyncIterator[list[bytes]]:
    """The lines of a stream, as soon as they are there, at most `count`."""
    lines = Lines()
    left = count
    read = getattr(stream, "read1", stream.read)
    while left is None or left > 0:
        data = await asyncio.to_thread(read, CHUNK)
        found = (lines.feed(data) if data else lines.end())[:left]
        for batch in batched(found, BATCH):
            yield batch
        left = None if left is None else left - len(found)
        if not data:
            return


async def from_arguments(messages: Sequence[bytes], count: int | None) -> AsyncIterator[list[bytes]]:
    """The messages in turn, over and over until there were `count`; once each without one."""
    total = len(messages) if count is None else count
    for batch in batched(itertools.islice(itertools.cycle(messages), total), BATCH):
        yield batch


async def paced(batches: AsyncIterator[list[bytes]], rate: int | None) -> AsyncIterator[list[bytes]]:
    """The same messages, not more than `rate` a second."""
    if rate is None:
        async for batch in batches:
            yield batch
        return
    loop = asyncio.get_running_loop()
    due = loop.time()
    async for batch in batches:
        for part in batched(batch, max(1, rate // 20)):
            await asyncio.sleep(due - loop.time())
            yield part
            due = max(due, loop.time() - 1) + len(part) / rate


def batched(items: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """The items in lists of at most `size`."""
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch
