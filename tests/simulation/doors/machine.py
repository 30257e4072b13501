"""The machine the broker runs on: its disk, its clock, and the process, which can be killed and started again.

The process is the server with nothing left out but sockets, threads and TLS: engine, log, recovery, listeners and
sessions.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from headrace.auth import ANONYMOUS, Keyring
from headrace.broker import BrokerSettings
from headrace.log import Log
from headrace.log.settings import LogSettings
from headrace.protocols.blipmq.session import BlipmqSession
from headrace.protocols.fujin import FujinSession, FujinSettings
from headrace.protocols.sspq import SspqSession, SspqSettings
from headrace.quic.stream import Stream
from headrace.server.clock import Clock
from headrace.server.committer import Job
from headrace.server.conversation import Terms
from headrace.server.engine import Engine
from headrace.server.grpc_queues import Queues, QueueSettings
from headrace.server.quic_stream import StreamDoor, StreamTerms
from headrace.server.recovery import recover_broker
from headrace.server.snapshots import Snapshots
from headrace.server.tcp import TcpLimits, TcpListener
from tests.crash.faultdisk import Crash, FaultDisk, Survival
from tests.simulation.doors.trace import Trace
from tests.simulation.doors.wire import LATENCY_S, Gone, Net, StreamEnd, TcpEnd, Wire
from tests.simulation.virtual_loop import Process, VirtualLoop

LOG_DIR = Path("log")
KEY, OTHER_KEY = "key", "other key"
PORTS = {"blipmq": 5555, "sspq": 8888, "fujin": 4849}
DISK_S = 0.003
STOP_S = 1.0
ASKED_MAX = 100_000

T = TypeVar("T")


@dataclass(frozen=True)
class Terrain:
    """What a world's broker is set to."""

    broker: BrokerSettings
    log: LogSettings
    fujin: FujinSettings
    sspq: SspqSettings
    queues: QueueSettings
    pending_bytes_max: int
    stand_us: int
    write_buffer_max: int
    write_timeout_s: float


class MachineClock(Clock):
    """The loop's time from a beginning that steps when the process starts; `ahead_us` turns it forward.

    Whoever asks for it for ever, while it stands still, goes round in a circle.
    """

    def __init__(self, loop: VirtualLoop, ahead_us: int) -> None:
        self._loop = loop
        self._asked = 0
        self._asked_at = 0.0
        self.ahead_us = ahead_us

    def now(self) -> int:
        time = self._loop.time()
        self._asked = self._asked + 1 if time == self._asked_at else 0
        self._asked_at = time
        assert self._asked < ASKED_MAX, "the broker goes round in a circle"
        return self.ahead_us + round(time * 1e6)


class VirtualWorker:
    """Does jobs in the loop, in its own time; a job has happened before anybody hears of it."""

    def __init__(self, machine: "Machine", loop: asyncio.AbstractEventLoop, done: Callable[[Job, float], None]) -> None:
        self._machine = machine
        self._loop = loop
        self._done = done
        self._job: Job | None = None

    def submit(self, job: Job) -> None:
        self._job = job
        self._loop.call_later(self._machine.disk_delay(), self._run)

    def stop(self) -> None:
        self._run()

    def _run(self) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        try:
            job.run()
        except Crash as crash:
            self._machine.stopped_at(str(crash))
        else:
            self._machine.note(f"did {type(job).__name__}")
            self._loop.call_later(self._machine.disk_delay(), self._done, job, 0.0)


class Server:
    """One life of the broker."""

    def __init__(self, machine: "Machine", stored: Log) -> None:
        terrain = machine.terrain
        self.clock = machine.clock
        broker = recover_broker(stored, terrain.broker, self.clock.now())
        worker = partial(VirtualWorker, machine)
        self.engine = Engine(stored, broker, self.clock, Snapshots(), worker)
        self.engine.journal()
        self.queues = Queues(self.engine, terrain.queues)
        self.doors: dict[StreamDoor, None] = {}
        keyring = machine.keyring
        self._terms = Terms(
            keyring=lambda: keyring, pending_bytes_max=terrain.pending_bytes_max, stand_us=terrain.stand_us
        )
        self._streams = StreamTerms(
            engine=self.engine,
            terms=self._terms,
            new_session=partial(FujinSession, terrain.fujin),
            write_timeout_s=terrain.write_timeout_s,
        )
        limits = TcpLimits(
            connections_max=100,
            connections_per_address_max=100,
            write_buffer_max=terrain.write_buffer_max,
            write_timeout_s=terrain.write_timeout_s,
            auth_timeout_s=3,
        )
        listener = partial(TcpListener, engine=self.engine, terms=self._terms, limits=limits)
        self.listeners = [
            listener("blipmq", new_session=BlipmqSession),
            listener("sspq", new_session=partial(SspqSession, terrain.sspq), identify=lambda _: ANONYMOUS),
            listener(
                "fujin",
                new_session=partial(FujinSession, terrain.fujin),
                identify=lambda _: ANONYMOUS,
                stop_timeout_s=STOP_S,
            ),
        ]

    async def open(self) -> None:
        for listener in self.listeners:
            await listener.start("virtual", PORTS[listener.name])
        self.engine.ready = True

    def accept_stream(self, end: StreamEnd) -> None:
        """A QUIC client has opened a stream."""
        end.door = StreamDoor(cast(Stream, end), self._streams, ANONYMOUS, self)
        self.doors[end.door] = None

    def grown(self, door: StreamDoor) -> None:
        """A stream's word: more of an unfinished request has come."""

    def left(self, door: StreamDoor, cause: str) -> None:
        """A stream's word: it is over."""
        self.doors.pop(door, None)

    async def stop(self) -> None:
        """Drain, as the node does."""
        self.engine.ready = False
        self.queues.drain()
        for listener in self.listeners:
            listener.stop_listening()
        for door in list(self.doors):
            door.drain()
        await self.engine.drained(STOP_S)
        await asyncio.gather(*(listener.close(STOP_S) for listener in self.listeners))
        for door in list(self.doors):
            door.give_up("the server stops")
        await self.engine.close(STOP_S)


class Machine:
    """What outlives the process. `on_recovered` sees a server before anybody else does."""

    def __init__(self, loop: VirtualLoop, chance: Random, trace: Trace, terrain: Terrain, backlog_max: int) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.terrain = terrain
        self.disk = FaultDisk()
        self.slow_disk_s = 0.0
        self.lives = 0
        self.crashes: list[int] = []
        self.clock = MachineClock(loop, 1_000_000_000)
        self.keyring = Keyring.from_settings([KEY, OTHER_KEY])
        self.net = Net(loop, chance, trace, backlog_max)
        self.server: Server | None = None
        self.died = asyncio.Event()
        self.on_recovered: Callable[[Server], None] = lambda _: None
        self.process = Process()
        self._wires: dict[Wire, None] = {}
        self._calls: dict[asyncio.Future[Any], None] = {}

    @property
    def life(self) -> int:
        """Which life of the process this is."""
        return self.lives

    # The process

    async def start(self) -> None:
        """Start the process and wait until it listens. Raises Gone when it dies on the way."""
        assert self.server is None
        self.lives += 1
        self.note(f"starts life {self.lives}")
        self.died.clear()
        self.process = Process()
        try:
            stored = Log.open(LOG_DIR, self.disk, self.terrain.log)
            server = self.process.run(Server, self, stored)
        except Crash as crash:
            self.stopped_at(str(crash))
            raise Gone from None
        assert not stored.report.damage, stored.report
        self.on_recovered(server)
        await self.loop.create_task(server.open(), context=self.process.context.copy())
        self.server = server

    async def stop(self) -> None:
        """End the process as an operator would."""
        server, self.server = self.server, None
        if server is not None:
            self.note("stops")
            stopping = self.loop.create_task(server.stop(), context=self.process.context.copy())
            while not stopping.done() and self.process.alive:
                await self.loop.pause(0.05)
            self._end()

    def crash(self, survival: Survival) -> None:
        """Kill the process; what its disk had not synced survives or not."""
        self.note(f"crashes: {survival.name}")
        self.crashes.append(self.lives)
        self.server = None
        self._end()
        self.disk = self.disk.after_crash(survival, self.chance.getrandbits(32))

    def stopped_at(self, point: str) -> None:
        """The disk's word: the machine stops in the middle of a step."""
        self.note(f"stops at {point}")
        self.crash(self.chance.choice(list(Survival)))

    def _end(self) -> None:
        self.loop.ports.clear()
        for wire in self._wires:
            wire.server = None
            wire.hang_up(at_once=True)
        self._wires.clear()
        for call in self._calls:
            if not call.done():
                call.set_exception(Gone())
        self._calls.clear()
        self.process.kill()
        self.died.set()

    # The ways in

    def dial(self, door: str, name: str) -> Wire:
        """Connect by TCP. Raises Gone when nobody listens."""
        factory = self.loop.ports.get(PORTS[door])
        if self.server is None or factory is None:
            raise Gone
        wire = Wire(self.net, self.process, name)
        self.process.run(self._accept, wire, factory)
        return wire

    def open_stream(self, name: str) -> Wire:
        """Open a QUIC stream. Raises Gone when nobody listens."""
        if self.server is None:
            raise Gone
        wire = Wire(self.net, self.process, name)
        self.process.run(self._accept_stream, wire)
        return wire

    async def call(self, function: Callable[[Server], Awaitable[T]]) -> T:
        """Call the server as gRPC does: a task for each call, cancelled with it. Raises Gone."""
        if self.server is None:
            raise Gone
        answer: asyncio.Future[T] = self.loop.create_future()
        self._calls[answer] = None
        task = self.loop.create_task(self._serve(function, self.server, answer), context=self.process.context.copy())
        try:
            return await answer
        finally:
            self._calls.pop(answer, None)
            task.cancel()

    def _accept(self, wire: Wire, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._wires[wire] = None
        TcpEnd(wire, cast(asyncio.BufferedProtocol, factory()))

    def _accept_stream(self, wire: Wire) -> None:
        assert self.server is not None
        self._wires[wire] = None
        self.server.accept_stream(StreamEnd(wire, self.terrain.write_buffer_max))

    async def _serve(
        self, function: Callable[[Server], Awaitable[T]], server: Server, answer: asyncio.Future[T]
    ) -> None:
        """Pass on the outcome of a call to whoever waits for it outside."""
        await self.loop.pause(self.chance.random() * LATENCY_S)
        try:
            result = await function(server)
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)

    # Chance

    def disk_delay(self) -> float:
        """How long the disk takes for half of a job."""
        return self.chance.random() * DISK_S + self.slow_disk_s

    def note(self, what: str) -> None:
        self.trace.note(self.loop.time(), "machine", what)
