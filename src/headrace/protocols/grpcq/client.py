"""An asyncio client of our queue service: publish, consume, settle, stream.

Connections are gRPC's: made when first needed, made anew when lost. A call that fails because nobody answers raises
ConnectionLost: what it asked may or may not have happened.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import grpc

from headrace.model.errors import HeadraceError
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import (
    AckRequest,
    ConsumeRequest,
    ConsumeResponse,
    Delivery,
    NackRequest,
    PublishRequest,
    PublishResponse,
    Refusal,
    Settled,
    SettleResponse,
    StreamRequest,
    StreamResponse,
)

SERVICE = "headrace.grpcq.v1.Queues"
MESSAGE_SIZE_MAX = 64 << 20
WAIT_SLACK_S = 10.0

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know it
_LOST = frozenset((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))


class ConnectionLost(HeadraceError):
    """Nobody answers, or not in time."""


class Refused(HeadraceError):
    """The broker said no; `code` is gRPC's name for the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class GrpcqClient:
    """The queues of one broker. Use as an async context manager, or `close` it."""

    def __init__(
        self,
        endpoint: str,
        key: str = "",
        *,
        ca: Path | str = "",
        certificate: Path | str = "",
        private_key: Path | str = "",
        server_name: str = "",
        timeout_s: float = 30.0,
    ) -> None:
        """`endpoint` is grpc://host:port or grpcs://host:port; the files are for the latter.

        Raises ValueError for another endpoint, OSError for files that cannot be read.
        """
        parts = urlsplit(endpoint)
        if parts.scheme not in ("grpc", "grpcs") or parts.hostname is None or parts.port is None:
            raise ValueError(f"endpoint {endpoint!r} is not grpc://host:port or grpcs://host:port")
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        if server_name:
            options.append(("grpc.ssl_target_name_override", server_name))
        if parts.scheme == "grpc":
            self._channel: Any = grpc.aio.insecure_channel(parts.netloc, options=options)
        else:
            files = [Path(name).read_bytes() if name else None for name in (ca, private_key, certificate)]
            credentials = grpc.ssl_channel_credentials(*files)
            self._channel = grpc.aio.secure_channel(parts.netloc, credentials, options=options)
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._timeout_s = timeout_s
        self._publish = self._method("Publish", PublishResponse)
        self._consume = self._method("Consume", ConsumeResponse)
        self._ack = self._method("Ack", SettleResponse)
        self._nack = self._method("Nack", SettleResponse)

    async def publish(self, queue: str, messages: Iterable[Message | bytes]) -> None:
        """Store all messages or none; durable on return. Missing ids and timestamps are filled in by the broker.

        Raises Refused, or ConnectionLost when it is not known whether they are stored. Messages with ids of their own
        may then be published again: within `grpcq.dedup_s` the broker stores each once.
        """
        serialized = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]
        await self._call(self._publish, PublishRequest(queue=queue, messages=serialized), self._timeout_s)

    async def consume(
        self, queue: str, max_batch: int = 10, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> list[Delivery]:
        """Up to `max_batch` messages, after waiting for the first up to `wait_s`.

        They come back to the queue after `visibility_s`, or else the server's setting, unless they are settled.
        Raises Refused or ConnectionLost.
        """
        request = ConsumeRequest(
            queue=queue, max_batch=max_batch, wait_ms=int(wait_s * 1000), visibility_ms=int(visibility_s * 1000)
        )
        response = await self._call(self._consume, request, wait_s + WAIT_SLACK_S)
        return list(response.deliveries)

    async def ack(self, receipts: Sequence[bytes]) -> list[Refusal]:
        """The messages are done; what could not be settled. Durable on return.

        Raises Refused or ConnectionLost.
        """
        response = await self._call(self._ack, AckRequest(receipts=receipts), self._timeout_s)
        return list(response.refused)

    async def nack(self, receipts: Sequence[bytes], reason: str = "", *, dead: bool = False) -> list[Refusal]:
        """The messages failed: they are tried again or, if `dead`, never; what could not be settled.

        Raises Refused or ConnectionLost.
        """
        request = NackRequest(receipts=receipts, reason=reason, dead=dead)
        response = await self._call(self._nack, request, self._timeout_s)
        return list(response.refused)

    @asynccontextmanager
    async def stream(self, queue: str, window: int) -> AsyncIterator["Stream"]:
        """Messages as they come, at most `window` unsettled at once; what is not settled at the end goes back."""
        method = self._channel.stream_stream(
            f"/{SERVICE}/Stream",
            request_serializer=StreamRequest.SerializeToString,
            response_deserializer=StreamResponse.FromString,
        )
        call = method(metadata=self._metadata)
        stream = Stream(call)
        try:
            await stream.send(StreamRequest(queue=queue, window=window))
            yield stream
        finally:
            call.cancel()

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _method(self, name: str, response: Any) -> Any:
        return self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )

    async def _call(self, method: Any, request: Any, timeout_s: float) -> Any:
        try:
            return await method(request, metadata=self._metadata, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise failure(error) from None


class Stream:
    """An open stream. One task reads it, others may settle."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._sending = asyncio.Lock()
        self.requests = 0

    async def send(self, request: StreamRequest) -> int:
        """Send a request; its number, which the answer to what it settles names.

        Raises Refused or ConnectionLost when the stream has ended.
        """
        async with self._sending:
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                raise await self._ended() from None
            self.requests += 1
            return self.requests

    async def settle(
        self, acks: Sequence[bytes] = (), nacks: Sequence[bytes] = (), *, reason: str = "", dead: bool = False
    ) -> int:
        """Ask for deliveries to be settled; the number of the request."""
        failed = [NackRequest(receipts=nacks, reason=reason, dead=dead)] if nacks else []
        return await self.send(StreamRequest(acks=acks, nacks=failed))

    async def set_window(self, window: int) -> None:
        """From now on, at most so many messages unsettled at once."""
        await self.send(StreamRequest(window=window))

    async def read(self) -> tuple[list[Delivery], Settled | None]:
        """What comes next: deliveries, or the answer to a request that settled something.

        Raises Refused or ConnectionLost when the stream has ended.
        """
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise failure(error) from None
        if response is _EOF:
            raise await self._ended()
        return list(response.deliveries), response.settled if response.HasField("settled") else None

    async def _ended(self) -> HeadraceError:
        code, details = await self._call.code(), await self._call.details()
        return _failure(code, details or "the stream has ended")


def failure(error: grpc.aio.AioRpcError) -> HeadraceError:
    """What a failed call means."""
    return _failure(error.code(), error.details() or "")


def _failure(code: grpc.StatusCode, details: str) -> HeadraceError:
    if code in _LOST or code is grpc.StatusCode.OK:
        return ConnectionLost(f"{code.name}: {details}")
    return Refused(code.name, details)
