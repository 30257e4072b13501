"""What a servicer finds in place of gRPC's context when its call comes out of a queue.

Metadata, deadline, codes, details and abort work as in gRPC; there is no peer to send anything to. `QueueContext` is
for servicers that are plain functions, `AioQueueContext` for coroutines.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import grpc

Metadata = Sequence[tuple[str, str | bytes]]


class Aborted(Exception):
    """A servicer ended its call with `context.abort`."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}" if details else code.name)
        self.code = code
        self.details = details


class _Shared:
    """What both kinds of contexts know and do."""

    def __init__(self, queue: str, metadata: Mapping[str, str], *, attempt: int, deadline: float) -> None:
        """`deadline` is on the clock of `time.monotonic`."""
        self.attempt = attempt
        self._queue = queue
        self._metadata: Metadata = tuple((key.lower(), value) for key, value in metadata.items())
        self._deadline = deadline
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self._ended = False
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    def failure(self) -> str:
        """Why the call failed by what the servicer set; empty when it did not."""
        if self._code in (None, grpc.StatusCode.OK):
            return ""
        assert self._code is not None
        return f"{self._code.name}: {self._details}" if self._details else self._code.name

    def end(self) -> None:
        """The call is over; whoever asked to be told is told."""
        self._ended = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def invocation_metadata(self) -> Metadata:
        """The message's metadata, keys in lower case as gRPC has them."""
        return self._metadata

    def time_remaining(self) -> float:
        """Seconds until the message is delivered to somebody else."""
        return max(0.0, self._deadline - time.monotonic())

    def peer(self) -> str:
        """Where the call came from: a queue."""
        return f"queue:{self._queue}"

    def peer_identities(self) -> None:
        """Nobody is known to be there."""

    def peer_identity_key(self) -> None:
        """Nobody is known to be there."""

    def auth_context(self) -> dict[str, list[bytes]]:
        """Nothing was authenticated."""
        return {}

    def set_code(self, code: grpc.StatusCode) -> None:
        """Say how the call ends; anything but OK is a failure."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Say why."""
        self._details = details

    def code(self) -> grpc.StatusCode | None:
        """What `set_code` said."""
        return self._code

    def details(self) -> str:
        """What `set_details` said."""
        return self._details

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        """Kept for `trailing_metadata`; nobody else will see it."""
        self._trailing = trailing_metadata

    def trailing_metadata(self) -> Metadata:
        """What `set_trailing_metadata` said."""
        return self._trailing

    def set_compression(self, compression: object) -> None:
        """There is nothing to compress."""

    def disable_next_message_compression(self) -> None:
        """There is nothing to compress."""

    def _abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        if code is grpc.StatusCode.OK:
            raise ValueError("abort needs a code that is not OK")
        self._code, self._details = code, details
        raise Aborted(code, details)


class QueueContext(_Shared, grpc.ServicerContext):  # type: ignore[misc]  # the stubs' types are narrower
    """The context of a servicer that is a plain function; it runs in a thread of its own."""

    def is_active(self) -> bool:
        """Whether the call is still to be answered for."""
        return not (self._ended or self._cancelled) and self.time_remaining() > 0

    def cancel(self) -> bool:
        """Make the call a failure, whatever the servicer returns."""
        self._cancelled = True
        self._code, self._details = grpc.StatusCode.CANCELLED, "cancelled by the servicer"
        return True

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Be told when the call is over; whether there will be such a call."""
        if self._ended:
            return False
        self._callbacks.append(callback)
        return True

    def send_initial_metadata(self, initial_metadata: Metadata) -> None:
        """There is nobody to send it to."""

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the call as a failure."""
        self._abort(code, details)

    def abort_with_status(self, status: Any) -> NoReturn:
        """End the call as a failure."""
        self._abort(status.code, status.details)


class AioQueueContext(_Shared):
    """The context of a servicer that is a coroutine: grpc.aio's, without streams."""

    async def send_initial_metadata(self, initial_metadata: Metadata) -> None:
        """There is nobody to send it to."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call as a failure."""
        self._trailing = trailing_metadata or self._trailing
        self._abort(code, details)

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End the call as a failure."""
        self._abort(status.code, status.details)

    async def read(self) -> NoReturn:
        """A message carries one request, which the servicer has."""
        raise grpc.aio.UsageError("a call out of a queue has no stream of requests")

    async def write(self, message: object) -> NoReturn:
        """Nobody is there to read responses."""
        raise grpc.aio.UsageError("a call out of a queue has no stream of responses")

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Be told, with this context, when the call is over."""
        self._callbacks.append(lambda: callback(self))

    def cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self._cancelled

    def done(self) -> bool:
        """Whether the call is over."""
        return self._ended
