"""The calls of one connection: begun when their headers are in, bounded while they last, ended whatever happens.

Knows what gRPC makes of streams; when bytes come and go is the connection's matter.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.http2.call import Call, Handler
from headrace.http2.headers import literals
from headrace.http2.messages import PREFIX
from headrace.http2.room import Room
from headrace.http2.session import LOW_WATER, Session
from headrace.http2.status import (
    BEGIN,
    ENCODINGS,
    END_OK,
    Asked,
    GrpcError,
    Status,
    fields_of,
    is_grpc,
    trailer_fields,
)
from headrace.http2.streams import Event, Opened, Received, Reset, Stream
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError

if TYPE_CHECKING:
    from headrace.http2.connection import Connection
    from headrace.http2.server import GrpcServer

JOINED_MAX = 16_384
"""Messages up to here are sent as one piece; bigger ones as they are given, uncopied."""
REFUSAL_WAIT_S = 0.05
NO_GRPC = b"This address speaks gRPC.\n"


class Calls:
    """What is under way on a connection. `identity` is who was let in last; nobody was before it is `trusted`."""

    def __init__(self, server: "GrpcServer", connection: "Connection", session: Session) -> None:
        self.open: dict[Call, None] = {}
        self.metadata = 0
        self.trusted = False
        self.identity: Any = None
        self._server = server
        self._limits = server.limits
        self._connection = connection
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._room = Room(
            session, server.ledger,
            bound=server.limits.connection_buffer_max, ahead=server.limits.stream_window, moved=connection.flush_soon,
        )  # fmt: skip

    # what comes in

    def take_in(self, events: list[Event]) -> None:
        """Do what the events of a read say."""
        for event in events:
            if type(event) is Received:
                self._on_data(event)
            elif type(event) is Opened:
                self._on_call(event)
            elif type(event) is Reset and isinstance(event.stream.call, Call):
                self.drop(event.stream.call)

    def _on_call(self, event: Opened) -> None:
        stream, request = event.stream, event.request
        if stream.local_ended:
            return
        if not is_grpc(request):
            if event.ended:
                self._answer_plainly(stream)
            return
        try:
            if request.meaning is None:
                request.meaning = Asked(request)
            handler, identity = self._admit(request.meaning, request.size)
        except GrpcError as error:
            self._refuse(stream, error)
            return
        except BrokerError as error:
            self._refuse(stream, GrpcError.of(error))
            return
        if identity is not None:
            self._trust(identity)
        call = Call(self._connection, self, stream, request.meaning, request.size, identity, self._connection.now)
        stream.call = call
        self.metadata += call.size
        self.open[call] = None
        if call.deadline is not None:
            self._connection.wake_at(call.deadline)
        if not event.ended:
            self._connection.wake_at(self._connection.now + self._limits.stall_timeout_s)
        call.task = self._loop.create_task(self._serve(call, handler))

    def _admit(self, asked: Asked, size: int) -> tuple[Handler, Any]:
        """Who calls what.

        Raises GrpcError, BrokerError.
        """
        handler = self._server.methods.get(asked.method)
        if handler is None:
            raise GrpcError(Status.UNIMPLEMENTED, "Method not found!")
        if size > self._limits.header_list_max:
            raise GrpcError(Status.RESOURCE_EXHAUSTED, f"metadata of more than {self._limits.header_list_max} bytes")
        identity = self._server.admit(
            asked.method, asked.metadata, self._connection.peer, self._connection.certificate_name
        )
        if asked.encoding not in ("identity", "gzip") or (identity is None and asked.encoding != "identity"):
            offered = {"grpc-accept-encoding": ENCODINGS.decode()}
            raise GrpcError(Status.UNIMPLEMENTED, f"grpc-encoding {asked.encoding[:50]} is not taken", offered)
        if identity is None and len(self.open) >= self._limits.stranger_streams_max:
            raise GrpcError(Status.RESOURCE_EXHAUSTED, "too many calls for a stranger")
        self._server.begin_call(identity)
        return handler, identity

    def _trust(self, identity: Any) -> None:
        """The peer is known: it may have more under way."""
        if not self.trusted:
            self.trusted = True
            self._server.known(self._connection)
            self._session.open_connection(self._limits.connection_buffer_max * 2)
        self.identity = identity

    def _refuse(self, stream: Stream, error: GrpcError) -> None:
        """End a call before it begins: with the first of its body, or soon, for there are clients that hold a call
        for broken when its answer is there before they have said a word."""
        if stream.remote_ended:
            self._refuse_now(stream, error)
        else:
            stream.call = error
            self._loop.call_later(REFUSAL_WAIT_S, self._refuse_now, stream, error)

    def _refuse_now(self, stream: Stream, error: GrpcError) -> None:
        fields = trailer_fields(error.status, error.details, error.trailing_metadata)
        self._session.send_headers(stream, BEGIN + literals(fields), end=True)
        self._connection.flush_soon()

    def _answer_plainly(self, stream: Stream) -> None:
        """Tell somebody who does not speak gRPC what this is."""
        fields = [(b":status", b"415"), (b"content-type", b"text/plain")]
        self._session.send_headers(stream, literals(fields))
        self._session.send_data(stream, (NO_GRPC,), len(NO_GRPC))
        self._session.send_trailers(stream, literals([(b"grpc-status", b"2")]))

    def _on_data(self, event: Received) -> None:
        stream = event.stream
        call = stream.call
        if not isinstance(call, Call):
            self._session.release(stream, event.size)
            if isinstance(call, GrpcError):
                self._refuse_now(stream, call)
            elif event.ended and not stream.local_ended:
                self._answer_plainly(stream)
            return
        if call.ended:
            return
        self._session.release(stream, event.size - len(event.data))
        call.half_closed = call.half_closed or event.ended
        if len(event.data):
            try:
                call.incoming.feed(event.data)
            except GrpcError as error:
                self._end(call, error)
                return
            self._watch(call)
        if call.reader is not None and not call.reader.done() and (call.incoming.complete or call.half_closed):
            call.reader.set_result(None)

    def _watch(self, call: Call) -> None:
        """Give a message that has begun room and time to end."""
        if not call.half_closed and call.stream.left * 2 < call.stream.target:
            self._room.settle(call)
        if call.incoming.unfinished:
            call.touched = self._connection.now
            self._connection.wake_at(self._connection.now + self._limits.stall_timeout_s)
        else:
            call.touched = None

    def message_max(self, identity: Any) -> int:
        """What a message may measure, by who sends it."""
        return self._limits.message_max if identity is not None else self._limits.stranger_message_max

    def taken(self, call: Call, size: int) -> None:
        """The handler has a message of so many bytes: the peer may send as many again."""
        if call.ended:
            return
        self._session.release(call.stream, size)
        if call.incoming.unfinished:
            call.touched = self._connection.now
        if call.reserved:
            self._room.settle(call)
        if self._session.unsent:
            self._connection.flush_soon()

    # their ends

    async def _serve(self, call: Call, handler: Handler) -> None:
        """Run the handler to its end, whatever that is."""
        try:
            await handler(call)
        except GrpcError as error:
            self._end(call, error)
        except BrokerError as error:
            self._end(call, GrpcError.of(error))
        except asyncio.CancelledError:
            self._end(call, GrpcError(Status.CANCELLED, "cancelled"))
            raise
        except Exception as error:
            self._server.tell(
                "http2.failed", peer=self._connection.peer, method=call.method, cause=repr(error), exc_info=error
            )
            self._end(call, GrpcError(Status.INTERNAL, "internal error"))
        else:
            self._end(call, None)

    def _end(self, call: Call, error: GrpcError | None, *, abandon: bool = False) -> None:
        """Tell the peer how the call ended, and let go of it."""
        if call.ended:
            return
        trailers = END_OK if error is None and not call.trailing_metadata else self._trailers(call, error)
        if abandon or call.gave_up:
            self._session.abandon(call.stream)
        if not call.begun and (error is None or call.initial_metadata):
            self._begin(call)
        self._session.send_trailers(call.stream, trailers if call.begun else BEGIN + trailers)
        if error is None and call.identity is None:
            self._connection.arrived = self._connection.now
        self.drop(call)
        self._connection.flush_soon()

    def _trailers(self, call: Call, error: GrpcError | None) -> bytes:
        status, details, own = Status.OK, "", dict(call.trailing_metadata)
        if error is not None:
            status, details = error.status, error.details
            own |= error.trailing_metadata
        try:
            return literals(trailer_fields(status, details, own))
        except ValueError as bad:
            self._failed(call, str(bad), bad)
            return literals(trailer_fields(Status.INTERNAL, "internal error", {}))

    def _failed(self, call: Call, cause: str, error: Exception) -> None:
        peer = self._connection.peer
        self._server.tell("http2.failed", peer=peer, method=call.method, cause=cause, exc_info=error)

    def drop(self, call: Call) -> None:
        """Let go of a call; its handler is cancelled if it is not done."""
        if call not in self.open:
            return
        del self.open[call]
        self.metadata -= call.size
        self._server.end_call(call.identity)
        self._room.leave(call)
        call.end()
        if call.task is not None and not call.task.done() and call.task is not asyncio.current_task():
            call.task.cancel()

    def cut_short(self, call: Call, error: GrpcError) -> None:
        """End a call from outside: what was not sent of it is not sent any more."""
        self._end(call, error, abandon=True)

    # answers

    def _begin(self, call: Call) -> None:
        call.begun = True
        block = BEGIN
        if call.initial_metadata:
            block = BEGIN + literals(fields_of(call.initial_metadata))
        self._session.send_headers(call.stream, block)

    def send_message(self, call: Call, pieces: Sequence[Buffer]) -> bool:
        """Queue a message; whether it was so much that it was written at once.

        Raises GrpcError(CANCELLED) for a call that has ended.
        """
        if call.ended:
            raise GrpcError(Status.CANCELLED, "the call has ended")
        if not call.begun:
            self._begin(call)
        views = [memoryview(piece).cast("B") for piece in pieces] if len(pieces) > 1 else pieces
        size = sum(map(len, views))
        prefix = PREFIX.pack(0, size)
        if size <= JOINED_MAX:
            self._session.send_data(call.stream, (b"".join((prefix, *views)),), size + PREFIX.size)
        else:
            self._session.send_data(call.stream, (prefix, *(view for view in views if len(view))), size + PREFIX.size)
        if call.stream.stuck_since is None:
            call.stream.stuck_since, call.stream.stuck_at = self._loop.time(), call.stream.queued
            self._connection.wake_at(call.stream.stuck_since + self._limits.write_timeout_s)
        if call.stream.queued <= LOW_WATER:
            self._connection.flush_soon()
            return False
        self._connection.flush()
        return True

    def behind(self, call: Call) -> bool:
        """Whether a call has more unsent than it should before it goes on."""
        return call.stream.queued > LOW_WATER

    async def caught_up(self, call: Call) -> None:
        """Return when little of the call is unsent."""
        assert call.writer is None, "one writer at a time"
        call.stream.waiting = True
        call.writer = self._loop.create_future()
        try:
            await call.writer
        except asyncio.CancelledError:
            call.gave_up = True
            raise
        finally:
            call.stream.waiting = False
            call.writer = None

    def revoke(self, still_valid: Callable[[Any], bool], cause: str) -> None:
        """End the calls of those who are no longer let in, and the connection if nobody else has one on it."""
        if self.identity is None or self._connection.closing:
            return
        valid = None
        for call in list(self.open):
            if call.identity is None or still_valid(call.identity):
                valid = valid or call.identity
            else:
                self.cut_short(call, GrpcError(Status.UNAUTHENTICATED, cause))
        if still_valid(self.identity):
            return
        self.identity = valid
        if valid is None:
            self._connection.leave(cause)

    def close(self) -> None:
        """End every call: the connection is gone."""
        for call in list(self.open):
            self.drop(call)
        self._room.close()
