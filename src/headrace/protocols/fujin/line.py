"""The client's side of one Fujin stream: commands out, and every reply back to whoever waits for it.

A line knows how responses are told apart; what they mean is the writer's and the reader's business.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from headrace.model.errors import BrokerError, HeadraceError, PeerProtocolError
from headrace.protocols.fujin.frames import DISCONNECT, ID_SIZE_MAX, Cursor, Incomplete, Response, TooLong
from headrace.protocols.fujin.incoming import read_messages, read_results, read_written
from headrace.protocols.fujin.streams import ConnectionLost, Stream

VALUE_SIZE_MAX = 1 << 30
CONNECTED = (Response.CONNECT_READER, 0)

Key = tuple[Response, int]


class Refused(HeadraceError):
    """The broker said no. `indexes` are the refused messages of a write, by their place in the call."""

    def __init__(self, text: str, indexes: Iterable[int] = ()) -> None:
        super().__init__(text)
        self.text = text
        self.indexes = tuple(indexes)


class Disconnected(ConnectionLost):
    """The stream was ended by a DISCONNECT, of the broker or our own."""


class Stopping(ConnectionLost):
    """The broker is about to stop and takes nothing new."""


class NoReply(ConnectionLost):
    """The broker left a command unanswered for too long."""


class Terms(NamedTuple):
    """How a line is spoken. `message_ids`: messages come with ids; `prefetch`: how many may lie unread."""

    reference: bool
    reply_timeout_s: float
    message_ids: bool = True
    prefetch: int = 4096


class Line:
    """One stream, from its CONNECT to its end; it is never mended."""

    def __init__(self, stream: Stream, terms: Terms) -> None:
        self.terms = terms
        self.lost: ConnectionLost | None = None
        self.stopping = False
        self.arrived: deque[tuple[bytes, bytes]] = deque()
        self.changed = asyncio.Event()
        self.may_leave: Callable[[], bool] = lambda: not terms.message_ids
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._replies: dict[Key, asyncio.Future[Any]] = {}
        self._written: dict[int, Callable[[int, str | None], None]] = {}
        self._next_id = 1
        self._rest = bytearray()
        self._wanted = 1
        self._left = False
        self._reading = asyncio.create_task(self._read())

    @property
    def idle(self) -> bool:
        """Whether no reply is waited for."""
        return not self._replies and not self._written

    def take_ids(self, count: int = 1) -> int:
        """The first of so many correlation ids in a row."""
        if self._next_id + count > 1 << 32:
            self._next_id = 1
        first = self._next_id
        self._next_id += count
        return first

    async def call(self, key: Key, command: bytes, *, timeout_s: float | None = None, late: bool = False) -> Any:
        """Send a command and wait for what its reply brings; a late one also to a broker that is about to stop.

        Raises Refused or ConnectionLost.
        """
        self.check(late=late)
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._replies[key] = reply
        self.changed.set()
        try:
            await self.send(command)
            async with asyncio.timeout(timeout_s or self.terms.reply_timeout_s):
                return await reply
        except TimeoutError:
            raise self.gave_up(key[0]) from None
        finally:
            self._replies.pop(key, None)

    def expect_written(self, first: int, count: int, told: Callable[[int, str | None], None]) -> None:
        """Have the replies to these WRITEs told one by one, with their error."""
        self.check()
        self._written.update((tag, told) for tag in range(first, first + count))

    async def send(self, data: bytes) -> None:
        """Send, and wait while the broker is behind with reading. Raises ConnectionLost."""
        self._stream.write(data)
        await self._stream.drain()

    def check(self, *, late: bool = False) -> None:
        """Raises ConnectionLost when nothing can be asked any more."""
        if self.lost is not None:
            raise self.lost
        if self.stopping and not late:
            raise Stopping("the broker is about to stop")

    def gave_up(self, response: Response) -> NoReply:
        """Nobody waits for this reply any more, so nothing that comes can be trusted."""
        error = NoReply(f"no reply to {response.name} in time")
        self._lose(error)
        return error

    def leave_if_stopping(self) -> None:
        """Go, if the broker asked for it and nobody here is in the middle of something."""
        if self.stopping and self.idle and self.may_leave():
            self._leave()

    async def disconnect(self) -> None:
        """Say goodbye and wait until the broker has; what it owes is answered before. Never raises ConnectionLost."""
        if self.lost is None:
            self._leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.terms.reply_timeout_s):
                    await asyncio.shield(self._reading)
        self.abandon()

    def abandon(self) -> None:
        """Be done with the stream, whatever the broker says."""
        self._reading.cancel()
        self._lose(Disconnected("disconnected"))
        self._stream.close()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._stream.write(DISCONNECT)
            self._stream.write_eof()
            self.changed.set()

    async def _read(self) -> None:
        """Read until the stream ends, but no more messages than somebody wants."""
        try:
            while self.lost is None:
                while len(self.arrived) >= self.terms.prefetch and self.idle and not self._left:
                    self.changed.clear()
                    await self.changed.wait()
                data = await self._stream.read()
                if not data:
                    raise ConnectionLost("the broker ended the stream")
                self._rest += data
                if len(self._rest) >= self._wanted:
                    self._take()
        except ConnectionLost as error:
            self._lose(error)
        except (BrokerError, PeerProtocolError, TooLong) as error:
            self._lose(ConnectionLost(f"not Fujin: {error}"))

    def _take(self) -> None:
        """Hand out every whole response."""
        data = bytes(self._rest)
        at, end = 0, len(data)
        self._wanted = 1
        while at < end and self.lost is None:
            cursor = Cursor(data, at, end)
            try:
                if not self._take_run(cursor):
                    self._respond(cursor.u8(), cursor)
            except Incomplete as incomplete:
                self._wanted = incomplete.wanted - at
                break
            at = cursor.at
        del self._rest[:at]
        self.leave_if_stopping()
        self.changed.set()

    def _take_run(self, cursor: Cursor) -> bool:
        """Hand out the run of messages, or of good replies to WRITEs, that begins here; whether there is one."""
        code = cursor.data[cursor.at]
        if code == Response.MSG:
            found = read_messages(cursor, with_ids=self.terms.message_ids)
            self.arrived.extend(found)
            return bool(found)
        written = read_written(cursor) if code == Response.WRITE else []
        for tag in written:
            self._tell_written(tag, None)
        return bool(written)

    def _respond(self, code: int, cursor: Cursor) -> None:
        """One response of any kind."""
        match code:
            case Response.MSG:
                self.arrived.append(self._message(cursor))
            case Response.WRITE:
                self._tell_written(cursor.u32(), cursor.error())
            case Response.CONNECT_READER:
                self._answer(CONNECTED, cursor.error(), None)
            case Response.BEGIN | Response.COMMIT | Response.ROLLBACK:
                self._answer((Response(code), cursor.u32()), cursor.error(), None)
            case Response.FETCH | Response.ACK | Response.NACK:
                tag, error = cursor.u32(), cursor.error()
                read = self._messages if code == Response.FETCH else self._results
                self._answer((Response(code), tag), error, None if error else read(cursor, cursor.u32()))
            case Response.DISCONNECT:
                self._lose(Disconnected("disconnected by the broker"))
            case Response.STOP:
                self.stopping = True
            case _:
                raise PeerProtocolError(f"response {code}")

    def _message(self, cursor: Cursor) -> tuple[bytes, bytes]:
        """Id and value; the id is empty where the delivery settles."""
        name = cursor.string("message id", ID_SIZE_MAX) if self.terms.message_ids else b""
        return name, cursor.string("message", VALUE_SIZE_MAX)

    def _messages(self, cursor: Cursor, count: int) -> list[tuple[bytes, bytes]]:
        return [self._message(cursor) for _ in range(count)]

    def _results(self, cursor: Cursor, count: int) -> list[bool]:
        """Which ids were settled."""
        found = [] if self.terms.reference else read_results(cursor, count)
        return found or [self._result(cursor) for _ in range(count)]

    def _result(self, cursor: Cursor) -> bool:
        cursor.string("message id", ID_SIZE_MAX)
        return cursor.error() is None if self.terms.reference else bool(cursor.u8())

    def _tell_written(self, tag: int, error: str | None) -> None:
        told = self._written.pop(tag, None)
        if told is not None:
            told(tag, error)

    def _answer(self, key: Key, error: str | None, result: object) -> None:
        reply = self._replies.pop(key, None)
        if reply is None or reply.done():
            return
        if error is None:
            reply.set_result(result)
        else:
            reply.set_exception(Refused(error))

    def _lose(self, cause: ConnectionLost) -> None:
        """Everybody who waits learns of it."""
        if self.lost is not None:
            return
        self.lost = cause
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(cause)
        written, self._written = self._written, {}
        for tag, told in written.items():
            told(tag, None)
        self.changed.set()


class Speaker:
    """Who speaks over one line; leaving it disconnects."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def close(self) -> None:
        """Disconnect, once everything asked is answered."""
        await self._line.disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
