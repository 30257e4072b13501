"""Every vector of grpcq: at both kernels, at the producer's checks, and through a real broker by gRPC and HTTP."""

import base64
import importlib
import re
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.grpcq import MemoryAdapter, Producer, Rejected
from headrace.kernels import load_source
from headrace.kernels.grpcq_envelope import Reason
from headrace.model.batch import Batch
from headrace.model.errors import BrokerError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.protocols.grpcq.client import GrpcqClient, Refused
from headrace.protocols.grpcq.envelope import PAYLOAD_MAX, check_message, check_queue, decode
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.publishing import Publishing, varint
from headrace.protocols.grpcq.queues_pb2 import PublishRequest
from headrace.testing import KEY, broker
from tests.conformance.vectors import FOLDER, fill
from tests.harness.api import calling

ROOT = Path(__file__).resolve().parents[2]
READING = ROOT / "docs" / "protocols" / "grpcq.md"
DOCUMENT = tomllib.loads((FOLDER / "grpcq.toml").read_text())
NOW = 1_700_000_000_000_000
GOOD = Message(topic="x", action="y", message_id="z", timestamp_ms=1).SerializeToString()
KERNELS = {
    "imported": importlib.import_module("headrace.kernels.grpcq"),
    "interpreted": load_source("grpcq", "conforming_grpcq"),
}


@dataclass(frozen=True)
class Envelope:
    """One envelope, and what becomes of it."""

    name: str
    data: bytes
    fields: dict[str, Any]
    filled: frozenset[str]
    refused: str
    status: str
    http: int


def envelope(entry: dict[str, Any]) -> Envelope:
    data = fill(entry["bytes"], {})
    if "payload" in entry:
        data += b"\x22" + varint(entry["payload"]) + bytes(entry["payload"])
    fields = dict(entry.get("fields", {}))
    if "payload" in entry:
        fields["payload"] = bytes(entry["payload"])
    elif "payload" in fields:
        fields["payload"] = fields["payload"].encode()
    return Envelope(
        entry["name"],
        data,
        fields,
        frozenset(entry.get("filled", ())),
        entry.get("refused", ""),
        entry.get("status", "INVALID_ARGUMENT"),
        entry.get("http", 400),
    )


ENVELOPES = [envelope(entry) for entry in DOCUMENT["envelope"]]
ACCEPTED = [vector for vector in ENVELOPES if not vector.refused]
REFUSED = [vector for vector in ENVELOPES if vector.refused]
QUEUES = DOCUMENT["queue"]


@dataclass
class Site:
    """A broker, by gRPC and by HTTP."""

    client: GrpcqClient
    http: httpx.AsyncClient


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with (
        broker(listen={"grpc": "127.0.0.1:0"}, grpcq={"dedup_s": 0}) as node,
        GrpcqClient(node.endpoints["grpc"], KEY) as client,
        calling(node.endpoints["http"]) as http,
    ):
        yield Site(client, http)


def call(*messages: bytes) -> bytes:
    return PublishRequest(queue="q", messages=messages).SerializeToString()


def matches(vector: Envelope, value: bytes) -> None:
    """What was stored begins with what was sent and says the same, but for what was filled in."""
    assert value.startswith(vector.data)
    message = Message.FromString(value)
    for name in vector.filled:
        assert getattr(message, name)
        message.ClearField(name)
    expected = Message(**vector.fields)
    for field in Message.DESCRIPTOR.fields:
        assert getattr(message, field.name) == getattr(expected, field.name), field.name
    if not vector.filled:
        assert value == vector.data


@pytest.mark.parametrize("vector", ENVELOPES, ids=lambda vector: vector.name)
def test_both_kernels_judge_it_alike(vector: Envelope) -> None:
    scans = [kernel.scan_publish(call(GOOD, vector.data), PAYLOAD_MAX, 10) for kernel in KERNELS.values()]
    assert {(scan.reason, scan.failed) for scan in scans} == {(scans[0].reason, scans[0].failed)}
    assert (scans[0].reason == Reason.FINE) is not bool(vector.refused)


@pytest.mark.parametrize("vector", ACCEPTED, ids=lambda vector: vector.name)
def test_no_prefix_of_it_is_judged_by_what_follows(vector: Envelope) -> None:
    for end in range(min(len(vector.data), 300)):
        cut = vector.data[:end]
        scans = [kernel.scan_publish(call(cut), PAYLOAD_MAX, 10) for kernel in KERNELS.values()]
        assert scans[0].reason == scans[1].reason
        try:
            decode(cut)
        except BrokerError:
            assert scans[0].reason in (Reason.NOT_PROTOBUF, Reason.NOT_UTF8)


@pytest.mark.parametrize("vector", ACCEPTED, ids=lambda vector: vector.name)
def test_it_is_stored_as_it_was_sent(vector: Envelope) -> None:
    publishing = Publishing.read(call(GOOD, vector.data), PAYLOAD_MAX)
    batch = Batch(publishing.record(now=NOW, entropy=bytes(publishing.entropy_size)), RECORD_HEADER_SIZE, 0)
    matches(vector, batch.value(1))
    assert batch.message(1).message_id == Message.FromString(batch.value(1)).message_id


@pytest.mark.parametrize("vector", REFUSED, ids=lambda vector: vector.name)
def test_it_is_refused_by_its_place(vector: Envelope) -> None:
    with pytest.raises(BrokerError) as refused:
        Publishing.read(call(GOOD, vector.data, GOOD), PAYLOAD_MAX)
    assert refused.value.detail == f"message 1: {vector.refused}"


@pytest.mark.parametrize("vector", ENVELOPES, ids=lambda vector: vector.name)
def test_the_producer_judges_what_it_can_make_as_the_broker_does(vector: Envelope) -> None:
    try:
        message = decode(vector.data)
    except BrokerError:
        return
    if vector.refused and vector.refused != "not a grpcq.Message":
        with pytest.raises(BrokerError) as refused:
            check_message(message)
        assert refused.value.detail == vector.refused
    else:
        check_message(message)


async def test_every_vector_through_grpc(site: Site) -> None:
    for vector in ACCEPTED:
        await site.client.publish("q", [vector.data])
        (delivery,) = await site.client.consume("q", 1, wait_s=20)
        matches(vector, delivery.message)
        assert await site.client.ack([delivery.receipt]) == []
    for vector in REFUSED:
        with pytest.raises(Refused) as refused:
            await site.client.publish("q", [GOOD, vector.data])
        assert (refused.value.code, refused.value.message) == (vector.status, f"message 1: {vector.refused}")
    assert await site.client.consume("q") == []


async def test_every_vector_through_http(site: Site) -> None:
    for vector in ENVELOPES:
        body = {"messages": [base64.b64encode(data).decode() for data in (GOOD, vector.data)]}
        reply = await site.http.post("/queues/q/messages", json=body)
        assert reply.status_code == (vector.http if vector.refused else 204), vector.name
        if vector.refused:
            assert reply.json() == {"error": f"message 1: {vector.refused}"}
            continue
        good, delivery = await site.client.consume("q", 2, wait_s=20)
        assert good.message == GOOD
        matches(vector, delivery.message)
        assert await site.client.ack([good.receipt, delivery.receipt]) == []
    assert await site.client.consume("q") == []


@pytest.mark.parametrize("vector", QUEUES, ids=lambda vector: vector["name"] or "empty")
async def test_every_queue_name(vector: dict[str, Any]) -> None:
    if vector["accepted"]:
        check_queue(vector["name"])
        await Producer(MemoryAdapter()).send(vector["name"], "a", "b", b"")
    else:
        with pytest.raises(BrokerError):
            check_queue(vector["name"])
        with pytest.raises(Rejected):
            await Producer(MemoryAdapter()).send(vector["name"], "a", "b", b"")


async def test_every_queue_name_through_grpc(site: Site) -> None:
    for vector in QUEUES:
        if vector["accepted"]:
            await site.client.publish(vector["name"], [GOOD])
            assert len(await site.client.consume(vector["name"], wait_s=20)) == 1
        else:
            with pytest.raises(Refused, match="bad queue name"):
                await site.client.publish(vector["name"], [GOOD])


def test_every_vector_says_where_it_comes_from() -> None:
    entries = [*DOCUMENT["envelope"], *QUEUES]
    for entry in entries:
        assert entry["provenance"] in {"printed", "derived", "corrected"}, entry["name"]
        assert entry["why"], entry["name"]
        assert entry["rows"], entry["name"]
    assert len({entry["name"] for entry in DOCUMENT["envelope"]}) == len(DOCUMENT["envelope"])


def test_every_row_of_our_reading_is_held_by_a_vector_or_named_elsewhere() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", READING.read_text(), re.MULTILINE)
    here = {row for entry in (*DOCUMENT["envelope"], *QUEUES) for row in entry["rows"]}
    assert len(rows) == len(set(rows))
    assert set(rows) == here | {entry["row"] for entry in DOCUMENT["elsewhere"]}


def test_rows_held_elsewhere_name_a_test_that_exists() -> None:
    for entry in DOCUMENT["elsewhere"]:
        path, name = entry["held_by"].split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), entry["row"]
        assert entry["why"], entry["row"]
