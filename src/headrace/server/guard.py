"""What every HTTP request passes before anybody looks at its meaning: who it is, where it comes from, how big it is.

Knows keys, origins and sizes; nothing of topics or the broker.
"""

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Callable, Iterator, MutableMapping
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.auth import ANONYMOUS, Identity, Keyring
from headrace.config import HttpSection
from headrace.server.doors import unnamed
from headrace.server.replies import failure

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
METRICS_PATH = "/metrics"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
BODY_TIMEOUT_S = 10.0
BODY_TOTAL_S = 60.0
SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
log = logging.getLogger("headrace.http")
_LENGTH_DIGITS = 19


class Refusal(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, cause: str) -> None:
        super().__init__(cause)
        self.status = status


class Guard:
    """The outermost layer of the application. Behind it `identity_of(scope)` says who is asking."""

    def __init__(
        self, app: ASGIApp, keyring: Callable[[], Keyring], settings: HttpSection, *, certified: bool = False
    ) -> None:
        """`certified`: every caller has shown a certificate, which must be named."""
        self._app = app
        self._certified = certified
        self._keyring = keyring
        self._settings = settings
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server is set up for HTTP alone"
        session = f"http-{next(self._numbers)}"
        scope["headrace.session"] = session
        status = 0

        async def respond(message: Message) -> None:
            """Send on what the application answers, with our headers."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            asking = self._admit(scope)
            with _asks(scope, asking):
                await self._app(scope, _Body(receive, self._settings.body_max), respond)
        except Refusal as refusal:
            reply = failure(refusal.status, str(refusal))
            if refusal.status == 401:
                reply.headers["www-authenticate"] = 'Bearer realm="headrace"'
            await reply(scope, receive, respond)
        level = logging.INFO if status in (401, 403) or scope["method"] not in SAFE_METHODS else logging.DEBUG
        peer = scope["client"][0] if scope.get("client") else ""
        about = {"session": session, "peer": peer, "method": scope["method"], "path": scope["path"], "status": status}
        log.log(level, "http.request", extra=about)

    def _admit(self, scope: Scope) -> list[Identity]:
        """Set the request's identity, or refuse it; whose keys and certificates let it in."""
        headers = Headers(scope=scope)
        certificate = self._certificate(scope)
        scope["headrace.identity"] = identity = self._identify(scope["path"], headers, certificate)
        peer = scope.get("headrace.peer")
        if identity is not None and peer is not None and not peer.recognise():
            raise Refusal(503, "too many connections; keep fewer, and use them again")
        if scope["method"] not in SAFE_METHODS:
            _check_origin(scope["scheme"], headers)
        announced = headers.get("content-length", "0").lstrip("0")
        if len(announced) > _LENGTH_DIGITS or (announced.isdecimal() and int(announced) > self._settings.body_max):
            raise Refusal(413, f"the body is larger than {self._settings.body_max} bytes")
        return [each for each in (identity, certificate) if each is not None]

    def _certificate(self, scope: Scope) -> Identity | None:
        """Whose certificate the connection was made with, where one is asked for."""
        if not self._certified:
            return None
        name = scope["headrace.peer"].certificate
        found = self._keyring().certified(name)
        if found is None:
            cause = unnamed(name)
            log.warning("http.refused", extra={"session": scope["headrace.session"], "cause": cause})
            raise Refusal(403, cause)
        return found

    def _identify(self, path: str, headers: Headers, certificate: Identity | None) -> Identity | None:
        presented = headers.get("authorization")
        if presented is not None:
            scheme, _, key = presented.partition(" ")
            identity = self._keyring().check(key.strip().encode()) if scheme.lower() == "bearer" else None
            if identity is None and path not in OPEN_PATHS:
                raise Refusal(401, "the key is not known")
            return identity
        if path in OPEN_PATHS or (path == METRICS_PATH and self._settings.metrics_unauthenticated):
            return None
        if not self._settings.allow_unauthenticated:
            raise Refusal(401, "a key is needed: authorization: Bearer <key>")
        if _can_be_rebound(headers.get("host", "")) or headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Refusal(403, "without a key only requests to localhost or a plain address are taken")
        return certificate or ANONYMOUS


class _Body:
    """Receives a body no larger than allowed, from a peer that keeps sending and comes to an end."""

    def __init__(self, receive: Receive, body_max: int) -> None:
        self._receive = receive
        self._left = body_max
        self._limit = body_max
        self._complete = False
        self._deadline: float | None = None

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._complete:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + BODY_TOTAL_S
        try:
            async with asyncio.timeout_at(min(self._deadline, now + BODY_TIMEOUT_S)):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(408, "the body did not arrive in time") from None
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise Refusal(413, f"the body is larger than {self._limit} bytes")
        self._complete = not message.get("more_body", False)
        return message


@contextlib.contextmanager
def _asks(scope: Scope, identities: list[Identity]) -> Iterator[None]:
    """Have the connection know on whose behalf it is used while a request is in hand."""
    peer = scope.get("headrace.peer")
    if peer is None:
        yield
        return
    peer.asking = identities
    try:
        yield
    finally:
        peer.asking = []


def identity_of(scope: Scope) -> Identity:
    """Who is asking; only behind the guard, and not on the open paths."""
    identity = scope["headrace.identity"]
    assert isinstance(identity, Identity)
    return identity


def _check_origin(scheme: str, headers: Headers) -> None:
    """A browser says where a request was made; only our own pages may change anything."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scheme}://{headers.get('host', '')}".lower():
        raise Refusal(403, "requests from other origins may not change anything")


def _can_be_rebound(host: str) -> bool:
    """Whether the name in a Host header could be made to point here by whoever owns it."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name != "localhost"
    return False
