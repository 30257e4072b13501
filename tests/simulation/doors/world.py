"""A machine, its peers, and what befalls them: turmoil first, then a lull, then calm, then the books.

In the lull nothing breaks, and only now and then is something published: nobody may wait for it but who does not read.
In the calm nobody misbehaves, and nothing is published: everything must be settled in the end.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from headrace.broker import BrokerSettings, RetryPolicy, TopicSettings
from headrace.log.settings import LogSettings
from headrace.model.batch import Protocol, build_batch
from headrace.protocols.fujin import FujinSettings
from headrace.protocols.sspq import SspqSettings
from headrace.server.grpc_queues import QueueSettings
from headrace.server.promises import HELD_BYTES_MAX
from headrace.server.readings import TAKE_BYTES_MAX
from tests.crash.faultdisk import Survival
from tests.simulation.doors.audit import Audit, check_accounts
from tests.simulation.doors.ledger import Fate, Ledger
from tests.simulation.doors.machine import Machine, Server, Terrain
from tests.simulation.doors.model import ROOM_FOR_ALL, LogModel, name_of
from tests.simulation.doors.trace import Trace
from tests.simulation.doors.wire import Gone
from tests.simulation.virtual_loop import VirtualLoop

QUEUE = "sspq"
PLAIN = "orders"
SHORT = "short"
LATE = "late"
CALM_S = 120.0
LULL_S = 8.0
LOOK_S = 0.4
LOOKS = 12
LOOKS_IN_A_LULL = 4
REPLY_BYTES_MAX = 1 << 16


class World:
    """One seed's world. `people` makes the peers; `read` are the nameless subscriptions that somebody reads."""

    def __init__(self, seed: int, people: Callable[["World"], list[Coroutine[Any, Any, None]]]) -> None:
        self.seed = seed
        self.chance = Random(f"{seed}/world")
        self.trace = Trace()
        self.loop = VirtualLoop(Random(f"{seed}/loop"))
        self.ledger = Ledger()
        self.lull = False
        self.calm = False
        self.done = False
        self.queue = QUEUE
        self.read: set[str] = set()
        self.wide = self.chance.random() < 0.1
        self.terrain = terrain_by_chance(self.chance)
        self._quiet = False
        self._people = people
        self._model = LogModel(self.terrain.broker)

    def run(self) -> None:
        """Let it all happen. Raises whatever went wrong first."""
        try:
            self.loop.run_until_complete(self._happen())
        except ExceptionGroup as group:
            raise _first(group) from group
        finally:
            self.machine.process.kill()
            self.loop.close()

    def some_topic(self, chance: Random) -> str:
        return chance.choice((QUEUE, QUEUE, PLAIN, PLAIN, PLAIN, SHORT, LATE))

    def padding(self, chance: Random) -> int:
        """How large a message is."""
        return chance.choice((20_000, 60_000)) if self.wide else chance.choice((0, 5, 100, 700))

    async def _happen(self) -> None:
        terrain = self.terrain
        backlog_max = terrain.write_buffer_max + TAKE_BYTES_MAX + HELD_BYTES_MAX + REPLY_BYTES_MAX
        self.machine = Machine(self.loop, Random(f"{self.seed}/machine"), self.trace, terrain, backlog_max)
        self.machine.on_recovered = self._recovered
        await self.machine.start()
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep_running())
            watch = tasks.create_task(self._watch())
            peers = [tasks.create_task(person) for person in self._people(self)]
            chaos = Chaos(self.machine, Random(f"{self.seed}/chaos"))
            await chaos.reign(4 + 8 * self.chance.random())
            await self._subside()
            self.calm = True
            self.machine.note("calm")
            await self._until_settled()
            watch.cancel()
            keeper.cancel()
            self.done = True
            if self.chance.random() < 0.5:
                await self.machine.stop()
            elif self.machine.server is not None:
                self.machine.crash(self.chance.choice(list(Survival)))
            for peer in peers:
                peer.cancel()
        await self.machine.start()
        self._close_the_books()
        await self.machine.stop()

    async def _keep_running(self) -> None:
        """Start the process again whenever it died."""
        while True:
            await self.machine.died.wait()
            await self.loop.pause(self.chance.random() * 0.5)
            self.machine.clock.ahead_us += self.chance.choice((0, 0, -5_000_000, 10_000_000))
            while self.machine.server is None:
                try:
                    await self.machine.start()
                except Gone:
                    continue

    def _recovered(self, server: Server) -> None:
        """What a new process makes of the log must be what the log says."""
        self._model = LogModel(self.terrain.broker)
        self._model.catch_up(server.engine.log)
        check_accounts(server.engine.broker, self._model)

    async def _subside(self) -> None:
        """Let the publishers go, and send one message at a time to whoever waits for it."""
        self.lull = True
        self.machine.note("lull")
        await self.loop.pause(3.0)
        self._quiet = True
        until = self.loop.time() + LULL_S
        while self.loop.time() < until:
            await self._probe(self.chance.choice((QUEUE, PLAIN)), self.chance.choice((1, 1, 3)))
            await self.loop.pause(self.chance.random() * 3)

    async def _probe(self, topic: str, count: int) -> None:
        """Publish from inside the process, to whoever waits."""
        sents = [self.ledger.new("prober", topic) for _ in range(count)]
        values = [sent.value(700) for sent in sents]
        part = build_batch(topic, values, timestamp_us=self.machine.clock.now())
        await self.machine.call(lambda server: server.engine.publish_durably(topic, part, count))
        for sent in sents:
            self.ledger.decide(sent, Fate.CONFIRMED, self.machine.lives)

    # Nobody waits in vain

    async def _watch(self) -> None:
        """Look now and then whether somebody waits for what is there."""
        suspected: Counter[object] = Counter()
        while True:
            await self.loop.pause(LOOK_S)
            suspects = [(*suspect, self._quiet) for suspect in self._look()]
            suspected = Counter({suspect: suspected[suspect] + 1 for suspect in suspects})
            patience = LOOKS_IN_A_LULL if self._quiet else LOOKS
            stuck = [suspect for suspect, looks in suspected.items() if looks >= patience]
            assert not stuck, f"somebody waits in vain: {stuck}"

    def _look(self) -> list[tuple[object, ...]]:
        """The subscriptions with something for somebody who waits, and how far they are."""
        server = self.machine.server
        if server is None or server.engine.log.failing is not None:
            return []
        self._catch_up()
        now = server.clock.now()
        found: list[tuple[object, ...]] = []
        for sub in self._model.subscriptions.values():
            info = server.engine.broker.subscription(sub.id)
            if info is not None and info.waiting_consumers:
                entries = self._model.deliverable(sub, now)
                if entries:
                    found.append((name_of(sub), self.machine.lives, info.delivered, info.nacked, len(entries)))
        return found

    async def _until_settled(self) -> None:
        """Return when every message of every subscription is over, some time after the calm began."""
        until = self.loop.time() + CALM_S
        await self.loop.pause(2.0)
        while left := self._unsettled():
            assert self.loop.time() < until, f"never settled: {left}"
            await self.loop.pause(1.0)

    def _unsettled(self) -> dict[str, object]:
        if self.machine.server is None:
            return {"no": "server"}
        self._catch_up()
        return {
            name_of(sub): [(e.message.offset, e.state.value, e.attempt) for e in left[:5]]
            for sub in self._model.subscriptions.values()
            if (sub.name or name_of(sub) in self.read) and (left := self._model.unsettled(sub))
        }

    def _catch_up(self) -> None:
        assert self.machine.server is not None
        self._model.catch_up(self.machine.server.engine.log)

    def _close_the_books(self) -> None:
        server = self.machine.server
        assert server is not None
        Audit(self.ledger, server.engine.log, server.engine.broker, self._model, self.machine.crashes).check()


class Chaos:
    """Crashes, failing and slow disks, clocks that jump."""

    def __init__(self, machine: Machine, chance: Random) -> None:
        self._machine = machine
        self._chance = chance

    async def reign(self, seconds: float) -> None:
        """For so long; everything is well afterwards."""
        loop = self._machine.loop
        until = loop.time() + seconds
        while loop.time() < until:
            await loop.pause(self._chance.random() * 1.5)
            (misfortune,) = self._chance.choices(list(MISFORTUNES), list(MISFORTUNES.values()))
            if self._machine.server is not None:
                await misfortune(self)
        self._machine.disk.heal()
        while self._machine.server is None:
            await loop.pause(0.1)

    async def crash(self) -> None:
        self._machine.crash(self._chance.choice(list(Survival)))

    async def crash_in_a_step(self) -> None:
        point = self._chance.choice(("segment.write.torn", "segment.sync.before", "segment.sync.after", *ROLLING))
        self._machine.disk.crash_at(point, self._chance.randint(1, 4))

    async def restart(self) -> None:
        await self._machine.stop()

    async def fail_writes(self) -> None:
        operation = self._chance.choice(("segment.write", "segment.sync", "new-segment.create"))
        self._machine.disk.fail(operation, self._chance.choice((5, 28)), self._chance.choice((1, 1, 3, 20)))

    async def slow_the_disk(self) -> None:
        machine = self._machine
        machine.slow_disk_s = self._chance.choice((0.05, 0.5))
        await machine.loop.pause(self._chance.random() * 2)
        machine.slow_disk_s = 0.0

    async def freeze(self) -> None:
        self._machine.loop.freeze(self._chance.choice((0.2, 1.5, 6.0)))

    async def turn_the_clock(self) -> None:
        self._machine.clock.ahead_us += self._chance.choice((50_000, 700_000, 5_000_000))


ROLLING = ("new-segment.rename.before", "new-segment.rename.after", "snapshot.rename.before", "index.sync.before")
MISFORTUNES: dict[Callable[[Chaos], Coroutine[Any, Any, None]], int] = {
    Chaos.crash: 3,
    Chaos.crash_in_a_step: 2,
    Chaos.restart: 1,
    Chaos.fail_writes: 3,
    Chaos.slow_the_disk: 3,
    Chaos.freeze: 2,
    Chaos.turn_the_clock: 2,
}


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


def terrain_by_chance(chance: Random) -> Terrain:
    """Settings near their limits, where things go wrong."""
    topics = {SHORT: TopicSettings(ttl_s=1), LATE: TopicSettings(delay_ms=300)}
    return Terrain(
        broker=BrokerSettings(
            retry=RetryPolicy(max_attempts=3, backoff_ms=50, ack_wait_ms=100),
            topics=topics,
            dedup_door_s={Protocol.GRPCQ: 600},
            inflight_max=chance.choice((3, 20, ROOM_FOR_ALL)),
            qos0_pending_max=chance.choice((10, 100_000)),
        ),
        log=LogSettings(
            segment_bytes=chance.choice((16 << 10, 256 << 10)),
            snapshot_bytes=chance.choice((8 << 10, 64 << 10, 1 << 30)),
            tail_cache_bytes=chance.choice((0, 1 << 20)),
            fill_bytes=0,
        ),
        fujin=FujinSettings(fetch_wait_ms=chance.choice((0, 100, 500)), push_window=chance.choice((1, 4, 64))),
        sspq=SspqSettings(topic=QUEUE),
        queues=QueueSettings(
            payload_max=1 << 18, max_attempts=3, ack_wait_s=1.0, publishing_bytes_max=1 << 16, topics=topics
        ),
        pending_bytes_max=chance.choice((1 << 12, 1 << 20)),
        stand_us=chance.choice((0, 2_000, 1_000_000)),
        write_buffer_max=chance.choice((1 << 10, 1 << 16)),
        write_timeout_s=5.0,
    )
