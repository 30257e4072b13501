"""Answers of the HTTP API: JSON documents, and errors as `{"error": "…"}`."""

import msgspec
from starlette.responses import Response

from headrace.model.errors import Code

STATUS = {
    Code.INVALID: 400,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.UNKNOWN: 404,
    Code.VERSION: 426,
    Code.LIMIT: 429,
    Code.STORAGE: 503,
    Code.DRAINING: 503,
}


def document(content: object, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def failure(status: int, cause: str) -> Response:
    """A JSON error."""
    return document({"error": cause}, status)
