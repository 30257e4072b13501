"""One HTTP/2 connection on the event loop: bytes in and out of its session, calls begun, bounded and ended.

A read is worked off before the next begins, all connections of a server share its arena, and everything one turn of
the loop has to send goes out in one write.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from headrace.http2 import deadlines, frames
from headrace.http2.call import Call
from headrace.http2.calls import Calls
from headrace.http2.frames import Http2Error
from headrace.http2.room import FIRST_WINDOW
from headrace.http2.session import EVENTS_MAX, Session
from headrace.http2.status import GrpcError, Status
from headrace.http2.streams import Stream

if TYPE_CHECKING:
    from headrace.http2.server import GrpcServer

WRITE_JOINED_MAX = 65_536
WRITE_CHUNK = 1 << 20
PING_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
FRAME_COST, STREAM_COST = 160, 1024
CONTROL_MAX = 1024
"""Frames waiting for a peer that does not read, after which nothing more of it is read."""


class Connection(asyncio.BufferedProtocol):
    """A peer."""

    def __init__(self, server: "GrpcServer", address: str) -> None:
        self.peer = address
        self.certificate_name: str | None = None
        self.session = Session(
            streams_max=server.limits.streams_max, window=FIRST_WINDOW, header_list_max=server.limits.header_list_max
        )
        self._server = server
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._reading = True
        self.closing = False
        self._flushing: asyncio.Handle | None = None
        self._congested_since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._heard = self.now = self._loop.time()
        self.arrived = self._heard
        self._pinged = False
        self.calls = Calls(server, self, self.session)
        self._gate: deque[asyncio.Future[None]] = deque()

    # the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = cast(asyncio.Transport, transport)
        self._server.arrived(self)
        self.wake_at(self.arrived + min(self._limits.auth_timeout_s, self._limits.idle_ping_s))
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for the next read: behind what is left of the last."""
        rest = len(self._rest)
        self._server.arena[:rest] = self._rest
        return self._server.arena_view[rest:]

    def buffer_updated(self, nbytes: int) -> None:
        """Work off what has arrived."""
        filled, self._rest = len(self._rest) + nbytes, b""
        view = self._server.arena_view[:filled]
        self._heard = self.now = self._loop.time()
        self._pinged = False
        if not self.closing:
            self._work(view)

    def eof_received(self) -> bool:
        """The peer says no more, and then takes no more either."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End every call; forget the peer."""
        self.closing = True
        self._transport = None
        for handle in (self._alarm, self._flushing):
            if handle is not None:
                handle.cancel()
        self.calls.close()
        for waiting in self._gate:
            waiting.cancel()
        self._server.left(self)

    def pause_writing(self) -> None:
        """The peer is behind with reading."""
        self._congested_since = self.now = self._loop.time()
        self.wake_at(self.now + self._limits.write_timeout_s)

    def resume_writing(self) -> None:
        """The peer caught up."""
        self._congested_since = None
        self.flush()
        self._read_on()

    # what comes in

    def _work(self, view: memoryview) -> None:
        session = self.session
        try:
            done = session.receive(view, self.now)
        except Http2Error as error:
            self._take_in()
            self._server.tell("http2.broken", peer=self.peer, cause=str(error), code=error.code)
            self._close()
            return
        unfinished = len(session.events) >= EVENTS_MAX
        self._take_in()
        if done < len(view):
            self._rest = bytes(view[done:])
        if not self.calls.trusted:
            self._server.weigh(self, self._cost())
        if unfinished:
            self._read(False)
            self._loop.call_soon(self._again)
        else:
            self._read_on()
        self.flush_soon()

    def _take_in(self) -> None:
        events, self.session.events = self.session.events, []
        self.calls.take_in(events)

    def _again(self) -> None:
        """Go on with what one turn did not get done."""
        if self.closing:
            return
        rest, self._rest = self._rest, b""
        self._work(memoryview(rest))

    async def room(self) -> None:
        """Return when the connection's unsent answers are below their bound, one caller at a time.

        Raises GrpcError when the peer does not read.
        """
        if self.session.queued < self._limits.write_buffer_max and not self._gate:
            return
        turn = self._loop.create_future()
        self._gate.append(turn)
        self.flush_soon()
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await turn
        except TimeoutError:
            raise GrpcError(Status.RESOURCE_EXHAUSTED, "the stream is not being read") from None

    def flush_soon(self) -> None:
        """Write at the end of this turn of the loop."""
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is queued, as far as the peer takes it."""
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
            writer = stream.call.writer
            if writer is not None and not writer.done():
                writer.set_result(None)
        session.drained.clear()
        while self._gate and session.queued < self._limits.write_buffer_max:
            turn = self._gate.popleft()
            if not turn.done():
                turn.set_result(None)
                self.flush_soon()
                break
        if session.leaving and not self.closing and not session.streams:
            self._close()
        elif self.closing and self._congested_since is None:
            transport.close()

    # time

    def wake_at(self, when: float) -> None:
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
        self.now = now = self._loop.time()
        if self.closing:
            self.abort("does not read")
            return
        since = self._congested_since
        if since is not None and now - since >= self._limits.write_timeout_s:
            self.abort("does not read")
            return
        if not self.calls.trusted and now - self.arrived >= self._limits.auth_timeout_s:
            self.leave("nobody made himself known")
            return
        if not self._still_there(now):
            self.abort("is silent")
            return
        for stream in list(self.session.streams.values()):
            self._look_at(stream, now)
        self.wake_at(self._next_look(now))

    def _still_there(self, now: float) -> bool:
        """Whether the peer gives signs of life, after asking for one."""
        silent = now - self._heard
        if silent < self._limits.idle_ping_s:
            return True
        if not self._pinged:
            self._pinged = True
            self.session.ping()
            self.flush_soon()
        return silent < self._limits.idle_ping_s + PING_TIMEOUT_S

    def _look_at(self, stream: Stream, now: float) -> None:
        """End a stream that has taken too long."""
        call = stream.call if isinstance(stream.call, Call) else None
        error = deadlines.stuck(stream, now, self._limits)
        if call is None or call.ended:
            if error is not None:
                self.session.reset(stream, frames.CANCEL)
                self.flush_soon()
            return
        error = error or deadlines.overdue(call, now, self._limits)
        if error is not None:
            self.calls.cut_short(call, error)

    def _next_look(self, now: float) -> float:
        limits = self._limits
        times = [self._heard + limits.idle_ping_s + (PING_TIMEOUT_S if self._pinged else 0)]
        if self._congested_since is not None:
            times.append(self._congested_since + limits.write_timeout_s)
        if not self.calls.trusted:
            times.append(self.arrived + limits.auth_timeout_s)
        for stream in self.session.streams.values():
            if stream.stuck_since is not None:
                times.append(stream.stuck_since + limits.write_timeout_s)
        for call in self.calls.open:
            times.append(deadlines.due(call, limits))
        return max(min(times), now + 0.001)

    # the end

    def leave(self, cause: str = "", code: int = frames.NO_ERROR) -> None:
        """Tell the peer to go, and close."""
        if not self.closing:
            self.session.go_away(code, cause)
            self._close()

    def drain(self) -> None:
        """Take no new calls, and close when the last one has ended."""
        self.session.go_away(frames.NO_ERROR, "the server is about to stop")
        self.flush_soon()

    def abort(self, cause: str) -> None:
        """Cut the peer off."""
        self._server.tell("http2.aborted", peer=self.peer, cause=cause)
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        """Close once what can be sent is sent, by force if that takes too long."""
        self.calls.close()
        self.closing = True
        self._read(False)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.wake_at(self._loop.time() + CLOSE_TIMEOUT_S)
        self.flush()

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
        kept = len(self._rest) + session.held + self.calls.metadata
        return self._server.stranger_cost + kept + FRAME_COST * session.unsent + STREAM_COST * len(session.streams)
