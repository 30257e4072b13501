"""The gRPC listener: who calls, what the call says, which status it ends with. What is done is done in `grpc_queues`.

Calls are taken and answered as bytes, so that no message of a batch becomes an object on its way. A caller nobody knows
is turned away before its request is read.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from headrace.auth import ANONYMOUS, Identity, Keyring
from headrace.config import Address, TlsSection
from headrace.model.errors import BrokerError, Code
from headrace.protocols.grpcq.deliveries import encoded
from headrace.protocols.grpcq.errors import STATUS
from headrace.protocols.grpcq.queues_pb2 import AckRequest, ConsumeRequest, NackRequest, Refusal, SettleResponse
from headrace.quic.certificates import common_name_of
from headrace.server.doors import REVOKED, unnamed
from headrace.server.grpc_queues import Failure, Queues
from headrace.server.grpc_stream import StreamCall
from headrace.server.tls import TlsError

SERVICE = "headrace.grpcq.v1.Queues"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
CALLS_MAX = 4096
STREAMS_PER_CONNECTION_MAX = 1024
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
IDENTITY_ONLY = 1

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"

log = logging.getLogger("headrace.grpc")

Context = Any
M = TypeVar("M", bound=ProtobufMessage)
Behaviour = Callable[[Identity, bytes], Awaitable[bytes]]


class GrpcListener:
    """A gRPC server for the queues, in the broker's own event loop."""

    name = "grpc"

    def __init__(
        self,
        queues: Queues,
        keyring: Callable[[], Keyring],
        *,
        allow_unauthenticated: bool,
        request_max: int,
        write_timeout_s: float,
        tls: TlsSection | None = None,
    ) -> None:
        self._queues = queues
        self._tls = tls
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", request_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
            ],
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        certified = tls is not None and bool(tls.client_ca)
        self._door = _Door(queues, keyring, allow_unauthenticated, certified, write_timeout_s)
        self._server.add_generic_rpc_handlers((self._door,))

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address really bound.

        Raises OSError when it cannot be bound, TlsError when the certificate cannot be used.
        """
        address = str(Address(host, port))
        try:
            if self._tls is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, _credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"cannot listen for gRPC on {address}: {error}") from None
        await self._server.start()
        return host, bound

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """End the calls of whoever came in by a key or certificate that is not good any more."""
        self._door.revoke(still_valid)

    def stop_listening(self) -> None:
        """Take no new calls and let nobody wait; streams end once their peer holds nothing."""
        self._queues.drain()

    async def close(self, timeout_s: float) -> None:
        """Return when every call has ended, if need be by force."""
        await self._server.stop(timeout_s)


class _Door(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Finds out who calls, then what they want."""

    def __init__(
        self,
        queues: Queues,
        keyring: Callable[[], Keyring],
        allow_unauthenticated: bool,
        certified: bool,
        write_timeout_s: float,
    ) -> None:
        self._queues = queues
        self._keyring = keyring
        self._allow_unauthenticated = allow_unauthenticated
        self._certified = certified
        self._write_timeout_s = write_timeout_s
        self._numbers = count(1)
        self._calls: dict[asyncio.Task[Any], Identity] = {}
        self._unary: dict[str, Behaviour] = {
            f"/{SERVICE}/Publish": self._publish,
            f"/{SERVICE}/Consume": self._consume,
            f"/{SERVICE}/Ack": self._ack,
            f"/{SERVICE}/Nack": self._nack,
        }

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; None for a method nobody has."""
        method: str = handler_call_details.method
        if method == HEALTH_CHECK:
            return grpc.unary_unary_rpc_method_handler(self._health)
        behaviour = self._unary.get(method)
        if behaviour is None and method != f"/{SERVICE}/Stream":
            return None
        try:
            identity = self._identify(handler_call_details.invocation_metadata)
        except BrokerError as error:
            log.info("grpc.refused", extra={"session": f"grpc-{next(self._numbers)}", "cause": error.detail})
            return grpc.stream_stream_rpc_method_handler(partial(_refuse, error))
        if behaviour is None:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, identity))
        return grpc.unary_unary_rpc_method_handler(partial(self._call, behaviour, identity))

    def _identify(self, metadata: Any) -> Identity | None:
        """Who calls; None for somebody the certificate names.

        Raises BrokerError(UNAUTHENTICATED).
        """
        presented = next((value for key, value in metadata or () if key == "authorization"), None)
        if presented is not None:
            scheme, _, key = presented.partition(" ")
            identity = self._keyring().check(key.strip().encode()) if scheme.lower() == "bearer" else None
            if identity is None:
                raise BrokerError(Code.UNAUTHENTICATED, "the key is not known")
            return identity
        if self._certified:
            return None
        if not self._allow_unauthenticated:
            raise BrokerError(Code.UNAUTHENTICATED, "a key is needed: authorization: Bearer <key>")
        return ANONYMOUS

    def _caller(self, identity: Identity | None, context: Context) -> Identity:
        """Who calls: by the key, or by the certificate, which must be named either way.

        Raises BrokerError(UNAUTHENTICATED).
        """
        if not self._certified:
            assert identity is not None
            return identity
        shown = context.auth_context().get("x509_pem_cert", ())
        name = common_name_of(shown[0]) if shown else None
        found = self._keyring().certified(name)
        if found is None:
            log.warning("grpc.refused", extra={"session": context.peer(), "cause": unnamed(name)})
            raise BrokerError(Code.UNAUTHENTICATED, unnamed(name))
        return identity or found

    async def _call(self, behaviour: Behaviour, identity: Identity | None, request: bytes, context: Context) -> bytes:
        """One unary call, its errors as statuses."""
        try:
            with self._under_way(self._caller(identity, context)) as who:
                return await behaviour(who, request)
        except BrokerError as error:
            await context.abort(STATUS[error.code], error.detail)
            raise AssertionError("abort does not return") from error

    async def _publish(self, identity: Identity, request: bytes) -> bytes:
        await self._queues.publish(identity, request)
        return b""

    async def _consume(self, identity: Identity, request: bytes) -> bytes:
        asked = _decoded(ConsumeRequest, request)
        wait_s, visibility_s = asked.wait_ms / 1000, asked.visibility_ms / 1000
        return encoded(*await self._queues.consume(identity, asked.queue, asked.max_batch, wait_s, visibility_s))

    async def _ack(self, identity: Identity, request: bytes) -> bytes:
        receipts = list(_decoded(AckRequest, request).receipts)
        return _settled(receipts, await self._queues.settle(identity, receipts))

    async def _nack(self, identity: Identity, request: bytes) -> bytes:
        asked = _decoded(NackRequest, request)
        receipts = list(asked.receipts)
        return _settled(receipts, await self._queues.settle(identity, receipts, Failure(asked.reason, asked.dead)))

    async def _stream(self, identity: Identity | None, requests: AsyncIterator[bytes], context: Context) -> None:
        session = f"grpc-{next(self._numbers)}"
        try:
            who = self._caller(identity, context)
            log.debug("grpc.stream_opened", extra={"session": session, "peer": context.peer(), "owner": who.owner})
            with self._under_way(who):
                await StreamCall(self._queues, who, context.write, self._write_timeout_s).run(aiter(requests))
        except BrokerError as error:
            log.info("grpc.stream_refused", extra={"session": session, "cause": error.detail})
            await context.abort(STATUS[error.code], error.detail)

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """End the calls of others."""
        for call, identity in list(self._calls.items()):
            if not still_valid(identity):
                call.cancel(REVOKED)

    @contextlib.contextmanager
    def _under_way(self, identity: Identity) -> Iterator[Identity]:
        """Have a call ended when its caller is let in no more.

        Raises BrokerError(UNAUTHENTICATED) then.
        """
        task = asyncio.current_task()
        assert task is not None
        self._calls[task] = identity
        try:
            yield identity
        except asyncio.CancelledError as error:
            if error.args != (REVOKED,):
                raise
            task.uncancel()
            raise BrokerError(Code.UNAUTHENTICATED, REVOKED) from None
        finally:
            del self._calls[task]

    async def _health(self, request: bytes, context: Context) -> bytes:
        return NOT_SERVING if self._queues.draining or not self._queues.engine.ready else SERVING


async def _refuse(error: BrokerError, requests: AsyncIterator[bytes], context: Context) -> None:
    await context.abort(STATUS[error.code], error.detail)


def _decoded(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BrokerError(Code.INVALID, f"not a {kind.DESCRIPTOR.name}") from None


def _settled(receipts: list[bytes], refused: dict[int, str]) -> bytes:
    listed = [Refusal(index=place, receipt=receipts[place], error=refused[place]) for place in sorted(refused)]
    return SettleResponse(refused=listed).SerializeToString()


def _credentials(tls: TlsSection) -> grpc.ServerCredentials:
    try:
        pair = Path(tls.key).read_bytes(), Path(tls.cert).read_bytes()
        authority = Path(tls.client_ca).read_bytes() if tls.client_ca else None
    except FileNotFoundError as error:
        raise TlsError(f"{error.filename}: no such file") from None
    except OSError as error:
        raise TlsError(f"{error.filename}: {error.strerror}") from None
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
