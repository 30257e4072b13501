"""A stand-in for the broker's HTTP API, and a way to run a command as the shell would."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headrace.cli import main

Handler = Callable[[dict[str, str], Any], tuple[int, Any]]


class FakeApi:
    """Answers registered paths and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.keys: list[str | None] = []
        self._routes: dict[tuple[str, str], Handler] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, path: str, document: Any, *, method: str = "GET", status: int = 200) -> None:
        """Always answer this path with this document."""
        self._routes[method, path] = lambda query, body: (status, document)

    def handle(self, path: str, handler: Handler, *, method: str = "GET") -> None:
        """Answer this path with what the handler makes of query and body."""
        self._routes[method, path] = handler

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _reply(self, method: str, target: str, data: bytes) -> tuple[int, bytes]:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = json.loads(data) if data else None
        self.asked.append((method, target, body))
        route = self._routes.get((method, parts.path))
        if route is None:
            return 404, json.dumps({"error": f"nothing at {parts.path}"}).encode()
        status, document = route(query, body)
        return status, document if isinstance(document, bytes) else json.dumps(document).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handling(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                size = int(self.headers.get("content-length", 0))
                api.keys.append(self.headers.get("authorization"))
                status, content = api._reply(self.command, self.path, self.rfile.read(size))
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = handle_any  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Keep standard error for the command under test."""

        return Handling


class Shell:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *arguments: str) -> int:
        """The exit code; `out` and `err` hold what was printed."""
        code = main(arguments)
        self.out, self.err = self._capsys.readouterr()
        return code

    @property
    def rows(self) -> list[list[str]]:
        """Tab-separated output."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def documents(self) -> list[dict[str, Any]]:
        """JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]
