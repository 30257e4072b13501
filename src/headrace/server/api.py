"""The HTTP API: requests parsed and checked, answers shaped. What is behind them is done elsewhere."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace import __version__
from headrace.auth import Identity
from headrace.broker.views import ReaderInfo, SubscriptionInfo
from headrace.kernels import compiled
from headrace.model.errors import BrokerError, Code
from headrace.model.names import check_topic, dead_topic, is_dead_topic
from headrace.server.browse import browse
from headrace.server.engine import Engine
from headrace.server.guard import identity_of
from headrace.server.marks import Marks
from headrace.server.redrive import Redrive
from headrace.server.replies import document, failure
from headrace.server.trace import find_by_id, trace
from headrace.server.walk import find_message

PAGE_DEFAULT = 100
PAGE_MAX = 500
VALUE_MAX_DEFAULT = 64 << 10
VALUE_MAX = 16 << 20
WALKS_MAX = 2
OFFSET_MAX = (1 << 63) - 1


class RedriveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a redrive."""

    offsets: list[Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]]
    to: str | None = None


class Api:
    """The endpoints under /api."""

    def __init__(self, engine: Engine, not_ready: Callable[[], str | None], marks: Marks | None = None) -> None:
        self._engine = engine
        self._not_ready = not_ready
        self._redrive = Redrive(engine, marks or Marks(engine.log))
        self._walks = asyncio.Semaphore(WALKS_MAX)

    def routes(self) -> Sequence[BaseRoute]:
        """Where everything is."""
        return (
            Route("/api/status", self.status),
            Route("/api/topics", self.topics),
            Route("/api/topics/{topic:path}/messages", self.messages),
            Route("/api/subscriptions", self.subscriptions),
            Route("/api/subscriptions/{id:int}", self.unsubscribe, methods=["DELETE"]),
            Route("/api/readers/{name:path}", self.remove_reader, methods=["DELETE"]),
            Route("/api/dead-letters", self.dead_letters),
            Route("/api/dead-letters/redrive", self.redrive, methods=["POST"]),
            Route("/api/trace/{which:path}", self.trace),
        )

    async def status(self, request: Request) -> Response:
        """How the broker is."""
        engine, log = self._engine, self._engine.log
        return document(
            {
                "version": __version__,
                "kernels": "compiled" if compiled() else "interpreted",
                "ready": engine.ready and log.failing is None,
                "cause": self._not_ready(),
                "connections": engine.connections,
                "topics": len(engine.broker.topics()),
                "subscriptions": len(engine.broker.subscriptions()),
                "messages": engine.broker.counters,
                "log": {
                    "first_offset": log.first_offset,
                    "next_offset": log.next_offset,
                    "durable_offset": log.durable_offset,
                    "pending_bytes": log.pending_bytes,
                    "failing": str(log.failing) if log.failing is not None else None,
                },
            }
        )

    async def topics(self, request: Request) -> Response:
        """The topics this caller may read."""
        identity = identity_of(request.scope)
        log, broker = self._engine.log, self._engine.broker
        readers: dict[str, list[SubscriptionInfo]] = {}
        for info in broker.subscriptions():
            readers.setdefault(info.topic, []).append(info)
        found = []
        for topic in sorted(broker.topics(), key=lambda topic: topic.name):
            if not identity.may_subscribe(topic.name):
                continue
            own = readers.get(topic.name, ())
            first = log.batch_at(topic.name, 0)
            found.append(
                {
                    "topic": topic.name,
                    "messages": log.count_from(topic.name, 0),
                    "published": topic.published,
                    "first_offset": first.base if first is not None else None,
                    "next_offset": log.topic_end(topic.name),
                    "subscriptions": len(own),
                    "shared_by": sorted({info.name for info in own if info.name}),
                    "pending": sum(info.pending + info.deferred for info in own),
                    "in_flight": sum(info.in_flight for info in own),
                    "dead": 0 if is_dead_topic(topic.name) else log.count_from(dead_topic(topic.name), 0),
                }
            )
        return document({"topics": found})

    async def messages(self, request: Request) -> Response:
        """A page of a topic, consuming nothing."""
        topic = check_topic(request.path_params["topic"])
        _must_read(identity_of(request.scope), topic)
        start, limit, value_max = _page(request)
        async with self._walks:
            found = await browse(self._engine, topic, start, limit, value_max)
        return document({"messages": found, "next": found[-1].offset + 1 if found else start})

    async def subscriptions(self, request: Request) -> Response:
        """The subscriptions to topics this caller may read, and the readers outside the broker."""
        identity, broker = identity_of(request.scope), self._engine.broker
        found = [info for info in broker.subscriptions() if identity.may_subscribe(info.topic)]
        readers = [reader for reader in broker.following() if _may_see(identity, reader)]
        return document(
            {
                "subscriptions": sorted(found, key=lambda info: info.id),
                "readers": sorted(readers, key=lambda reader: (reader.reader, reader.owner)),
            }
        )

    async def unsubscribe(self, request: Request) -> Response:
        """Remove a subscription: one's own, or any for a caller who may do everything."""
        identity = identity_of(request.scope)
        number: int = request.path_params["id"]
        info = self._engine.broker.subscription(number)
        if info is None or not (identity.is_unrestricted or identity.owner == info.owner):
            raise BrokerError(Code.UNKNOWN, f"there is no subscription {number} of yours")
        self._engine.broker.unsubscribe(number, f"removed by {identity.owner}", self._engine.clock.now())
        self._engine.journal()
        return Response(status_code=204)

    async def remove_reader(self, request: Request) -> Response:
        """Forget a reader, so that retention waits for it no more: one's own, or any for who may do everything."""
        identity, engine = identity_of(request.scope), self._engine
        name: str = request.path_params["name"]
        owners = {reader.owner for reader in engine.broker.readers.all() if reader.reader == name}
        if not identity.is_unrestricted:
            owners &= {identity.owner}
        if not owners:
            raise BrokerError(Code.UNKNOWN, f"there is no reader {name} of yours")
        for owner in owners:
            engine.broker.readers.remove(owner, name, engine.clock.now())
        await engine.recorded()
        return Response(status_code=204)

    async def dead_letters(self, request: Request) -> Response:
        """Dead letters, of one topic or of all, oldest first."""
        start, limit, value_max = _page(request)
        topic = request.query_params.get("topic")
        if topic is not None:
            _must_read(identity_of(request.scope), check_topic(topic))
        found = self._redrive.letters(identity_of(request.scope), topic, start, limit, value_max)
        return document({"dead_letters": found, "next": found[-1].offset + 1 if found else start})

    async def redrive(self, request: Request) -> Response:
        """Send dead letters back."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return failure(415, "the body must be application/json")
        try:
            wanted = msgspec.json.decode(await request.body(), type=RedriveRequest)
        except msgspec.DecodeError as error:
            raise BrokerError(Code.INVALID, f"bad body: {error}") from None
        done = await self._redrive.run(identity_of(request.scope), wanted.offsets, wanted.to)
        if done.skipped and not done.redriven:
            first = done.skipped[0]
            return failure(409, f"nothing was redriven; offset {first.offset}: {first.cause}")
        return document(done)

    async def trace(self, request: Request) -> Response:
        """The life of one message, by offset or by its publisher's id (`?by=id` for an id that is a number)."""
        which: str = request.path_params["which"]
        async with self._walks:
            if which.isdecimal() and request.query_params.get("by") != "id":
                message = find_message(self._engine.log, min(int(which), OFFSET_MAX))
                if message is None:
                    raise BrokerError(Code.UNKNOWN, f"there is no message at offset {which}")
            else:
                message, reached = await find_by_id(self._engine.log, which, _number(request, "from", 0, OFFSET_MAX))
                if message is None:
                    raise BrokerError(Code.UNKNOWN, f"no message with this id below offset {reached}")
            _must_read(identity_of(request.scope), message.topic)
            return document(await trace(self._engine, message))


def _must_read(identity: Identity, topic: str) -> None:
    if not identity.may_subscribe(topic):
        raise BrokerError(Code.FORBIDDEN, f"not allowed to read {topic}")


def _may_see(identity: Identity, reader: ReaderInfo) -> bool:
    if identity.is_unrestricted or identity.owner == reader.owner:
        return True
    return reader.topics is not None and all(map(identity.may_subscribe, reader.topics))


def _page(request: Request) -> tuple[int, int, int]:
    """First offset, number of messages, bytes of each value; a single message is shown whole."""
    limit = _number(request, "limit", PAGE_DEFAULT, PAGE_MAX)
    whole = VALUE_MAX if limit == 1 else VALUE_MAX_DEFAULT
    return _number(request, "from", 0, OFFSET_MAX), limit, _number(request, "value_max", whole, VALUE_MAX)


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > most:
        raise BrokerError(Code.INVALID, f"{name} must be a number from 0 to {most}")
    return int(text)
