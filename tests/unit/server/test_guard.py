"""What a request must pass before anybody looks at its meaning."""

import logging
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from headrace.auth import Keyring
from headrace.config import HttpSection, KeyEntry
from headrace.server.guard import SECURITY_HEADERS, Guard

BASE = "http://127.0.0.1:9100"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Says who asked and how many bytes came."""
    body = await Request(scope, receive).body()
    identity = scope["headrace.identity"]
    await PlainTextResponse(f"{identity.owner if identity else 'nobody'} {len(body)}")(scope, receive, send)


def client(settings: HttpSection | None = None, keyring: Keyring | None = None) -> httpx.AsyncClient:
    ring = keyring or Keyring.from_settings([KeyEntry(name="ops", key="secret-key")])
    guard = Guard(echo, lambda: ring, settings or HttpSection())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url=BASE)


def bearer(key: str = "secret-key") -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_known_key_gets_in_and_is_known_behind() -> None:
    async with client() as http:
        reply = await http.get("/api/topics", headers=bearer())
    assert (reply.status_code, reply.text) == (200, "ops 0")


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), {"authorization": "Basic secret-key"}, {"authorization": "secret-key"}, bearer("")]
)
async def test_anybody_else_is_turned_away_and_told_how(headers: dict[str, str]) -> None:
    async with client() as http:
        for path in ("/api/topics", "/metrics", "/", "/healthz/../api/topics"):
            reply = await http.get(path, headers=headers)
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"].startswith("Bearer")
            assert "error" in reply.json()


@pytest.mark.parametrize("headers", [{}, bearer("wrong")])
async def test_the_probes_are_open_whatever_is_presented(headers: dict[str, str]) -> None:
    async with client() as http:
        for path in ("/healthz", "/readyz"):
            assert (await http.get(path, headers=headers)).status_code == 200


async def test_metrics_are_open_only_when_told_so() -> None:
    async with client(HttpSection(metrics_unauthenticated=True)) as http:
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/api/topics")).status_code == 401


async def test_without_a_key_only_requests_to_a_plain_address_pass_where_that_is_allowed() -> None:
    async with client(HttpSection(allow_unauthenticated=True)) as http:
        for host in ("127.0.0.1:9100", "localhost:9100", "localhost", "[::1]:9100", "10.0.0.7"):
            reply = await http.get("/api/topics", headers={"host": host})
            assert (reply.status_code, reply.text) == (200, "anonymous 0")
        for host in ("evil.example:9100", "localhost.evil.example", "127.0.0.1.evil.example", "", "["):
            assert (await http.get("/api/topics", headers={"host": host})).status_code == 403
        assert (await http.get("/api/topics", headers={"sec-fetch-site": "cross-site"})).status_code == 403
        assert (await http.get("/api/topics", headers=bearer("wrong"))).status_code == 401


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:9100", "http://127.0.0.1"])
async def test_another_origin_may_not_change_anything(origin: str) -> None:
    async with client() as http:
        for method in ("POST", "DELETE", "PUT", "PATCH"):
            reply = await http.request(method, "/api/x", headers=bearer() | {"origin": origin})
            assert reply.status_code == 403
        assert (await http.get("/api/x", headers=bearer() | {"origin": origin})).status_code == 200


async def test_our_own_origin_and_callers_without_one_may() -> None:
    async with client() as http:
        assert (await http.post("/api/x", headers=bearer() | {"origin": BASE})).status_code == 200
        assert (await http.post("/api/x", headers=bearer())).status_code == 200


async def test_no_reply_invites_other_origins_and_all_carry_the_security_headers() -> None:
    async with client() as http:
        for headers in ({}, bearer()):
            reply = await http.get("/api/x", headers=headers | {"origin": "http://evil.example"})
            assert not [name for name in reply.headers if name.startswith("access-control-")]
            assert SECURITY_HEADERS.items() <= dict(reply.headers).items()


async def test_a_body_over_the_limit_is_refused_announced_or_not() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 10

    async with client(HttpSection(body_max=100)) as http:
        assert (await http.post("/api/x", headers=bearer(), content=b"x" * 100)).text == "ops 100"
        assert (await http.post("/api/x", headers=bearer(), content=b"x" * 101)).status_code == 413
        assert (await http.post("/api/x", headers=bearer(), content=chunks())).status_code == 413


async def test_reloaded_keys_count_at_once() -> None:
    rings = [Keyring.from_settings(["old"]), Keyring.from_settings(["new"])]
    guard = Guard(echo, lambda: rings[0], HttpSection())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url=BASE) as http:
        assert (await http.get("/x", headers=bearer("old"))).status_code == 200
        rings.pop(0)
        assert (await http.get("/x", headers=bearer("old"))).status_code == 401
        assert (await http.get("/x", headers=bearer("new"))).status_code == 200


async def test_keys_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with client() as http:
            await http.get("/x", headers=bearer("secret-key"))
            await http.post("/x", headers=bearer("wrong-key"))
    assert [record.getMessage() for record in caplog.records if record.name == "headrace.http"] == ["http.request"] * 2
    assert "secret-key" not in str([vars(record) for record in caplog.records])
    assert "wrong-key" not in str([vars(record) for record in caplog.records])
    assert {vars(record)["session"] for record in caplog.records if record.name == "headrace.http"} == {
        "http-1",
        "http-2",
    }
