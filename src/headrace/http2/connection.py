"""One HTTP/2 connection on the event loop: bytes in and out of its session, calls begun, bounded and ended.

A read is worked off before the next begins, all connections of a server share its arena, and everything one turn of
the loop has to send goes out in one write.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from headrace.http2 import deadlines, frames
from headrace.http2.call import Call, Handler
from headrace.http2.frames import Http2Error
from headrace.http2.headers import literals
from headrace.http2.messages import PREFIX
from headrace.http2.room import FIRST_WINDOW, Room
from headrace.http2.session import EVENTS_MAX, LOW_WATER, Session
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
from headrace.http2.streams import Opened, Received, Reset, Stream
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError

if TYPE_CHECKING:
    from headrace.http2.server import GrpcServer

STRANGER_COST = 32_768
"""What a connection costs before it has sent a byte, roughly."""
JOINED_MAX = 16_384
"""Messages up to here are sent as one piece; bigger ones as they are given, uncopied."""
WRITE_JOINED_MAX = 65_536
WRITE_CHUNK = 1 << 20
PING_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
FRAME_COST, STREAM_COST = 160, 1024
CONTROL_MAX = 1024
"""Frames waiting for a peer that does not read, after which nothing more of it is read."""
NO_GRPC = b"This address speaks gRPC.\n"


class Connection(asyncio.BufferedProtocol):
    """A peer."""

    def __init__(self, server: "GrpcServer", address: str) -> None:
        self.peer = address
        self.certificate_name: str | None = None
        self.trusted = False
        self.identity: Any = None
        self.calls: dict[Call, None] = {}
        self.session = Session(
            streams_max=server.limits.streams_max, window=FIRST_WINDOW, header_list_max=server.limits.header_list_max
        )
        self._server = server
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._reading = True
        self._closing = False
        self._flushing: asyncio.Handle | None = None
        self._congested_since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._heard = self._now = self._loop.time()
        self._arrived = self._heard
        self._pinged = False
        self._room = Room(
            self.session, server.ledger,
            bound=server.limits.connection_buffer_max, ahead=server.limits.stream_window, moved=self._flush_soon,
        )  # fmt: skip
        self._metadata = 0
        self._gate: deque[asyncio.Future[None]] = deque()

    # the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello; what came in before this is worked off."""
        self._transport = cast(asyncio.Transport, transport)
        self._server.arrived(self)
        self._wake_at(self._arrived + min(self._limits.auth_timeout_s, self._limits.idle_ping_s))
        self._flush()
        if self._rest:
            self._again()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for the next read: behind what is left of the last."""
        rest = len(self._rest)
        self._server.arena[:rest] = self._rest
        return self._server.arena_view[rest:]

    def buffer_updated(self, nbytes: int) -> None:
        """Work off what has arrived."""
        filled, self._rest = len(self._rest) + nbytes, b""
        view = self._server.arena_view[:filled]
        self._heard = self._now = self._loop.time()
        self._pinged = False
        if self._transport is None:
            self._rest = bytes(view)
        elif not self._closing:
            self._work(view)

    def eof_received(self) -> bool:
        """The peer says no more, and then takes no more either."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End every call; forget the peer."""
        self._closing = True
        self._transport = None
        for handle in (self._alarm, self._flushing):
            if handle is not None:
                handle.cancel()
        for call in list(self.calls):
            self._drop(call)
        for waiting in self._gate:
            waiting.cancel()
        self._room.close()
        self._server.left(self)

    def pause_writing(self) -> None:
        """The peer is behind with reading."""
        self._congested_since = self._now = self._loop.time()
        self._wake_at(self._now + self._limits.write_timeout_s)

    def resume_writing(self) -> None:
        """The peer caught up."""
        self._congested_since = None
        self._flush()
        self._read_on()

    # what comes in

    def _work(self, view: memoryview) -> None:
        session = self.session
        try:
            done = session.receive(view, self._now)
        except Http2Error as error:
            self._take_in()
            self._server.tell("http2.broken", peer=self.peer, cause=str(error), code=error.code)
            self._close()
            return
        unfinished = len(session.events) >= EVENTS_MAX
        self._take_in()
        if done < len(view):
            self._rest = bytes(view[done:])
        if not self.trusted:
            self._server.weigh(self, self._cost())
        if unfinished:
            self._read(False)
            self._loop.call_soon(self._again)
        else:
            self._read_on()
        self._flush_soon()

    def _again(self) -> None:
        """Go on with what one turn did not get done."""
        if self._closing:
            return
        rest, self._rest = self._rest, b""
        self._work(memoryview(rest))

    def _take_in(self) -> None:
        """Do what the events of a read say."""
        events, self.session.events = self.session.events, []
        for event in events:
            if type(event) is Received:
                self._on_data(event)
            elif type(event) is Opened:
                self._on_call(event)
            elif type(event) is Reset and isinstance(event.stream.call, Call):
                self._drop(event.stream.call)

    def _on_call(self, event: Opened) -> None:
        stream, request = event.stream, event.request
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
        call = Call(self, stream, request.meaning, request.size, identity, self._now)
        stream.call = call
        self._metadata += call.size
        self.calls[call] = None
        if call.deadline is not None:
            self._wake_at(call.deadline)
        if not event.ended:
            self._wake_at(self._now + self._limits.stall_timeout_s)
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
        identity = self._server.admit(asked.method, asked.metadata, self.peer, self.certificate_name)
        if asked.encoding not in ("identity", "gzip") or (identity is None and asked.encoding != "identity"):
            offered = {"grpc-accept-encoding": ENCODINGS.decode()}
            raise GrpcError(Status.UNIMPLEMENTED, f"grpc-encoding {asked.encoding[:50]} is not taken", offered)
        if identity is None and len(self.calls) >= self._limits.stranger_streams_max:
            raise GrpcError(Status.RESOURCE_EXHAUSTED, "too many calls for a stranger")
        self._server.begin_call()
        return handler, identity

    def _trust(self, identity: Any) -> None:
        """The peer is known: it may have more under way."""
        if not self.trusted:
            self.trusted = True
            self._server.known(self)
            self.session.open_connection(self._limits.connection_buffer_max * 2)
        self.identity = identity

    def _refuse(self, stream: Stream, error: GrpcError) -> None:
        """End a call before it begins; nothing of its body is kept."""
        fields = trailer_fields(error.status, error.details, error.trailing_metadata)
        self.session.send_headers(stream, BEGIN + literals(fields), end=True)

    def _answer_plainly(self, stream: Stream) -> None:
        """Tell somebody who does not speak gRPC what this is."""
        fields = [(b":status", b"415"), (b"content-type", b"text/plain")]
        self.session.send_headers(stream, literals(fields))
        self.session.send_data(stream, (NO_GRPC,), len(NO_GRPC))
        self.session.send_trailers(stream, literals([(b"grpc-status", b"2")]))

    def _on_data(self, event: Received) -> None:
        stream = event.stream
        call = stream.call
        if not isinstance(call, Call):
            self.session.release(stream, event.size)
            if event.ended and not stream.local_ended:
                self._answer_plainly(stream)
            return
        if call.ended:
            return
        self.session.release(stream, event.size - len(event.data))
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
            call.touched = self._now
            self._wake_at(self._now + self._limits.stall_timeout_s)
        else:
            call.touched = None

    def message_max(self, identity: Any) -> int:
        """What a message may measure, by who sends it."""
        return self._limits.message_max if identity is not None else self._limits.stranger_message_max

    def taken(self, call: Call, size: int) -> None:
        """The handler has a message of so many bytes: the peer may send as many again."""
        if call.ended:
            return
        self.session.release(call.stream, size)
        if call.incoming.unfinished:
            call.touched = self._now
        if call.reserved:
            self._room.settle(call)
        if self.session.unsent:
            self._flush_soon()

    # calls

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
            self._server.tell("http2.failed", peer=self.peer, method=call.method, cause=repr(error), exc_info=error)
            self._end(call, GrpcError(Status.INTERNAL, "internal error"))
        else:
            self._end(call, None)

    def _end(self, call: Call, error: GrpcError | None, *, abandon: bool = False) -> None:
        """Tell the peer how the call ended, and let go of it."""
        if call.ended:
            return
        trailers = END_OK if error is None and not call.trailing_metadata else self._trailers(call, error)
        if abandon:
            self.session.abandon(call.stream)
        if not call.begun and (error is None or call.initial_metadata):
            self._begin(call)
        self.session.send_trailers(call.stream, trailers if call.begun else BEGIN + trailers)
        if error is None and call.identity is None:
            self._arrived = self._now
        self._drop(call)
        self._flush_soon()

    def _trailers(self, call: Call, error: GrpcError | None) -> bytes:
        status, details, own = Status.OK, "", dict(call.trailing_metadata)
        if error is not None:
            status, details = error.status, error.details
            own |= error.trailing_metadata
        try:
            return literals(trailer_fields(status, details, own))
        except ValueError as bad:
            self._server.tell("http2.failed", peer=self.peer, method=call.method, cause=str(bad))
            return literals(trailer_fields(Status.INTERNAL, "internal error", {}))

    def _drop(self, call: Call) -> None:
        """Let go of a call; its handler is cancelled if it is not done."""
        if call not in self.calls:
            return
        del self.calls[call]
        self._metadata -= call.size
        self._server.end_call()
        self._room.leave(call)
        call.end()
        if call.task is not None and not call.task.done() and call.task is not asyncio.current_task():
            call.task.cancel()

    def cut_short(self, call: Call, error: GrpcError) -> None:
        """End a call from outside: what was not sent of it is not sent any more."""
        self._end(call, error, abandon=True)

    # what goes out

    def _begin(self, call: Call) -> None:
        call.begun = True
        block = BEGIN
        if call.initial_metadata:
            block = BEGIN + literals(fields_of(call.initial_metadata))
        self.session.send_headers(call.stream, block)

    def send_message(self, call: Call, pieces: Sequence[Buffer]) -> None:
        """Queue a message.

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
            self.session.send_data(call.stream, (b"".join((prefix, *views)),), size + PREFIX.size)
        else:
            self.session.send_data(call.stream, (prefix, *(view for view in views if len(view))), size + PREFIX.size)
        if call.stream.queued > LOW_WATER:
            self._flush()
        else:
            self._flush_soon()
        self._wake_at(self._loop.time() + self._limits.write_timeout_s)

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
        finally:
            call.stream.waiting = False
            call.writer = None

    async def room(self) -> None:
        """Return when the connection's unsent answers are below their bound, one caller at a time."""
        if self.session.queued < self._limits.write_buffer_max and not self._gate:
            return
        turn = self._loop.create_future()
        self._gate.append(turn)
        self._flush_soon()
        await turn

    def _flush_soon(self) -> None:
        """Write at the end of this turn of the loop."""
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        session = self.session
        while self._congested_since is None:
            out = session.data_to_send(WRITE_CHUNK)
            if not out:
                break
            if len(out) == 1:
                transport.write(out[0])
            elif sum(map(len, out)) <= WRITE_JOINED_MAX:
                transport.write(b"".join(out))
            else:
                transport.writelines(out)
        for stream in session.drained:
            call = stream.call
            if call.writer is not None and not call.writer.done():
                call.writer.set_result(None)
        session.drained.clear()
        while self._gate and session.queued < self._limits.write_buffer_max:
            turn = self._gate.popleft()
            if not turn.done():
                turn.set_result(None)
                self._flush_soon()
                break
        if session.leaving and not self._closing and not session.streams:
            self._close()
        elif self._closing and self._congested_since is None:
            transport.close()

    # time

    def _wake_at(self, when: float) -> None:
        """Look at what is due, at this time or before."""
        if self._alarm is not None:
            if self._alarm_at <= when:
                return
            self._alarm.cancel()
        self._alarm_at = when
        self._alarm = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """End what has taken too long, and find out when to look next."""
        self._alarm = None
        self._now = now = self._loop.time()
        if self._closing:
            self.abort("does not read")
            return
        since = self._congested_since
        if since is not None and now - since >= self._limits.write_timeout_s:
            self.abort("does not read")
            return
        if not self.trusted and now - self._arrived >= self._limits.auth_timeout_s:
            self.leave("nobody made himself known")
            return
        if not self._still_there(now):
            self.abort("is silent")
            return
        for stream in list(self.session.streams.values()):
            self._look_at(stream, now)
        self._wake_at(self._next_look(now))

    def _still_there(self, now: float) -> bool:
        """Whether the peer gives signs of life, after asking for one."""
        silent = now - self._heard
        if silent < self._limits.idle_ping_s:
            return True
        if not self._pinged:
            self._pinged = True
            self.session.ping()
            self._flush_soon()
        return silent < self._limits.idle_ping_s + PING_TIMEOUT_S

    def _look_at(self, stream: Stream, now: float) -> None:
        """End a stream that has taken too long."""
        call = stream.call
        error = deadlines.stuck(stream, now, self._limits)
        if call is None or call.ended:
            if error is not None:
                self.session.reset(stream, frames.CANCEL)
                self._flush_soon()
            return
        error = error or deadlines.overdue(call, now, self._limits)
        if error is not None:
            self.cut_short(call, error)

    def _next_look(self, now: float) -> float:
        limits = self._limits
        times = [self._heard + limits.idle_ping_s + (PING_TIMEOUT_S if self._pinged else 0)]
        if self._congested_since is not None:
            times.append(self._congested_since + limits.write_timeout_s)
        if not self.trusted:
            times.append(self._arrived + limits.auth_timeout_s)
        for stream in self.session.streams.values():
            if stream.stuck_since is not None:
                times.append(stream.stuck_since + limits.write_timeout_s)
        for call in self.calls:
            times.append(deadlines.due(call, limits))
        return max(min(times), now + 0.001)

    # the end

    def revoke(self, still_valid: Callable[[Any], bool]) -> None:
        """End the calls of those who are no longer let in, and the connection if nobody else has one on it."""
        if self.identity is None or self._closing:
            return
        valid = None
        for call in list(self.calls):
            if call.identity is None or still_valid(call.identity):
                valid = valid or call.identity
            else:
                self.cut_short(call, GrpcError(Status.UNAUTHENTICATED, "the key or certificate is no longer valid"))
        if still_valid(self.identity):
            return
        self.identity = valid
        if valid is None:
            self.leave("the key or certificate is no longer valid")

    def leave(self, cause: str = "", code: int = frames.NO_ERROR) -> None:
        """Tell the peer to go, and close."""
        if not self._closing:
            self.session.go_away(code, cause)
            self._close()

    def drain(self) -> None:
        """Take no new calls, and close when the last one has ended."""
        self.session.go_away(frames.NO_ERROR, "the server is about to stop")
        self._flush_soon()

    def abort(self, cause: str) -> None:
        """Cut the peer off."""
        self._server.tell("http2.aborted", peer=self.peer, cause=cause)
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        """Close once what can be sent is sent, by force if that takes too long."""
        for call in list(self.calls):
            self._drop(call)
        self._closing = True
        self._read(False)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._wake_at(self._loop.time() + CLOSE_TIMEOUT_S)
        self._flush()

    def _read_on(self) -> None:
        """Read, unless the peer itself does not and answers pile up."""
        self._read(self._congested_since is None or self.session.unsent <= CONTROL_MAX)

    def _read(self, wanted: bool) -> None:
        if wanted is not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _cost(self) -> int:
        """What a stranger costs by now, roughly."""
        session = self.session
        kept = len(self._rest) + session.held + self._metadata
        return STRANGER_COST + kept + FRAME_COST * session.unsent + STREAM_COST * len(session.streams)
