"""The broker's HTTP API as a command sees it: requests and JSON, refusals as failures. Standard library only."""

import http.client
import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

from headrace.cli.failure import Failure
from headrace.cli.target import Target

TIMEOUT_S = 30
PAGE = 500


class Missing(Failure):
    """The broker has not found it; `next` is where to look further, if there is more to look through."""

    def __init__(self, cause: str, following: int | None = None) -> None:
        super().__init__(cause)
        self.next = following


class ApiClient:
    """One connection to the API, kept open from request to request."""

    def __init__(self, target: Target, *, timeout_s: float = TIMEOUT_S) -> None:
        self._target = target
        host, port = target.address("http")
        tls = target.tls("http")
        self._connection = (
            http.client.HTTPConnection(host, port, timeout=timeout_s)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """The document at a path; query values of None are left out."""
        given = {k: v for k, v in (query or {}).items() if v is not None}
        return self.request("GET", f"{path}?{urlencode(given)}" if given else path)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The reply to one request, decoded.

        Raises Failure with the broker's own words when it refuses, or when nobody is there.
        """
        data = self._exchange(method, path, body)
        return json.loads(data) if data else None

    def _exchange(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"authorization": f"Bearer {self._target.key}", "accept": "application/json"}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        try:
            self._connection.request(method, path, body=content, headers=headers)
            reply = self._connection.getresponse()
            data = reply.read()
        except OSError as error:
            raise self._target.unreachable("http", error) from error
        except http.client.HTTPException as error:
            url = self._target.endpoints["http"]
            raise Failure(f"{url} does not speak HTTP ({error!r})", "Is it the broker's http listener?") from error
        if reply.status >= 400:
            raise self._refusal(method, path, reply.status, data)
        return data

    def pages(
        self, path: str, items: str, query: Mapping[str, object], *, limit: int | None
    ) -> Iterator[dict[str, Any]]:
        """Messages that are served in pages, each page beginning where the one before says it ended."""
        query = dict(query)
        left = limit
        while left is None or left > 0:
            query["limit"] = PAGE if left is None else min(PAGE, left)
            answer = self.get(path, query)
            found: list[dict[str, Any]] = answer[items]
            yield from found
            if not answer.get("more", len(found) == query["limit"]):
                return
            query["from"] = answer.get("next") or found[-1]["offset"] + 1
            left = None if left is None else left - len(found)

    def listed(self, path: str, items: str, after: str | None = None) -> Iterator[dict[str, Any]]:
        """A whole list that is served in pages, each with where the next one goes on."""
        while True:
            answer = self.get(path, {"after": after})
            yield from answer[items]
            after = answer.get("next")
            if after is None:
                return

    def value(self, offset: int) -> bytes:
        """The whole value of a message, however long, part by part."""
        found = b""
        while part := self._exchange("GET", f"/api/messages/{offset}/value?from={len(found)}"):
            found += part
        return found

    def _refusal(self, method: str, path: str, status: int, data: bytes) -> Failure:
        following = None
        try:
            told = json.loads(data)
            said = told["error"]
            following = told.get("next")
        except (ValueError, KeyError, TypeError):
            said = data.decode(errors="replace").strip() or http.client.responses.get(status, "")
        if status in (401, 403):
            return Failure(
                f"the broker refused the key: {said}",
                "Give one with --key or HEADRACE_KEY; `headrace keys new` makes one.",
            )
        if status == http.client.NOT_FOUND:
            return Missing(said, following)
        return Failure(f"the broker refused {method} {path}: {said} ({status})")


def segment(text: str) -> str:
    """Text as one segment of a path."""
    return quote(text, safe="")
