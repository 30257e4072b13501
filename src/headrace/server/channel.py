"""The broker's end of the socket it shares with its feed process: lines in, work done for them, answers out.

Knows how requests become calls of the engine and how refusals are told; not how the process is started or watched.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.auth import Identity, Scope
from headrace.feed.messages import (
    Abort,
    BadLine,
    Commit,
    Committed,
    FromBroker,
    Lines,
    Listening,
    Ping,
    Pong,
    Reply,
    Report,
    Request,
    Subscriptions,
    encode,
    from_feed,
)
from headrace.model.errors import BrokerError, Code
from headrace.model.names import check_topic
from headrace.server.engine import Engine
from headrace.server.pages import CHUNK
from headrace.server.transactions import Transactions
from headrace.server.walk import Turns

READ_SIZE = 1 << 16
REQUESTS_MAX = 256
INTERNAL = "internal"
log = logging.getLogger("headrace.feed")

Answer = Callable[[Request], Awaitable[object]]


class Channel:
    """A conversation with one feed process; `run` lasts until the process hangs up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(REQUESTS_MAX)
        self._draining = False
        self.unanswered = 0

    async def run(self) -> None:
        """Serve until the other end is closed or says something that makes no sense."""
        lines = Lines()
        try:
            while data := await self._reader.read(READ_SIZE):
                for line in lines.receive(data):
                    await self._received(line)
        except BadLine as error:
            log.error("feed.nonsense", extra={"cause": str(error)})
        except ConnectionError:
            pass
        finally:
            self._writer.close()
            if not self._listening.done():
                self._listening.set_result(Listening(failure="the feed process ended before it listened"))

    def send(self, message: FromBroker) -> None:
        """Say something, if anybody is there."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def ping(self) -> None:
        """Ask whether the process is there; `unanswered` counts how often nothing came back."""
        self.unanswered += 1
        self.send(Ping())

    @property
    def is_listening(self) -> bool:
        """Whether the feed has said where."""
        return self._listening.done()

    async def listening(self) -> Listening:
        """Where the feed listens, once it says so."""
        return await asyncio.shield(self._listening)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let those under way be answered, and hang up."""
        self._draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        self._writer.close()

    async def _received(self, line: bytes) -> None:
        message = from_feed(line)
        if isinstance(message, Listening):
            if not self._listening.done():
                self._listening.set_result(message)
            return
        if isinstance(message, Pong):
            self.unanswered = 0
            return
        await self._places.acquire()
        task = asyncio.create_task(self._serve(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request) -> None:
        try:
            if self._draining:
                raise BrokerError(Code.DRAINING, "the broker is stopping")
            self.send(Reply(id=request.id, ok=await self._answer(request)))
        except BrokerError as error:
            self.send(Reply(id=request.id, code=error.code.value, detail=error.detail))
        except Exception:
            log.exception("feed.request_failed", extra={"request": type(request).__name__})
            self.send(Reply(id=request.id, code=INTERNAL, detail="internal error; the broker's log has the details"))
        finally:
            self._places.release()


class FeedDesk:
    """Does what the feed asks for. Its word about who asks is taken: it has checked the key."""

    def __init__(self, engine: Engine, transactions: Transactions) -> None:
        self._engine = engine
        self._transactions = transactions

    async def answer(self, request: Request) -> object:
        """The answer to one request. Raises BrokerError for one that is refused."""
        match request:
            case Commit():
                return await self._transactions.commit(request)
            case Abort():
                await self._transactions.abort(request.owner, request.staged)
                return {}
            case Committed():
                return {"batch": await self._transactions.committed((request.owner, request.writer))}
            case Report():
                await self._report(request)
                return {}
            case Subscriptions():
                return await self._subscriptions()

    async def _subscriptions(self) -> list[dict[str, object]]:
        """All of them, a few at a time: there may be many."""
        broker, turns = self._engine.broker, Turns()
        found: list[dict[str, object]] = []
        placed = broker.placed("", 0, CHUNK)
        while placed:
            for topic, number in placed:
                if (definition := broker.definition(number)) is not None:
                    found.append({"id": number, "topic": topic, "name": definition.name, "owner": definition.owner})
                await turns.step()
            placed = broker.placed(topic, number + 1, CHUNK)
        return found

    async def _report(self, request: Report) -> None:
        engine, turns = self._engine, Turns()
        scope = Identity(request.owner, subscribe=Scope(request.subscribe))
        if not request.subscribe:
            raise BrokerError(Code.FORBIDDEN, "this key may read no topic, so it has nothing to report about reading")
        for topic in request.topics or ():
            check_topic(topic)
            if not scope.may_subscribe(topic):
                raise BrokerError(Code.FORBIDDEN, f"not allowed to read {topic}")
            await turns.step()
        if request.offset > engine.log.next_offset:
            raise BrokerError(
                Code.INVALID, f"offset {request.offset} is beyond the end of the log, {engine.log.next_offset}"
            )
        now = engine.clock.now()
        engine.broker.readers.report(request.owner, request.reader, request.topics, request.offset, now)
        await engine.recorded()
