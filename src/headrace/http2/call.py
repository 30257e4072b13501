"""One gRPC call as its handler sees it: messages in, messages out, with back-pressure both ways."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.http2.messages import Incoming
from headrace.http2.status import Asked, GrpcError, Metadata, Status
from headrace.http2.streams import Stream
from headrace.model.batch import Buffer

if TYPE_CHECKING:
    from headrace.http2.calls import Calls
    from headrace.http2.connection import Connection


class Call:
    """A call whose headers are in and whose caller was admitted. All of it belongs to the server's event loop.

    Its handler is a task that is cancelled when the call ends before it does: given up by the peer, too late, revoked.
    `identity` is what `admit` gave; `deadline` is a time of the loop's clock; `initial_metadata` goes out with the
    first message, `trailing_metadata` with the status.
    """

    __slots__ = (
        "_callbacks", "_calls", "_connection", "begun", "certificate_name", "deadline", "ended", "gave_up",
        "half_closed", "identity", "incoming", "initial_metadata", "metadata", "method", "peer", "reader", "reserved",
        "size", "stream", "task", "touched", "trailing_metadata", "writer",
    )  # fmt: skip

    def __init__(
        self,
        connection: "Connection",
        calls: "Calls",
        stream: Stream,
        asked: Asked,
        size: int,
        identity: Any,
        now: float,
    ) -> None:
        self.method: str = asked.method
        self.metadata: Metadata = asked.metadata
        self.identity = identity
        self.peer = connection.peer
        self.certificate_name = connection.certificate_name
        self.deadline = None if asked.timeout_s is None else now + asked.timeout_s
        self.initial_metadata: Metadata = {}
        self.trailing_metadata: Metadata = {}
        self.begun = False
        self.ended = False
        self.gave_up = False
        self.half_closed = stream.remote_ended
        self.stream = stream
        self.incoming = Incoming(calls.message_max(identity), asked.encoding)
        self.task: asyncio.Task[None] | None = None
        self.touched: float | None = now
        self.size = size
        self.reserved = 0
        self.reader: asyncio.Future[None] | None = None
        self.writer: asyncio.Future[None] | None = None
        self._connection = connection
        self._calls = calls
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the answer any more. May be asked from any thread."""
        return self.ended

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Have this called when the call ends, in whatever way; at once if it has."""
        if self.ended:
            callback()
        else:
            self._callbacks.append(callback)

    async def read(self) -> bytes | None:
        """The next message of the request; None when the peer has nothing more to say.

        Raises GrpcError for a message that is too large or none at all.
        """
        while not self.incoming.complete:
            if self.half_closed or self.ended:
                if self.incoming.unfinished:
                    raise GrpcError(Status.INTERNAL, "the request ends within a message")
                return None
            assert self.reader is None, "one reader at a time"
            self.reader = asyncio.get_running_loop().create_future()
            try:
                await self.reader
            finally:
                self.reader = None
        message, size = self.incoming.take()
        self._calls.taken(self, size)
        return message

    async def write(self, *pieces: Buffer) -> None:
        """Send one message made of these pieces, which must not change any more; waits while the peer is behind.

        Raises GrpcError(CANCELLED) once the call has ended.
        """
        written = self._calls.send_message(self, pieces)
        if self._calls.behind(self):
            await self._calls.caught_up(self)
        elif written:
            await asyncio.sleep(0)  # a peer that takes all of it must not keep the loop from others

    async def writable(self) -> None:
        """Wait until the connection has room for answers: to be called before a big one is made.

        Callers go on one after the other, so what each makes before it writes is counted before the next goes on.
        """
        await self._connection.room()

    def end(self) -> None:
        """The call is over: tell those who want to know."""
        self.ended = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


Handler = Callable[[Call], Awaitable[None]]
"""Serves a call. Raising GrpcError or BrokerError ends it with that status, returning ends it with OK."""
