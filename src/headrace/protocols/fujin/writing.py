"""The client's writer: WRITEs that return when they are durable, and transactions."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from headrace.protocols.fujin.frames import (
    Command,
    Response,
    StringHeaders,
    encode_command,
    encode_connect_writer,
    encode_write,
    sized,
)
from headrace.protocols.fujin.line import Disconnected, Line, Refused, Speaker

CHUNK_MESSAGES = 1024
CHUNK_SIZE = 1 << 18
UNCONFIRMED_SIZE_MAX = 8 << 20
PROBE_TOPIC = "fujin"


class Writing:
    """WRITEs sent together; done when each is answered."""

    def __init__(self, first: int, count: int, line: Line) -> None:
        self.left = count
        self.refused: list[tuple[int, str]] = []
        self._first = first
        self._line = line
        self._done = asyncio.Event()

    def told(self, tag: int, error: str | None) -> None:
        """Line's call: one of them is answered, or never will be."""
        if self._line.lost is None:
            self.left -= 1
            if error is not None:
                self.refused.append((tag - self._first, error))
        if self.left == 0 or self._line.lost is not None:
            self._done.set()

    async def done(self, timeout_s: float) -> None:
        """Wait for the replies. Raises ConnectionLost when some did not come."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._done.wait()
        except TimeoutError:
            raise self._line.gave_up(Response.WRITE) from None
        if self._line.lost is not None and self.left:
            raise self._line.lost


class FujinWriter(Speaker):
    """One stream that writes. Any number of tasks may share it; a transaction takes all their writes.

    Leaving it, or `close`, disconnects; a transaction that is open then is rolled back.
    """

    def __init__(self, line: Line, *, headers: bool) -> None:
        super().__init__(line)
        self._headers = headers
        self._in_transaction = False
        line.may_leave = lambda: not self._in_transaction

    @classmethod
    async def open(cls, line: Line, writer_id: int | str, *, headers: bool) -> Self:
        """Connect as a writer, and tell by a WRITE that is rolled back which form all others will have.

        The form of a first WRITE can be told only where its message is small.
        """
        writer = cls(line, headers=headers)
        await line.send(encode_connect_writer(writer_id))
        try:
            await writer.begin()
        except Refused:
            return writer
        try:
            await writer.write(PROBE_TOPIC, b"?")
            await writer.rollback()
        except Disconnected:
            form = "with" if headers else "without"
            raise Refused(f"the broker does not read WRITEs {form} headers; ask for the other kind of writer") from None
        return writer

    async def write(self, topic: str, message: bytes, *, headers: StringHeaders = ()) -> None:
        """Write one message; returns when it is durable, or in a transaction when it is part of it.

        Raises Refused, and ConnectionLost: then it may or may not be stored.
        """
        await self.write_many(topic, (message,), headers=headers)

    async def write_many(self, topic: str, messages: Iterable[bytes], *, headers: StringHeaders = ()) -> int:
        """Write in order, pipelined; how many, once all are durable. All of them get the same headers.

        Raises Refused, with the places of the messages that were not stored, and ConnectionLost when the stream broke
        before all were answered: whether the last of them were stored is then unknown, and as Fujin has no ids for
        messages, what is written again may be stored twice.
        """
        between = self._between(headers)
        name = sized(topic.encode())
        pending: list[tuple[int, int, Writing]] = []
        refused: list[tuple[int, str]] = []
        count = size = 0
        for chunk in _chunks(messages):
            while pending and size > UNCONFIRMED_SIZE_MAX:
                size -= await self._settle(pending.pop(0), refused)
            tag = self._line.take_ids(len(chunk))
            writing = Writing(tag, len(chunk), self._line)
            self._line.expect_written(tag, len(chunk), writing.told)
            data = _commands(tag, name + between, chunk)
            pending.append((count, len(data), writing))
            count += len(chunk)
            size += len(data)
            await self._line.send(data)
        for waiting in pending:
            await self._settle(waiting, refused)
        if refused:
            raise Refused(refused[0][1], (place for place, _ in refused))
        return count

    async def begin(self) -> None:
        """Begin a transaction: what is written from now on is stored by `commit`, all or nothing."""
        await self._command(Command.BEGIN, Response.BEGIN)
        self._in_transaction = True

    async def commit(self) -> None:
        """Store the transaction; returns when it is durable. Raises Refused: nothing of it is stored."""
        await self._end(Command.COMMIT, Response.COMMIT)

    async def rollback(self) -> None:
        """Forget the transaction."""
        await self._end(Command.ROLLBACK, Response.ROLLBACK)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction around a block: committed at its end, rolled back when it raises."""
        await self.begin()
        try:
            yield self
        except BaseException:
            if self._line.lost is None:
                await asyncio.shield(self.rollback())
            raise
        await self.commit()

    async def _command(self, command: Command, response: Response) -> None:
        tag = self._line.take_ids()
        await self._line.call((response, tag), encode_command(command, tag), late=self._in_transaction)

    async def _end(self, command: Command, response: Response) -> None:
        try:
            await self._command(command, response)
        finally:
            self._in_transaction = False
            self._line.leave_if_stopping()

    async def _settle(self, waiting: tuple[int, int, Writing], refused: list[tuple[int, str]]) -> int:
        """Wait for a chunk; its size."""
        first, size, writing = waiting
        await writing.done(self._line.terms.reply_timeout_s)
        refused += ((first + place, text) for place, text in writing.refused)
        return size

    def _between(self, headers: StringHeaders) -> bytes:
        """What stands between topic and message."""
        if not self._headers:
            if headers:
                raise ValueError("this writer's WRITEs carry no headers")
            return b""
        command = encode_write(0, "", b"", headers)
        return command[9:-4]


def _chunks(messages: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    """The messages, so many together as make a good write."""
    chunk: list[bytes] = []
    size = 0
    for message in messages:
        chunk.append(message)
        size += len(message)
        if size >= CHUNK_SIZE or len(chunk) >= CHUNK_MESSAGES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _commands(first: int, before: bytes, messages: Sequence[bytes]) -> bytes:
    """A WRITE for each message, tagged from `first` on."""
    head = struct.Struct(f">BI{len(before)}sI").pack
    pieces: list[bytes] = []
    for tag, message in enumerate(messages, first):
        pieces += (head(Command.WRITE, tag, before, len(message)), message)
    return b"".join(pieces)
