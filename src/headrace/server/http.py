"""The HTTP application: probes and metrics, and the API behind its guard."""

import logging
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.auth import Keyring
from headrace.config import HttpSection
from headrace.kernels import compiled
from headrace.model.errors import BrokerError, Code
from headrace.server.api import Api
from headrace.server.disk_health import degraded
from headrace.server.engine import Engine
from headrace.server.grpc_queues import Queues
from headrace.server.guard import METRICS_PATH, Guard, identity_of
from headrace.server.marks import Marks
from headrace.server.metrics import Metrics
from headrace.server.queues import queue_routes
from headrace.server.replies import STATUS, document, failure
from headrace.server.serving import HttpServer, serve_http
from headrace.server.survey import Surveys

__all__ = ["HttpServer", "build_app", "serve_http"]

log = logging.getLogger("headrace.http")


def build_app(
    engine: Engine,
    keyring: Callable[[], Keyring],
    settings: HttpSection,
    queues: Queues | None = None,
    marks: Marks | None = None,
    *,
    certified: bool = False,
    reload: Callable[[], str] | None = None,
) -> ASGIApp:
    """The application for one engine; `keyring` is asked at every request, so that reloaded keys count at once.

    With `queues` it also has grpcq's publish endpoint. `marks` are shared with others who redrive dead letters.
    `certified`: callers must have shown a certificate that is named. `reload` reads the keys anew.
    """
    surveys = Surveys(engine, settings.metrics_topics_max)
    probes = _Probes(engine, Metrics(engine, kernels_compiled=compiled()), surveys)
    app = Starlette(
        routes=[
            Route("/healthz", probes.healthz),
            Route("/readyz", probes.readyz),
            Route(METRICS_PATH, probes.metrics),
            *Api(engine, probes.not_ready, marks, surveys).routes(),
            *(queue_routes(queues) if queues is not None else ()),
            *((Route("/api/keys/reload", _Reload(reload).run, methods=["POST"]),) if reload is not None else ()),
        ],
        exception_handlers={
            HTTPException: _http_failure,
            BrokerError: _refused,
            Exception: _broken,
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, keyring, settings, certified=certified)


class _Probes:
    """Answers to machines that watch over the broker."""

    def __init__(self, engine: Engine, metrics: Metrics, surveys: Surveys) -> None:
        self._engine = engine
        self._metrics = metrics
        self._surveys = surveys

    async def healthz(self, request: Request) -> Response:
        """The process answers."""
        return document({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Whether work is accepted, and if not, why.

        A broker that met damage still accepts work: it stays ready, and says so.
        """
        cause = self.not_ready()
        if cause is not None:
            return document({"status": "unavailable", "cause": cause}, 503)
        if (worry := degraded(self._engine)) is not None:
            return document({"status": "degraded", "cause": worry})
        return document({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Everything Prometheus scrapes, for those who may know of every topic."""
        identity = request.scope["headrace.identity"]
        if identity is not None and not identity.may_watch:
            raise BrokerError(Code.FORBIDDEN, "the metrics tell of all topics: a key for them has metrics = true")
        return Response(self._metrics.exposition(await self._surveys.latest()), media_type=CONTENT_TYPE_LATEST)

    def not_ready(self) -> str | None:
        """Why work is not accepted; None when it is. Says nothing that a stranger should not know."""
        if not self._engine.ready:
            return "starting or draining"
        return "the log cannot be written" if self._engine.log.failing is not None else None


class _Reload:
    """Has the keys read anew, for whoever may do everything and has shown so."""

    def __init__(self, reload: Callable[[], str]) -> None:
        self._reload = reload

    async def run(self, request: Request) -> Response:
        """Read the configuration's `[auth]` anew, as SIGHUP does; who is not in it any more is cut off."""
        identity = identity_of(request.scope)
        if not identity.credential or not identity.is_unrestricted:
            raise BrokerError(Code.FORBIDDEN, "only a key or certificate that may do everything may have keys reloaded")
        if cause := self._reload():
            return failure(409, f"the old keys stay: {cause}")
        return document({"status": "reloaded"})


async def _http_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reply = failure(error.status_code, str(error.detail))
    reply.headers.update(error.headers or {})
    return reply


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, BrokerError)
    return failure(STATUS[error.code], error.detail)


async def _broken(request: Request, error: Exception) -> Response:
    about = {"session": request.scope["headrace.session"], "method": request.method, "path": request.url.path}
    log.error("http.failed", exc_info=error, extra=about)
    return failure(500, "internal error; the broker's log has the details")
