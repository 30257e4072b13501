"""The gRPC listener: who calls, what the call says, which status it ends with. What is done is done in `grpc_queues`.

Calls are taken and answered as bytes, so that no message of a batch becomes an object on its way. A caller nobody knows
is turned away before anything of its request is kept.
"""

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from headrace.auth import ANONYMOUS, Identity
from headrace.config import Address
from headrace.http2 import Call, GrpcError, GrpcServer, Http2Limits, Metadata, Status
from headrace.model.errors import BrokerError, Code
from headrace.protocols.grpcq.deliveries import encoded
from headrace.protocols.grpcq.queues_pb2 import AckRequest, ConsumeRequest, NackRequest, Refusal, SettleResponse
from headrace.server.doors import REVOKED, Entrance
from headrace.server.grpc_queues import Failure, Queues
from headrace.server.grpc_stream import StreamCall

SERVICE = "headrace.grpcq.v1.Queues"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"

log = logging.getLogger("headrace.grpc")

M = TypeVar("M", bound=ProtobufMessage)
Behaviour = Callable[[Call, Identity, bytes], Awaitable[bytes]]


class Caller(NamedTuple):
    """Who calls, and whose certificate was shown where one is asked for: both must stay good."""

    identity: Identity
    certificate: Identity | None


class GrpcListener:
    """A gRPC server for the queues, in the broker's own event loop."""

    name = "grpc"

    def __init__(self, queues: Queues, entrance: Entrance, limits: Http2Limits, tls: ssl.SSLContext | None) -> None:
        self._queues = queues
        self._entrance = entrance
        self._write_timeout_s = limits.write_timeout_s
        self._numbers = count(1)
        unary: dict[str, Behaviour] = {
            "Publish": self._publish,
            "Consume": self._consume,
            "Ack": self._ack,
            "Nack": self._nack,
        }
        methods = {f"/{SERVICE}/{name}": partial(_answer, behaviour) for name, behaviour in unary.items()}
        self._server = GrpcServer(
            {**methods, f"/{SERVICE}/Stream": self._stream, HEALTH_CHECK: self._health},
            self._admit,
            limits,
            tls,
            tell=_tell,
            connected=self._count,
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address really bound.

        Raises OSError when it cannot be bound.
        """
        try:
            return await self._server.start(host, port)
        except OSError as error:
            raise OSError(f"cannot listen for gRPC on {Address(host, port)}: {error}") from None

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """End the calls of whoever came in by a key or certificate that is not good any more."""
        self._server.revoke(lambda caller: all(still_valid(each) for each in caller if each is not None), REVOKED)

    def stop_listening(self) -> None:
        """Take no new calls and let nobody wait; streams end once their peer holds nothing."""
        self._queues.drain()
        self._server.stop_listening()

    async def close(self, timeout_s: float) -> None:
        """Return when every call has ended, if need be by force."""
        await self._server.close(timeout_s)

    def _count(self, change: int) -> None:
        self._queues.engine.connections += change

    def _admit(self, method: str, metadata: Metadata, peer: str, certificate: str | None) -> Caller | None:
        """Who calls; health is for strangers, too."""
        if method == HEALTH_CHECK:
            return None
        try:
            return self._caller(metadata.get("authorization"), certificate)
        except BrokerError as error:
            about = {"session": f"grpc-{next(self._numbers)}", "peer": peer, "cause": error.detail}
            log.info("grpc.refused", extra=about)
            raise

    def _caller(self, presented: str | bytes | None, certificate: str | None) -> Caller:
        """Who calls: by the key, or by the certificate, which must be named either way.

        Raises BrokerError(UNAUTHENTICATED).
        """
        identity = None
        if presented is not None:
            scheme, _, key = str(presented).partition(" ")
            if scheme.lower() == "bearer":
                identity = self._entrance.keyring().check(key.strip().encode())
            if identity is None:
                raise BrokerError(Code.UNAUTHENTICATED, "the key is not known")
        elif not self._entrance.certified and not self._entrance.admits_anybody:
            raise BrokerError(Code.UNAUTHENTICATED, "a key is needed: authorization: Bearer <key>")
        shown = self._entrance.named(certificate)
        return Caller(identity or shown or ANONYMOUS, shown)

    async def _publish(self, call: Call, identity: Identity, request: bytes) -> bytes:
        await self._queues.publish(identity, request, call.peer)
        return b""

    async def _consume(self, call: Call, identity: Identity, request: bytes) -> bytes:
        asked = _decoded(ConsumeRequest, request)
        wait_s, visibility_s = asked.wait_ms / 1000, asked.visibility_ms / 1000
        taken = await self._queues.consume(identity, asked.queue, asked.max_batch, wait_s, visibility_s, call.peer)
        await call.writable()
        return encoded(*taken)

    async def _ack(self, call: Call, identity: Identity, request: bytes) -> bytes:
        receipts = list(_decoded(AckRequest, request).receipts)
        return _settled(receipts, await self._queues.settle(identity, receipts))

    async def _nack(self, call: Call, identity: Identity, request: bytes) -> bytes:
        asked = _decoded(NackRequest, request)
        receipts = list(asked.receipts)
        return _settled(receipts, await self._queues.settle(identity, receipts, Failure(asked.reason, asked.dead)))

    async def _stream(self, call: Call) -> None:
        session, who = f"grpc-{next(self._numbers)}", call.identity.identity
        log.debug("grpc.stream_opened", extra={"session": session, "peer": call.peer, "owner": who.owner})
        try:
            await StreamCall(self._queues, who, call.write, self._write_timeout_s, call.peer).run(_requests(call))
        except BrokerError as error:
            log.info("grpc.stream_refused", extra={"session": session, "cause": error.detail})
            raise

    async def _health(self, call: Call) -> None:
        await call.read()
        await call.write(NOT_SERVING if self._queues.draining or not self._queues.engine.ready else SERVING)


async def _answer(behaviour: Behaviour, call: Call) -> None:
    """One unary call."""
    request = await call.read()
    if request is None:
        raise GrpcError(Status.INTERNAL, "a call without its request")
    await call.write(await behaviour(call, call.identity.identity, request))


async def _requests(call: Call) -> AsyncIterator[bytes]:
    """What a stream's peer says, one message after the other."""
    while (request := await call.read()) is not None:
        yield request


def _tell(event: str, **about: Any) -> None:
    """Log what happened to a connection."""
    failure = about.pop("exc_info", None)
    level = logging.ERROR if failure is not None else logging.INFO
    log.log(level, event.replace("http2.", "grpc."), extra=about, exc_info=failure)


def _decoded(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BrokerError(Code.INVALID, f"not a {kind.DESCRIPTOR.name}") from None


def _settled(receipts: list[bytes], refused: dict[int, str]) -> bytes:
    listed = [Refusal(index=place, receipt=receipts[place], error=refused[place]) for place in sorted(refused)]
    return SettleResponse(refused=listed).SerializeToString()
