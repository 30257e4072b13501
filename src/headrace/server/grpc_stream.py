"""The streaming side of the grpcq door: deliveries as they come, within the window the peer grants.

What the peer holds goes back when its stream ends, however that happens. Nothing is buffered here: messages are taken
from the broker only once the peer has room for them and has read what was sent before.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from google.protobuf.message import DecodeError

from headrace.auth import Identity
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code
from headrace.protocols.grpcq.deliveries import encoded
from headrace.protocols.grpcq.queues_pb2 import Refusal, Settled, StreamRequest, StreamResponse
from headrace.server.grpc_queues import Failure, Queues
from headrace.server.reader import Reader

WINDOW_MAX = 10_000
FOREVER_S = 1e9

Write = Callable[[bytes], Awaitable[None]]


class StreamCall:
    """One stream. `write` sends a serialized StreamResponse and returns when the peer has room for more."""

    def __init__(
        self, queues: Queues, identity: Identity, write: Write, write_timeout_s: float, address: str = ""
    ) -> None:
        self._queues = queues
        self._identity = identity
        self._address = address
        self._write = write
        self._write_timeout_s = write_timeout_s
        self._sending = asyncio.Lock()
        self._changed = asyncio.Event()
        self._waiting: asyncio.Timeout | None = None
        self._window = 0
        self._held = 0

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Serve until the peer has nothing more to say.

        Raises BrokerError for a request that makes no sense, for a peer that does not read, and, once the peer holds
        nothing any more, when the broker drains.
        """
        first = _decoded(await anext(requests, b""))
        reader = await self._queues.join(self._identity, first.queue, self._address)
        try:
            with self._queues.serving(self.wake):
                async with asyncio.TaskGroup() as tasks:
                    pushing = tasks.create_task(self._push(reader))
                    await self._listen(first, requests)
                    pushing.cancel()
        except* BrokerError as refused:
            raise _first(refused) from None
        finally:
            reader.release()

    def wake(self) -> None:
        """Something changed that decides how many messages may be sent."""
        self._changed.set()
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def _push(self, reader: Reader) -> None:
        """Send what comes, as long as there is room."""
        while True:
            self._changed.clear()
            if self._queues.draining and not self._held:
                raise BrokerError(Code.DRAINING, "the broker is about to stop")
            room = 0 if self._queues.draining else self._window - self._held
            if room <= 0:
                await self._changed.wait()
                continue
            portions = await self._fetch(reader, room)
            if portions:
                self._held += sum(portion.count for portion in portions if portion.qos and portion.batch.qos)
                await self._send(encoded(reader.subscription, portions))

    async def _fetch(self, reader: Reader, room: int) -> list[Portion]:
        """Up to `room` messages; none when something changed meanwhile."""
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await reader.fetch(room, FOREVER_S)
        except TimeoutError:
            return []
        finally:
            self._waiting = None

    async def _listen(self, request: StreamRequest, requests: AsyncIterator[bytes]) -> None:
        """Do what the peer asks, one request after the other."""
        number = 1
        while True:
            if request.HasField("window"):
                self._window = min(request.window, WINDOW_MAX)
                self.wake()
            if request.acks or request.nacks:
                refused = await self._settle(request)
                answer = StreamResponse(settled=Settled(request=number, refused=refused))
                await self._send(answer.SerializeToString())
            data = await anext(requests, None)
            if data is None:
                return
            number += 1
            request = _decoded(data)
            if request.queue:
                raise BrokerError(Code.INVALID, "the queue is named in the first request only")

    async def _settle(self, request: StreamRequest) -> list[Refusal]:
        """Settle what a request names; what could not be."""
        receipts = list(request.acks)
        refused = await self._queues.settle(self._identity, receipts)
        for nack in request.nacks:
            failed = await self._queues.settle(self._identity, nack.receipts, Failure(nack.reason, nack.dead))
            refused |= {len(receipts) + place: error for place, error in failed.items()}
            receipts += nack.receipts
        self._held = max(0, self._held - len(receipts) + len(refused))
        self._changed.set()
        return [Refusal(index=place, receipt=receipts[place], error=refused[place]) for place in sorted(refused)]

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            try:
                async with asyncio.timeout(self._write_timeout_s):
                    await self._write(data)
            except TimeoutError:
                raise BrokerError(Code.LIMIT, "the stream is not being read") from None


def _decoded(data: bytes) -> StreamRequest:
    try:
        return StreamRequest.FromString(data)
    except DecodeError:
        raise BrokerError(Code.INVALID, "not a StreamRequest") from None


def _first(group: BaseExceptionGroup[BrokerError]) -> BrokerError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
