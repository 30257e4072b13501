"""The HTTP application asked as a server would ask it, without a server: what is sent is exactly what a test says."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.routing import Route

import headrace.server
from headrace.auth import Keyring
from headrace.config import HttpSection
from headrace.model.batch import build_batch
from headrace.model.errors import StorageError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish, Start
from headrace.server.engine import Engine
from headrace.server.http import build_app
from headrace.server.node import Node

OWNER = "somebody"
_PARAMETER = re.compile(r"""(?:query_params\.get|number)\((?:request, )?"(\w+)\"""")


@dataclass
class Answer:
    """What came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The document in the body."""
        return json.loads(self.body)


class Web:
    """One application. `routes` are all it has, so that none is forgotten."""

    def __init__(self, node: Node, keyring: Keyring, settings: HttpSection | None = None) -> None:
        self.app = build_app(node.engine, lambda: keyring, settings or HttpSection(), node.queues, reload=lambda: "")
        inner = cast(Starlette, cast(Any, self.app)._app)
        self.routes = [cast(Route, route) for route in inner.routes]

    async def ask(
        self, method: str, target: str, key: str | None, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request for a raw target, which need not make sense."""
        path, _, query = target.partition("?")
        given = {"host": "127.0.0.1", "content-length": str(len(body))} | dict(headers or {})
        if key is not None:
            given["authorization"] = f"Bearer {key}"
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
        }  # fmt: skip
        answer = Answer()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        await self.app(scope, receive, send)
        return answer


def parameters() -> list[str]:
    """Every parameter of a query that the server's code asks for."""
    sources = Path(headrace.server.__file__).parent.glob("*.py")
    return sorted({name for source in sources for name in _PARAMETER.findall(source.read_text())})


def targets(route: Route, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The methods of a route, each with its path filled in; a parameter without a value gets that of ``."""
    path = re.sub(r"\{(\w+)[^}]*\}", lambda found: values.get(found[1], values[""]), route.path)
    for method in sorted((route.methods or set()) - {"HEAD"}):
        yield method, path


class Hand:
    """Makes things happen in a broker without going through a door."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def publish(self, topic: str, *values: bytes, **columns: Any) -> None:
        """One batch, visible on return."""
        part = build_batch(topic, values, timestamp_us=self.engine.clock.now(), **columns)
        await self.store(topic, part, len(values))

    async def store(self, topic: str, parts: bytes, count: int) -> None:
        """Parts as they are, in one record, visible on return."""
        self.engine.publish(Publish(topic, 1, count, bytearray(RECORD_HEADER_SIZE) + parts, b""), _Deaf())
        await self.engine.drained(10)

    def subscribe(self, topic: str, *, name: str = "", owner: str = OWNER) -> int:
        """A subscription from the beginning."""
        engine = self.engine
        subscription = engine.broker.subscribe(
            topic,
            qos=1,
            owner=owner,
            name=name,
            start=Start.EARLIEST,
            at=engine.log.next_offset,
            now=engine.clock.now(),
        )
        engine.journal()
        return subscription

    def take(self, subscription: int, limit: int = 10) -> list[int]:
        """The delivery ids of what was taken."""
        portions = self.engine.broker.take(subscription, limit, owner=OWNER, now=self.engine.clock.now())
        self.engine.journal()
        return [portion.first_delivery + i for portion in portions for i in range(portion.count)]

    def nack(self, subscription: int, delivery: int, *, dead: bool = True) -> None:
        """A delivery that failed, for good."""
        now = self.engine.clock.now()
        self.engine.broker.nack(subscription, [(delivery, 1)], owner=OWNER, reason="poison", dead=dead, now=now)
        self.engine.journal()

    async def bury(self, topic: str, *values: bytes, **columns: Any) -> None:
        """Messages that die at once."""
        await self.publish(topic, *values, **columns)
        subscription = self.subscribe(topic)
        while taken := self.take(subscription, 1000):
            for delivery in taken:
                self.nack(subscription, delivery)
        await self.engine.drained(10)


class _Deaf:
    """A publisher that asks for nothing back."""

    def publish_refused(self, request: Publish, cause: StorageError) -> None:
        raise AssertionError(cause)

    def settled(self) -> None:
        raise AssertionError("it never waits")
