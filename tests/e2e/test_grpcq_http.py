"""grpcq's publish endpoint over real HTTP: what wire.md says, status by status."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.testing import KEY, broker
from tests.harness.api import calling

SCOPED = "orders-only"


@dataclass
class Rig:
    """A caller over HTTP, and a consumer over gRPC."""

    http: httpx.AsyncClient
    client: GrpcqClient

    async def post(self, queue: str, *messages: Message | bytes, **options: Any) -> httpx.Response:
        """Publish these messages."""
        encoded = [base64.b64encode(m if isinstance(m, bytes) else m.SerializeToString()).decode() for m in messages]
        return await self.http.post(f"/queues/{queue}/messages", json={"messages": encoded}, **options)

    async def stored(self, queue: str = "orders") -> list[Message]:
        """What is in the queue."""
        return [Message.FromString(delivery.message) for delivery in await self.client.consume(queue, 100)]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    keys = [KEY, {"name": "scoped", "key": SCOPED, "publish": ["orders"]}]
    async with (
        broker(listen={"grpc": "127.0.0.1:0"}, auth={"api_keys": keys}) as node,
        calling(node.endpoints["http"]) as http,
        GrpcqClient(node.endpoints["grpc"], KEY) as client,
    ):
        yield Rig(http, client)


def message(**fields: Any) -> Message:
    return Message(**({"topic": "a.B", "action": "C", "payload": b"p"} | fields))


async def test_messages_are_stored_all_at_once(rig: Rig) -> None:
    reply = await rig.post("orders", message(message_id="1"), message(payload=b""), b"\x12\x01a\x1a\x01b\x42\x01!")
    assert (reply.status_code, reply.content) == (204, b"")
    first, second, third = await rig.stored()
    assert (first.message_id, second.payload) == ("1", b"")
    assert second.message_id
    assert second.timestamp_ms
    assert b"\x42\x01!" in third.SerializeToString()


async def test_nothing_to_store_is_fine(rig: Rig) -> None:
    assert (await rig.post("orders")).status_code == 204


@pytest.mark.parametrize("queue", ["a%20b", "a%2Fb", "%C3%A9", "a:b", "$dead.orders", "a/b"])
async def test_a_bad_queue_name_is_400(rig: Rig, queue: str) -> None:
    reply = await rig.post(queue, message())
    assert reply.status_code == 400
    assert "bad queue name" in reply.json()["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"messages": "x"}', b'{"messages": [1]}', b"{}", b'{"messages": null}', b"\xff"]
)
async def test_a_bad_body_is_400(rig: Rig, body: bytes) -> None:
    reply = await rig.http.post("/queues/orders/messages", content=body)
    assert reply.status_code == 400
    assert "bad body" in reply.json()["error"]


async def test_fields_we_do_not_know_are_left_alone(rig: Rig) -> None:
    body = {"messages": [base64.b64encode(message().SerializeToString()).decode()], "version": 2}
    assert (await rig.http.post("/queues/orders/messages", content=json.dumps(body))).status_code == 204
    assert len(await rig.stored()) == 1


@pytest.mark.parametrize("text", ["*", "YQ", "YQ==\n", "Y Q=", "é"])
async def test_what_is_not_base64_is_400(rig: Rig, text: str) -> None:
    reply = await rig.http.post("/queues/orders/messages", json={"messages": ["", text]})
    assert reply.status_code == 400
    assert reply.json()["error"] == "message 1: not base64"


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (b"\xff", "message 1: not a grpcq.Message"),
        (message(topic=""), "message 1: topic must not be empty"),
        (message(action=" C"), "message 1: action must not begin or end with white space"),
    ],
)
async def test_one_bad_message_is_400_and_stores_none(rig: Rig, bad: Message | bytes, text: str) -> None:
    reply = await rig.post("orders", message(), bad, message())
    assert (reply.status_code, reply.json()["error"]) == (400, text)
    assert await rig.stored() == []


async def test_too_large_a_payload_is_413_and_named(rig: Rig) -> None:
    assert (await rig.post("orders", message(payload=bytes(262_144)))).status_code == 204
    reply = await rig.post("orders", message(payload=bytes(262_145)))
    assert reply.status_code == 413
    assert reply.json()["error"] == "message 0: payload of a.B.C has 262145 bytes, more than the 262144 allowed"


async def test_too_large_a_body_is_413(rig: Rig) -> None:
    reply = await rig.http.post("/queues/orders/messages", content=bytes((1 << 20) + 1))
    assert reply.status_code == 413


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_other_methods_are_405(rig: Rig, method: str) -> None:
    reply = await rig.http.request(method, "/queues/orders/messages")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize(("key", "queue", "status"), [("", "orders", 401), ("x", "orders", 401), (SCOPED, "b", 403)])
async def test_keys_are_asked_for(rig: Rig, key: str, queue: str, status: int) -> None:
    del rig.http.headers["authorization"]
    reply = await rig.post(queue, message(), headers={"authorization": f"Bearer {key}"} if key else {})
    assert reply.status_code == status


async def test_a_key_for_the_queue_will_do(rig: Rig) -> None:
    assert (await rig.post("orders", message(), headers={"authorization": f"Bearer {SCOPED}"})).status_code == 204
