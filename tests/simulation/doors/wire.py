"""A connection in memory: bytes in order, cut anywhere, late by chance; either end can vanish at any byte.

The peer has the `Wire`. The server has a `TcpEnd`, which is an asyncio transport, or a `StreamEnd`, which stands for a
QUIC stream. Both buffer without limit, as the real ones do, and fail when more is written than a server may.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Protocol, cast

from headrace.server.quic_stream import StreamDoor
from tests.simulation.doors.trace import Trace
from tests.simulation.virtual_loop import Process, VirtualLoop

SEGMENT_MAX = 1 << 16
INBOX_MAX = 1 << 16
LATENCY_S = 0.004


class Gone(Exception):
    """The connection is over."""


class ServerEnd(Protocol):
    """The server's end of a wire."""

    def deaf(self) -> bool:
        """Whether nothing can be handed over now."""

    def arrived(self, data: bytes) -> None:
        """Bytes have come."""

    def ended(self) -> None:
        """The peer has said all."""

    def read_by_peer(self) -> None:
        """Less waits to be read than did."""

    def lost(self) -> None:
        """The peer is gone."""


class Net:
    """What all wires share. `backlog_max` bounds what a server may have written that its peer has not read."""

    def __init__(self, loop: VirtualLoop, chance: Random, trace: Trace, backlog_max: int) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.backlog_max = backlog_max
        self.backlog_seen = 0


class Wire:
    """The peer's end, and what is between both ends."""

    def __init__(self, net: Net, process: Process, name: str) -> None:
        self.name = name
        self.broken = False
        self.net = net
        self.server: ServerEnd | None = None
        self.outbound = bytearray()
        self.closing = False
        self._process = process
        self._inbound = bytearray()
        self._inbox = bytearray()
        self._finished = False
        self._told_finished = False
        self._reset = False
        self._hung_up = False
        self._moving_in = False
        self._moving_out = False
        self._reading = True
        self._news = asyncio.Event()

    @property
    def over(self) -> bool:
        """Whether either end has left."""
        return self.broken or self.closing or self.server is None

    # The peer's side

    def send(self, data: bytes) -> None:
        """Send. Raises Gone."""
        if self.broken or self._finished:
            raise Gone
        self._inbound += data
        self.move_in()

    async def read(self) -> bytes:
        """Whatever has come, once something has. Raises Gone when nothing more will."""
        while not self._inbox:
            if self.broken or self._hung_up:
                raise Gone
            self._news.clear()
            await self._news.wait()
        data = bytes(self._inbox)
        self._inbox.clear()
        self._move_out()
        return data

    def hold_reading(self, held: bool) -> None:
        """Leave everything lying at the server, or take it again."""
        self._reading = not held
        self._move_out()

    def finish(self) -> None:
        """Say that nothing more will be said."""
        if not self.broken:
            self._finished = True
            self.move_in()

    def reset(self) -> None:
        """Vanish. What was sent and has not arrived is cut anywhere."""
        if self.broken:
            return
        self.broken = self._reset = True
        noticed = bool(self.outbound)
        del self._inbound[self.net.chance.randint(0, len(self._inbound)) :]
        self.outbound.clear()
        self._inbox.clear()
        self._news.set()
        self._note("reset")
        self.move_in(noticed=noticed)

    # The server's side

    def write(self, data: bytes) -> None:
        """The server sends."""
        self._note("writes", data)
        if self._reset:
            self.move_in(noticed=True)
            return
        self.outbound += data
        net = self.net
        net.backlog_seen = max(net.backlog_seen, len(self.outbound))
        assert len(self.outbound) <= net.backlog_max, f"{self.name}: {len(self.outbound)} bytes wait to be read"
        self._move_out()

    def hang_up(self, *, at_once: bool) -> None:
        """The server closes, behind what it has written unless `at_once`."""
        if at_once or not self._process.alive:
            self.outbound.clear()
            self._inbox.clear()
            self.broken = True
        self._hung_up = not self.outbound
        self._news.set()
        self._note("hung up" if self._hung_up else "hangs up")

    def move_in(self, *, noticed: bool = False) -> None:
        """See to it that what the peer sent arrives some time; `noticed`: the server's system knows of a reset."""
        if self._moving_in or self.server is None or not (self._inbound or self._finished or self._reset):
            return
        if self.server.deaf() and not (self._reset and noticed):
            return
        self._moving_in = True
        self._later(self._arrive)

    # Between them

    def _arrive(self) -> None:
        self._moving_in = False
        server = self.server
        if server is None:
            return
        if self._inbound and not server.deaf():
            size = len(self._inbound)
            if self.net.chance.random() < 0.3:
                size = self.net.chance.randint(1, size)
            data = bytes(self._inbound[: min(size, SEGMENT_MAX)])
            del self._inbound[: len(data)]
            self._note("arrives", data)
            server.arrived(data)
        elif self._reset:
            self.server = None
            server.lost()
        elif self._finished and not self._told_finished and not server.deaf():
            self._told_finished = True
            server.ended()
        else:
            return
        self.move_in()

    def _move_out(self) -> None:
        if not self._moving_out and self.outbound and self._reading and len(self._inbox) < INBOX_MAX:
            self._moving_out = True
            self._later(self._depart)

    def _depart(self) -> None:
        self._moving_out = False
        if not self._reading or self.broken or not self.outbound:
            return
        size = min(len(self.outbound), INBOX_MAX)
        if self.net.chance.random() < 0.2:
            size = self.net.chance.randint(1, size)
        self._inbox += self.outbound[:size]
        del self.outbound[:size]
        self._news.set()
        if self.server is not None:
            self.server.read_by_peer()
        self._move_out()

    def _later(self, callback: Callable[[], None]) -> None:
        delay = self.net.chance.random() * LATENCY_S
        self.net.loop.call_later(delay, callback, context=self._process.context)

    def _note(self, what: str, data: bytes = b"") -> None:
        self.net.trace.note(self.net.loop.time(), self.name, what, data)


class TcpEnd(asyncio.Transport):
    """A transport as the event loops make them: limits, pauses, a close that waits for what was written."""

    def __init__(self, wire: Wire, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "socket": self})
        self._wire = wire
        self._protocol = protocol
        self._loop = wire.net.loop
        self._high = 1 << 16
        self._paused = False
        self._congested = False
        self._closing = False
        self._over = False
        wire.server = self
        protocol.connection_made(self)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As a socket: there is no system that would care."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 1 << 16

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._over
        self._wire.write(bytes(data))
        if not self._congested and len(self._wire.outbound) > self._high:
            self._congested = True
            self._protocol.pause_writing()

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._wire.move_in()

    def close(self) -> None:
        if not self._closing:
            self._closing = self._wire.closing = True
            if not self._wire.outbound:
                self._loop.call_soon(self._end, False)

    def abort(self) -> None:
        self._closing = True
        self._loop.call_soon(self._end, True)

    def deaf(self) -> bool:
        return self._paused or self._closing

    def arrived(self, data: bytes) -> None:
        while data and not self._over:
            room = cast(memoryview, self._protocol.get_buffer(-1))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self._protocol.buffer_updated(size)

    def ended(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def read_by_peer(self) -> None:
        if self._congested and len(self._wire.outbound) <= self._high // 4:
            self._congested = False
            self._protocol.resume_writing()
        if self._closing and not self._wire.outbound:
            self._end(False)

    def lost(self) -> None:
        self._closing = True
        self._end(True)

    def _end(self, at_once: bool) -> None:
        if not self._over:
            self._over = True
            self._wire.server = None
            self._wire.hang_up(at_once=at_once)
            self._protocol.connection_lost(None)


class StreamEnd:
    """As much of a QUIC stream as a StreamDoor uses."""

    def __init__(self, wire: Wire, room: int) -> None:
        self.crowded = False
        self.door: StreamDoor | None = None
        self._wire = wire
        self._room = room
        self._held = False
        self._ended_here = False
        wire.server = self

    def write(self, data: bytes) -> None:
        if not self._ended_here and self._wire.server is self:
            self._wire.write(data)
            self.crowded = len(self._wire.outbound) > self._room

    def end(self) -> None:
        self._ended_here = self._wire.closing = True
        if not self._wire.outbound:
            self._wire.hang_up(at_once=False)

    def give_up(self) -> None:
        self.door = None
        self._wire.server = None
        self._wire.hang_up(at_once=True)

    def hold(self, held: bool) -> None:
        self._held = held
        self._wire.move_in()

    def backlog(self) -> int:
        return len(self._wire.outbound)

    def deaf(self) -> bool:
        return self._held

    def arrived(self, data: bytes) -> None:
        if self.door is not None:
            self.door.received(data, False)

    def ended(self) -> None:
        if self.door is not None:
            self.door.received(b"", True)

    def read_by_peer(self) -> None:
        if self.crowded and len(self._wire.outbound) <= self._room // 2:
            self.crowded = False
            if self.door is not None:
                self.door.relieved()
        if self._ended_here and not self._wire.outbound:
            self._wire.hang_up(at_once=False)

    def lost(self) -> None:
        door, self.door = self.door, None
        if door is not None:
            door.broke("reset by the peer")
