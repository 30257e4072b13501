"""An engine on a disk in memory, in virtual time, that flushes when the test says so; and conversations with it.

The session at its other end does what it is told: a byte stands for the next requests of a script, and every outcome
becomes a word.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from headrace.auth import ANONYMOUS, SHARED_OWNER, Keyring
from headrace.broker import BrokerSettings
from headrace.log import Log
from headrace.log.settings import LogSettings
from headrace.model.batch import Batch, build_batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, PeerProtocolError, StorageError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Leave, Publish, Request, Start
from headrace.server.clock import Clock
from headrace.server.committer import Job
from headrace.server.conversation import Conversation, Terms
from headrace.server.engine import Engine
from headrace.server.recovery import recover_broker
from headrace.server.snapshots import Snapshots
from tests.crash.faultdisk import FaultDisk
from tests.simulation.virtual_loop import VirtualLoop

NAME = "team"
STAND_US = 100_000


class LoopClock(Clock):
    """The loop's own time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return 1_000_000 + round(self._loop.time() * 1e6)


class HandWorker:
    """Does jobs soon, or holds them back until it is let go."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[Job, float], None]) -> None:
        self.held = False
        self._loop = loop
        self._done = done
        self._job: Job | None = None

    def submit(self, job: Job) -> None:
        self._job = job
        if not self.held:
            self._loop.call_soon(self._run)

    def let_go(self) -> None:
        """Do what waits, and everything that comes."""
        self.held = False
        self._run()

    def stop(self) -> None:
        self._run()

    def _run(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.run()
            self._done(job, 0.0)


class Shop:
    """The engine, and what tests do with it. `disk.fail` breaks it; `worker.held` makes it wait."""

    def __init__(self, loop: VirtualLoop, settings: BrokerSettings | None = None) -> None:
        self.loop = loop
        self.disk = FaultDisk()
        log = Log.open(Path("log"), self.disk, LogSettings(fill_bytes=0))
        clock = LoopClock(loop)
        broker = recover_broker(log, settings or BrokerSettings(), clock.now())
        self.engine = Engine(log, broker, clock, Snapshots(), self._new_worker)
        self.terms = Terms(keyring=lambda: Keyring([]), pending_bytes_max=1 << 30, stand_us=STAND_US)

    def _new_worker(self, loop: asyncio.AbstractEventLoop, done: Callable[[Job, float], None]) -> HandWorker:
        self.worker = HandWorker(loop, done)
        return self.worker

    def talk(self) -> "ScriptedTalk":
        """A new conversation."""
        return ScriptedTalk(self)

    async def quiet(self) -> None:
        """Return when everything that can happen without time passing, or nearly none, has happened."""
        await self.loop.pause(0.02)

    async def publish(self, topic: str, *values: bytes, tries: int = 0) -> None:
        """One batch, durable on return."""
        part = build_batch(topic, values, timestamp_us=self.engine.clock.now(), max_attempts=tries)
        await self.engine.publish_durably(topic, part, len(values))

    async def join(self, topic: str, *, tail: bool = False) -> int:
        """The shared subscription of a topic."""
        engine = self.engine
        subscription = engine.broker.subscribe(
            topic, qos=1, owner=SHARED_OWNER, name=NAME, start=Start.EARLIEST, tail=tail,
            at=engine.log.next_offset, now=engine.clock.now(),
        )  # fmt: skip
        await engine.recorded()
        return subscription


class ScriptedTalk:
    """A conversation, its session and its outlet. `said` is what the peer was sent, word by word.

    The peer has to `relieve` it once more than `room` bytes were sent; `most_unread` is how many there ever were.
    """

    def __init__(self, shop: Shop) -> None:
        self.said: list[str] = []
        self.bytes_said = 0
        self.room = 1 << 30
        self.most_unread = 0
        self._unread = 0
        self.is_congested = False
        self.is_closed = False
        self._script: deque[list[Request]] = deque()
        self._out: list[bytes] = []
        self.conversation = Conversation(shop.engine, self, self, shop.terms, ANONYMOUS)

    def ask(self, *requests: Request) -> None:
        """Have these carried out together, as if they came in one read."""
        self._script.append(list(requests))
        self.proceed()

    def close(self) -> None:
        """The outlet's: the conversation closes."""
        self.is_closed = True

    def hang_up(self) -> None:
        """The peer vanishes."""
        self.conversation.closed()

    def relieve(self) -> None:
        """The peer reads again."""
        self.is_congested = False
        self._unread = 0
        self.conversation.resume()
        self.proceed()

    # The outlet

    def write(self, data: bytes) -> None:
        self.bytes_said += len(data)
        self._unread += len(data)
        self.most_unread = max(self.most_unread, self._unread)
        self.is_congested |= self._unread > self.room
        self.said += data.decode().split(";")[:-1]

    def congested(self) -> bool:
        return self.is_congested

    def proceed(self) -> None:
        self.conversation.receive(memoryview(b"x" * len(self._script)))

    # The session

    def receive(self, view: memoryview, now: int) -> tuple[int, list[Request]]:
        if not self._script or not view:
            return 0, []
        requests = self._script.popleft()
        if not requests:
            raise PeerProtocolError
        return 1, requests

    def bytes_wanted(self, view: memoryview) -> int:
        return 1

    def data_to_send(self) -> bytes:
        out, self._out = self._out, []
        return b"".join(out)

    def authenticated(self, tag: int) -> None:
        self._say(f"in {tag}")

    def refused(self, tag: int, error: BrokerError) -> None:
        self._say(f"refused {tag} {error.code.value}")

    def published(self, tags: bytes) -> None:
        self._say(f"stored {tags.decode()}")

    def publish_refused(self, tags: bytes, error: BrokerError) -> None:
        self._say(f"lost {tags.decode()}")

    def subscribed(self, tag: int, subscription: int) -> None:
        self._say(f"subscribed {tag}")

    def deliver(self, portion: Portion, tags: bytes) -> None:
        self._say(f"deliver {_told([portion])}")

    def fetched(self, tag: int, portions: list[Portion]) -> None:
        self._say(f"fetched {tag} {_told(portions)}")

    def pushed(self, tag: int, portions: list[Portion]) -> None:
        self._say(f"pushed {tag} {_told(portions)}")

    def settled(self, tag: int, deliveries: list[int], accepted: list[bool]) -> None:
        self._say(f"settled {tag} {''.join('+' if each else '-' for each in accepted)}")

    def fence_passed(self, tag: int) -> None:
        self._say(f"fence {tag}")

    def ended(self) -> list[Request]:
        return [Leave(99)]

    def draining(self) -> None:
        self._say("draining")

    def _say(self, words: str) -> None:
        self._out.append(f"{words};".encode())


class Witness:
    """A sender that writes down what the engine tells it."""

    def __init__(self) -> None:
        self.refused: list[bytes] = []
        self.moves = 0

    def publish_refused(self, request: Publish, cause: StorageError) -> None:
        self.refused.append(request.tags)

    def settled(self) -> None:
        self.moves += 1


def in_virtual_time(test: Callable[[Shop], Awaitable[None]]) -> Callable[[], None]:
    """A test that is given a shop, and runs in no time."""

    def run() -> None:
        loop = VirtualLoop(Random(0))
        try:
            loop.run_until_complete(_shopping(loop, test))
        finally:
            loop.close()

    run.__name__, run.__doc__ = getattr(test, "__name__", ""), test.__doc__
    return run


async def _shopping(loop: VirtualLoop, test: Callable[[Shop], Awaitable[None]]) -> None:
    await test(Shop(loop))


def a_publish(topic: str, *values: bytes, tags: str = "", confirm: bool = False) -> Publish:
    """A request to publish one batch."""
    part = build_batch(topic, values, timestamp_us=1)
    record = bytearray(RECORD_HEADER_SIZE) + part
    return Publish(topic, 1, Batch(part, 0, 0).count, record, tags.encode(), confirm)


def _told(portions: list[Portion]) -> str:
    values = [p.batch.value(p.index + i).decode() for p in portions for i in range(p.count)]
    return ",".join(values) or "nothing"
