"""Our HTTP/2 server against what others made: h2spec's cases, and grpc-go as a client. They need Go to be built."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.http2 import Call, GrpcError, GrpcServer, Http2Limits, Metadata, Status
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import PublishRequest
from tests.harness.authority import Authority
from tests.harness.served import served

SOURCE = Path(__file__).parent / "grpc"
SPEC = "github.com/summerwind/h2spec/cmd/h2spec"
CASES = 145
MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    shutil.which("go") is None,
    reason="install Go 1.24 or later and put `go` on the path: h2spec and the client are built with it",
)


async def run(*command: str, cwd: Path | None = None) -> tuple[int, str]:
    """A program's exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode is not None
    return process.returncode, said


async def built(directory: Path, package: str) -> str:
    """A Go program of ours, or of a module that ours names."""
    program = str(directory / "program")
    code, said = await run("go", "build", "-o", program, package, cwd=SOURCE)
    assert code == 0, said
    return program


async def echo(call: Call) -> None:
    """Everything back."""
    while (data := await call.read()) is not None:
        await call.write(data)


def admit(method: str, metadata: Metadata, peer: str, certificate: str | None) -> str:
    """One key is right."""
    if metadata.get("authorization") != "Bearer right":
        raise GrpcError(Status.UNAUTHENTICATED, "the key is not known")
    return "somebody"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = GrpcServer({"/t.T/echo": echo}, admit, Http2Limits(message_max=8 * MIB))
    host, port = await server.start("127.0.0.1", 0)
    yield f"{host}:{port}"
    await server.close(5)
    assert (server.calls, server.ledger.promised) == (0, 0)


async def test_h2spec_finds_nothing(address: str, tmp_path: Path) -> None:
    spec = await built(tmp_path, SPEC)
    host, port = address.split(":")
    code, said = await run(spec, "--host", host, "--port", port, "--timeout", "10")
    assert f"{CASES} tests, {CASES} passed, 0 skipped, 0 failed" in said, said
    assert code == 0


async def test_grpc_go_calls_and_streams(address: str, tmp_path: Path) -> None:
    program = await built(tmp_path, ".")

    async def client(*options: str, key: str = "right") -> dict[str, Any]:
        code, said = await run(program, "-at", address, "-key", key, *options)
        assert code == 0, said
        found: dict[str, Any] = json.loads(said)
        return found

    unary, stream = ("-unary", "/t.T/echo"), ("-stream", "/t.T/echo")
    assert await client(*unary, "-calls", "3000", "-size", "100", "-workers", "50") == {"same": 3000, "failed": {}}
    assert await client(*unary, "-calls", "40", "-size", f"{MIB}", "-workers", "8") == {"same": 40, "failed": {}}
    assert await client(*unary, "-calls", "20", "-size", "50000", "-gzip") == {"same": 20, "failed": {}}
    assert await client(*stream, "-calls", "20000", "-size", "50") == {"same": 20_000, "ended": ""}
    assert await client(*stream, "-calls", "30", "-size", f"{3 * MIB}") == {"same": 30, "ended": ""}
    refused = {"same": 0, "failed": {"Unauthenticated: the key is not known": 5}}
    assert await client(*unary, "-calls", "5", "-size", f"{MIB}", key="wrong") == refused
    large = {"same": 0, "failed": {f"ResourceExhausted: Received message larger than max ({9 * MIB} vs. {8 * MIB})": 2}}
    assert await client(*unary, "-calls", "2", "-size", f"{9 * MIB}") == large


async def test_grpc_go_publishes_to_a_broker_that_asks_for_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = str(authority.issue_for_a_server())
    program, body = await built(tmp_path, "."), tmp_path / "request"
    envelope = Message(topic="a.B", action="C", payload=b"x")
    body.write_bytes(PublishRequest(queue="q", messages=[envelope.SerializeToString()]).SerializeToString())
    config = tmp_path / "headrace.toml"
    config.write_text(
        f'[listen]\ngrpc = "127.0.0.1:0"\n[auth]\ncertificates = ["worker"]\n'
        f'[tls]\ncert = "{server}"\nkey = "{server}"\nclient_ca = "{authority.path}"\n'
    )
    with served(tmp_path, "--config", str(config), dev=False, LISTEN__GRPC="127.0.0.1:0") as broker:
        assert broker.endpoints["grpc"].startswith("grpcs://")

        async def publish(certificate: Path, workers: int) -> dict[str, Any]:
            code, said = await run(
                program, "-at", f"127.0.0.1:{broker.ports['grpc']}", "-ca", str(authority.path),
                "-cert", str(certificate), "-unary", "/headrace.grpcq.v1.Queues/Publish", "-body", str(body),
                "-calls", "100", "-workers", str(workers),
            )  # fmt: skip
            assert code == 0, said
            found: dict[str, Any] = json.loads(said)
            return found

        for _ in range(10):
            assert await publish(authority.issue("worker"), 10) == {"same": 0, "failed": {}}
        unnamed = "no entry of auth.certificates or auth.api_keys names the certificate 'intruder'"
        assert await publish(authority.issue("intruder"), 1) == {
            "same": 0, "failed": {f"Unauthenticated: {unnamed}": 100},
        }  # fmt: skip
