"""The HTTP API: requests parsed and checked, answers shaped. What is behind them is done elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace import __version__
from headrace.auth import Identity
from headrace.kernels import compiled
from headrace.model.errors import BrokerError, Code
from headrace.model.names import check_topic
from headrace.server.browse import browse
from headrace.server.disk_health import degraded, describe
from headrace.server.engine import Engine
from headrace.server.guard import identity_of
from headrace.server.lists import fill_readers, fill_subscriptions, fill_topics
from headrace.server.marks import Marks
from headrace.server.pages import OFFSET_MAX, Page, cursor, number, place_of, whole_number
from headrace.server.redrive import Redrive
from headrace.server.replies import document, failure
from headrace.server.shapes import VALUE_SHOWN_MAX
from headrace.server.survey import Surveys
from headrace.server.trace import Tracer

PAGE_DEFAULT = 100
PAGE_MAX = 500
LIST_MAX = 1000
READERS_MAX = 100
VALUE_MAX_DEFAULT = 64 << 10
VALUE_MAX = 16 << 20
PART_MAX = 1 << 20
WHICH_MAX = 4096
OFFSET_DIGITS = len(str(OFFSET_MAX))
BUSY_MAX = 4
BINARY = "application/octet-stream"


class RedriveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a redrive."""

    offsets: list[Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]]
    to: str | None = None


class Api:
    """The endpoints under /api."""

    def __init__(
        self,
        engine: Engine,
        not_ready: Callable[[], str | None],
        marks: Marks | None = None,
        surveys: Surveys | None = None,
    ) -> None:
        self._engine = engine
        self._not_ready = not_ready
        self._marks = marks or Marks(engine.log)
        self._surveys = surveys or Surveys(engine)
        self._redrive = Redrive(engine, self._marks)
        self._work = _Work()

    def routes(self) -> Sequence[BaseRoute]:
        """Where everything is."""
        return (
            Route("/api/status", self.status),
            Route("/api/topics", self.topics),
            Route("/api/topics/{topic:path}/messages", self.messages),
            Route("/api/messages/{offset:digits}/value", self.value),
            Route("/api/subscriptions", self.subscriptions),
            Route("/api/subscriptions/{id:digits}", self.unsubscribe, methods=["DELETE"]),
            Route("/api/readers", self.readers),
            Route("/api/readers/{name:path}", self.remove_reader, methods=["DELETE"]),
            Route("/api/dead-letters", self.dead_letters),
            Route("/api/dead-letters/redrive", self.redrive, methods=["POST"]),
            Route("/api/trace/{which:path}", self.trace),
        )

    async def status(self, request: Request) -> Response:
        """How the broker is; numbers that tell of all topics only to whom all topics are open."""
        engine, log = self._engine, self._engine.log
        told: dict[str, object] = {
            "version": __version__,
            "kernels": "compiled" if compiled() else "interpreted",
            "ready": engine.ready and log.failing is None,
            "cause": self._not_ready(),
        }
        if identity_of(request.scope).may_watch:
            survey, _ = await self._surveys.latest()
            told |= {
                "connections": engine.connections,
                "topics": engine.broker.topic_count,
                "subscriptions": engine.broker.subscription_count,
                "messages": survey.counters,
                "duplicates": engine.broker.identities.repeated,
                "log": {
                    "first_offset": log.first_offset,
                    "next_offset": log.next_offset,
                    "durable_offset": log.durable_offset,
                    "pending_bytes": log.pending_bytes,
                    "failing": str(log.failing) if log.failing is not None else None,
                },
                "degraded": degraded(engine),
                "disk": describe(engine),
            }
        return document(told)

    async def topics(self, request: Request) -> Response:
        """A page of the topics this caller may read, by name."""
        identity = identity_of(request.scope)
        page = Page(number(request, "limit", LIST_MAX, LIST_MAX))
        after, prefix = (request.query_params.get(name, "") for name in ("after", "prefix"))
        async with self._work.of(identity):
            following = await fill_topics(self._engine, identity, page, after=after, prefix=prefix)
        return page.document("topics", next=following)

    async def messages(self, request: Request) -> Response:
        """A page of a topic, consuming nothing."""
        topic = check_topic(request.path_params["topic"])
        identity = identity_of(request.scope)
        _must_read(identity, topic)
        start, limit, value_max = _page(request)
        subscription = number(request, "subscription", 0) or None
        page = Page(limit)
        async with self._work.of(identity):
            reached = await browse(self._engine, topic, start, page, limit, value_max, subscription)
        log = self._engine.log
        if reached == start and log.batch_at(topic, start) is None:
            reached = max(start, log.topic_end(topic))
        lost = log.lost_between(topic, start, reached)
        self._engine.journal()
        return page.document(
            "messages",
            next=reached,
            more=reached < log.topic_end(topic),
            lost=[{"first": first, "count": count} for first, count in lost],
        )

    async def value(self, request: Request) -> Response:
        """Part of the value of one message, as it was published."""
        identity = identity_of(request.scope)
        offset = whole_number("offset", request.path_params["offset"])
        start, size = number(request, "from", 0), number(request, "size", PART_MAX, PART_MAX)
        async with self._work.of(identity):
            place = Tracer(self._engine, self._marks, identity).at(offset)
        if place is None:
            raise BrokerError(Code.UNKNOWN, f"there is no message at offset {offset}")
        batch, index = place
        headers = {"headrace-value-size": str(batch.value_size(index))}
        return Response(batch.value_part(index, start, size), media_type=BINARY, headers=headers)

    async def subscriptions(self, request: Request) -> Response:
        """A page of the subscriptions to topics this caller may read; beside the first one the readers there are."""
        identity = identity_of(request.scope)
        after = place_of(request, ("", 0), tuple[str, int])
        page = Page(number(request, "limit", LIST_MAX, LIST_MAX))
        readers = Page(READERS_MAX)
        more = None
        async with self._work.of(identity):
            following = await fill_subscriptions(self._engine, identity, page, after=after)
            if not request.query_params.get("after"):
                more = await fill_readers(self._engine, identity, readers, after=("", ""))
        return page.document(
            "subscriptions",
            next=cursor(following) if following else None,
            readers=readers.rows,
            readers_next=cursor(more) if more else None,
        )

    async def readers(self, request: Request) -> Response:
        """A page of the readers outside the broker that this caller may know of."""
        identity = identity_of(request.scope)
        after = place_of(request, ("", ""), tuple[str, str])
        page = Page(number(request, "limit", READERS_MAX, READERS_MAX))
        async with self._work.of(identity):
            following = await fill_readers(self._engine, identity, page, after=after)
        return page.document("readers", next=cursor(following) if following else None)

    async def unsubscribe(self, request: Request) -> Response:
        """Remove a subscription: one's own, or any for a caller who may do everything."""
        identity = identity_of(request.scope)
        which = whole_number("id", request.path_params["id"])
        found = self._engine.broker.definition(which)
        if found is None or not (identity.is_unrestricted or identity.owner == found.owner):
            raise BrokerError(Code.UNKNOWN, f"there is no subscription {which} of yours")
        self._engine.broker.unsubscribe(which, f"removed by {identity.owner}", self._engine.clock.now())
        self._engine.journal()
        return Response(status_code=204)

    async def remove_reader(self, request: Request) -> Response:
        """Forget a reader, so that retention waits for it no more: one's own, or any for who may do everything."""
        identity, engine = identity_of(request.scope), self._engine
        name: str = request.path_params["name"]
        owners = engine.broker.readers.owners(name)
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
        identity = identity_of(request.scope)
        topic = request.query_params.get("topic")
        if topic is not None:
            _must_read(identity, check_topic(topic))
        page = Page(limit)
        async with self._work.of(identity):
            reached = await self._redrive.letters(identity, topic, start, page, value_max)
        return page.document("dead_letters", next=reached, more=page.full)

    async def redrive(self, request: Request) -> Response:
        """Send dead letters back."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return failure(415, "the body must be application/json")
        try:
            wanted = msgspec.json.decode(await request.body(), type=RedriveRequest)
        except (ValueError, RecursionError) as error:
            raise BrokerError(Code.INVALID, f"bad body: {error}") from None
        done = await self._redrive.run(identity_of(request.scope), wanted.offsets, wanted.to)
        if done.skipped and not done.redriven:
            first = done.skipped[0]
            return failure(409, f"nothing was redriven; offset {first.offset}: {first.cause}")
        return document(done)

    async def trace(self, request: Request) -> Response:
        """The life of one message, by offset or by its publisher's id (`?by=id` for an id that is a number)."""
        which: str = request.path_params["which"]
        if not 0 < len(which) <= WHICH_MAX:
            raise BrokerError(Code.INVALID, f"name a message by its offset or an id of at most {WHICH_MAX} characters")
        identity = identity_of(request.scope)
        tracer = Tracer(self._engine, self._marks, identity)
        by_id = request.query_params.get("by") == "id" or not (which.isascii() and which.isdigit())
        async with self._work.of(identity):
            if by_id:
                place, reached, complete = await tracer.by_id(which, number(request, "from", 0))
                if place is None:
                    if complete:
                        raise BrokerError(Code.UNKNOWN, "there is no message with this id")
                    return document({"error": f"no message with this id below offset {reached}", "next": reached}, 404)
            else:
                place = tracer.at(int(which)) if len(which) <= OFFSET_DIGITS else None
                if place is None:
                    raise BrokerError(Code.UNKNOWN, f"there is no message at offset {which}")
            return document(await tracer.life(place))


class _Digits(Convertor[str]):
    """A number in a path, not yet read: there may be thousands of digits."""

    regex = "[0-9]+"

    def convert(self, value: str) -> str:
        """The digits as they are."""
        return value

    def to_string(self, value: str) -> str:
        """The digits as they are."""
        return value


register_url_convertor("digits", _Digits())


class _Work:
    """Room for what takes long: so many at a time, and one of each owner, so that nobody takes it all."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(BUSY_MAX)
        self._owners: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, identity: Identity) -> AsyncIterator[None]:
        """Wait for one's turn."""
        own = self._owners.setdefault(identity.owner, asyncio.Semaphore(1))
        async with own, self._all:
            yield


def _must_read(identity: Identity, topic: str) -> None:
    if not identity.may_subscribe(topic):
        raise BrokerError(Code.FORBIDDEN, f"not allowed to read {topic}")


def _page(request: Request) -> tuple[int, int, int]:
    """First offset, number of messages, bytes of each value; of a single message as much as a page may hold."""
    limit = number(request, "limit", PAGE_DEFAULT, PAGE_MAX)
    default = VALUE_SHOWN_MAX if limit == 1 else VALUE_MAX_DEFAULT
    return number(request, "from", 0), limit, min(number(request, "value_max", default, VALUE_MAX), VALUE_SHOWN_MAX)
