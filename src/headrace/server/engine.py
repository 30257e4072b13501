"""Where log and broker meet: appends in order, syncs in groups, and tells who waits when a thing is durable.

Every append takes a *ticket*, a number of this process that only grows. Two watermarks follow the tickets:
`publishes_settled` (every publish up to it is durable or was refused) and `events_settled` (every event up to it is
durable; events are never refused, only late). A reply that promises durability waits for both.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, cast

import msgspec

from headrace.auth import SHARED_OWNER, Identity
from headrace.broker import Admitted, Broker
from headrace.log import Damage, Flush, Log, LossesWrite, Removal, SnapshotWrite
from headrace.model.errors import BrokerError, Code, StorageError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish, Start
from headrace.server.clock import Clock
from headrace.server.committer import Committer, Job, NewWorker
from headrace.server.disk_health import DiskHealth
from headrace.server.metrics import Histogram
from headrace.server.quotas import Quotas
from headrace.server.snapshots import Snapshots
from headrace.server.standing import StandingRoom

RETRY_S = 0.1
EVENTS_WAIT_S = 0.005
EVENTS_GATHERED_MAX = 64
_WORK: dict[type[Any], str] = {SnapshotWrite: "snapshot", Removal: "retention", LossesWrite: "catalog"}
ROOM = bytes(RECORD_HEADER_SIZE)


class Sender(Protocol):
    """Whoever published or waits: a connection, or a task in this process."""

    def publish_refused(self, request: Publish, cause: StorageError) -> None:
        """The log would not take this; nothing of it is stored."""

    def settled(self) -> None:
        """A watermark moved."""


class Waiting(Hashable, Protocol):
    """A consumer that waits for a subscription."""

    def called(self) -> None:
        """There may be something to take: take it, wait again, or leave so that the next one is called."""


class Engine:
    """The only writer of log and broker. Lives on the event loop; only the committer's thread touches the disk."""

    def __init__(
        self, log: Log, broker: Broker, clock: Clock, snapshots: Snapshots, new_worker: NewWorker = Committer,
        *, quotas: Quotas | None = None,
    ) -> None:  # fmt: skip
        self.log = log
        self.broker = broker
        self.clock = clock
        self.quotas = quotas or Quotas()
        self.ready = False
        self.connections = 0
        self.publishes_settled = 0
        self.events_settled = 0
        self.refused_total = 0
        self.standing = StandingRoom()
        self.disk = DiskHealth()
        self.sync_seconds = Histogram()
        self.durable_seconds = Histogram()
        self._snapshots = snapshots
        self._ticket = 0
        self._recorded = 0
        self._gathered = 0
        self._unsettled: list[tuple[Publish, Sender]] = []
        self._flushing: list[tuple[Publish, Sender]] = []
        self._unsettled_topics: set[str] = set()
        self._flushing_topics: set[str] = set()
        self._flush_ticket = 0
        self._flush_since_us = 0
        self._first_publish_us = 0
        self._takers: dict[Sender, None] = {}
        self._waiting: dict[Sender, None] = {}
        self._busy = False
        self._calling = False
        self._urgent = False
        self._events_timer: asyncio.TimerHandle | None = None
        self._events_behind = 0
        self._loop = asyncio.get_running_loop()
        self._committer = new_worker(self._loop, self._job_done)
        self._chores: deque[Job] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._arm_timer()

    def publish(self, request: Publish, sender: Sender) -> int:
        """Append a batch; its ticket. `sender` hears of it should the log refuse it."""
        self.log.append(request.record, refusable=True)
        self._unsettled.append((request, sender))
        self._unsettled_topics.update(request.topics or (request.topic,))
        self._ticket += 1
        if not self._first_publish_us:
            self._first_publish_us = self.clock.now()
        self._kick()
        return self._ticket

    def subscribe(
        self, identity: Identity, topic: str, *, qos: int, name: str = "", start: Start, tail: bool = False
    ) -> int:
        """A subscription of this caller's, or with a name the one that all share; what is new counts for the caller.

        Raises BrokerError: FORBIDDEN, LIMIT, STORAGE while the log cannot be written.
        """
        if not identity.may_subscribe(topic):
            raise BrokerError(Code.FORBIDDEN, f"not allowed to subscribe to {topic}")
        if self.log.failing is not None:
            raise BrokerError(Code.STORAGE, f"durable subscribe failed: {self.log.failing}")
        self.broker.claim((topic,), identity.owner)
        return self.broker.subscribe(
            topic, qos=qos, owner=SHARED_OWNER if name else identity.owner, name=name, start=start, tail=tail,
            maker=identity.owner if name else "", at=self.log.next_offset, now=self.clock.now(),
        )  # fmt: skip

    def ticket_of(self, topic: str) -> int:
        """A ticket that is settled no sooner than everything published to the topic so far; 0 when all of it is."""
        if topic in self._unsettled_topics:
            return self._ticket
        return self._flush_ticket if topic in self._flushing_topics else 0

    def journal(self) -> int:
        """Have what the broker recorded since the last call appended; the ticket of the last event, 0 without one.

        Events nobody waits for are in no hurry: those of several calls are gathered, become one record when the next
        flush begins, and are flushed with the next publish or a moment later by themselves.
        """
        if self.log.has_unreported_damage:
            self._note_damage()
        ticket = self._gather_events()
        self._call_waiting()
        return ticket

    def _gather_events(self) -> int:
        if self.broker.recorded == self._recorded:
            return 0
        self._recorded = self.broker.recorded
        self._arm_timer()
        self._await_events()
        self._gathered += 1
        if self._gathered < EVENTS_GATHERED_MAX:
            return self._ticket + 1
        self._append_events()
        return self._ticket

    def _note_damage(self) -> None:
        """Say what bad bytes were met, as an event too, and have it written down for the next start."""
        found, now = self.log.take_damage(), self.clock.now()
        self.disk.met(found)
        for damage in found:
            self.broker.damaged(msgspec.json.encode(damage), now)
        self.write_down(found)

    def write_down(self, damage: Sequence[Damage], *, given_up: bool = False) -> None:
        """Have damage remembered by the log's catalog."""
        if damage:
            self._chores.append(self.log.begin_losses(damage, self.clock.now(), given_up=given_up))
            self._kick()

    def _append_events(self) -> None:
        """Append what was gathered: before every flush, and before the state is written down that it led to."""
        self._gathered = 0
        self._recorded = self.broker.recorded
        payloads = self.broker.drain()
        for payload in payloads:
            self.log.append(bytearray(ROOM + payload), refusable=False)
        self._ticket += bool(payloads)

    def _call_waiting(self) -> None:
        """Call the consumers the broker has something for, those called by what they do included."""
        if self._calling:
            return
        self._calling = True
        try:
            while ready := self.broker.drain_ready():
                for consumer in ready:
                    cast(Waiting, consumer).called()
        finally:
            self._calling = False

    def call_in(self, wait_us: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back later."""
        return self._loop.call_later(wait_us / 1e6, callback)

    def when_settled(self, sender: Sender, *, taking: bool = False) -> None:
        """Call `sender.settled()` once, when a watermark moves next, and see to it that one does.

        Who is `taking` goes first: a message is on its way before its publisher hears that it is stored.
        """
        (self._takers if taking else self._waiting)[sender] = None
        if self._gathered or self._ticket > self._flush_ticket:
            self._kick()

    async def publish_durably(self, topic: str, payload: bytes, count: int) -> None:
        """Append the parts of one record from inside the process and return when they are durable.

        Raises BrokerError(STORAGE) when the log refused them.
        """
        await self.publish_record(topic, bytearray(ROOM + payload), count)

    async def publish_record(
        self, topic: str, record: bytearray, count: int, *, undo: Callable[[], None] | None = None
    ) -> None:
        """Append a record, with free bytes before its parts as in a Publish, and return when it is durable.

        The record is appended before the first await, so state that it changes may be changed just before the call;
        `undo` takes that back, and is called before anything else happens should the log refuse the record.
        Raises BrokerError(STORAGE) then.
        """
        waiter = _Waiter(self, undo)
        await waiter.until(self.publish(Publish(topic, 1, count, record, b""), waiter))

    async def publish_once(self, record: bytearray, *, undo: Callable[[], None] | None = None) -> Admitted:
        """As `publish_record`, without the messages whose ids their topics know; what of the record is stored.

        What is left out is durable on return as well: it shares the fate of the one that came first, wherever that is.
        Raises BrokerError(STORAGE) when the log refused the record, or the first ones.
        """
        admitted = self.broker.identities.admit(record)

        def take_back() -> None:
            """Nothing of it is stored: it may come again."""
            self.broker.identities.take_back(admitted.record)
            if undo is not None:
                undo()

        waiter = _Waiter(self, take_back)
        topics = admitted.topics
        request = Publish(topics[0], 1, admitted.count, admitted.record, b"", topics=topics)
        await waiter.until(self._join(request, waiter) if admitted.is_empty else self.publish(request, waiter))
        return admitted

    def _join(self, request: Publish, sender: Sender) -> int:
        """Have a request share the fate of all that is on its way to its topics; the ticket of that, 0 without any."""
        if not self._unsettled_topics.isdisjoint(request.topics):
            self._unsettled.append((request, sender))
            return self._ticket
        if not self._flushing_topics.isdisjoint(request.topics):
            self._flushing.append((request, sender))
            return self._flush_ticket
        return 0

    async def recorded(self) -> None:
        """Append what the broker recorded since the last call and return when it is durable."""
        await _Waiter(self).until_recorded(self.journal())

    def retire(self) -> None:
        """Let go of old segments, and with hard retention of what subscriptions still have in them."""
        now, needed_from = self.clock.now(), self.broker.needed_from()
        below = self.log.expiring_below(now, needed_from)
        if below > needed_from:
            self.broker.forget_before(below, now)
            self.journal()
        if (removal := self.log.retire(now, needed_from)) is not None:
            self._chores.append(removal)
            self._kick()

    async def drained(self, timeout_s: float) -> None:
        """Return when nothing waits for the disk any more, or when that takes too long."""
        self._kick()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def close(self, timeout_s: float) -> None:
        """Record what is left, sync it, write a snapshot and end the committer. Call once nobody publishes any more."""
        self.ready = False
        self.journal()
        await self.drained(timeout_s)
        if self._timer:
            self._timer.cancel()
        self._committer.stop()
        if self._idle.is_set():
            self._final_snapshot()
        self.log.close()

    def _final_snapshot(self) -> None:
        """Sync what the policy put off and write down the state, so that the next start reads next to nothing."""
        if (flush := self.log.begin_flush(self.clock.now(), sync=True)) is not None:
            flush.run()
            self.log.end_flush(flush)
        if self.log.failing is None:
            self._snapshots.write_now(self.log, self.broker)

    def _kick(self) -> None:
        """Flush as soon as the committer is free."""
        self._urgent = True
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Hand the committer what there is to do; it comes back here as long as there is something."""
        job: Job | None = None
        if self._urgent or self.log.failing is not None:
            self._urgent = False
            self._append_events()
            job = self.log.begin_flush(self.clock.now(), sync=self._snapshots.waiting)
        if job is not None:
            self._flushing, self._unsettled = self._unsettled, []
            self._flushing_topics, self._unsettled_topics = self._unsettled_topics, set()
            self._flush_ticket = self._ticket
            self._flush_since_us, self._first_publish_us = self._first_publish_us, 0
        else:
            job = self._chore() or self.log.begin_fill()
        if job is not None:
            self._committer.submit(job)
            return
        self._busy = False
        if self.log.pending_bytes or self._gathered:
            self._await_events()
        else:
            self._idle.set()
            self._await_sync()

    def _chore(self) -> Job | None:
        """Work for the committer that can wait for a quiet moment, but not for ever."""
        if self._chores:
            return self._chores.popleft()
        if not self.log.snapshot_due and not self._snapshots.waiting:
            return None
        self._append_events()
        return self._snapshots.due(self.log, self.broker)

    def _job_done(self, job: Job, seconds: float) -> None:
        if isinstance(job, Flush):
            self._flushed(job, seconds)
        else:
            if (work := _WORK.get(type(job))) is not None:
                self.disk.ended(work, getattr(job, "error", None))
            self._snapshots.ended(self.log, job)
            self._flush()

    def _flushed(self, flush: Flush, seconds: float) -> None:
        now = self.clock.now()
        self.sync_seconds.observe(seconds)
        if self._flush_since_us:
            self.durable_seconds.observe((now - self._flush_since_us) / 1e6)
        flushed = self.log.end_flush(flush)
        self.disk.ended("flush", flushed.error)
        if flushed.error is not None:
            self._refuse(flushed.error)
            self._loop.call_later(RETRY_S, self._flush)
            self._tell()
            return
        self._flushing, self._flushing_topics = [], set()
        self.publishes_settled = self.events_settled = self._flush_ticket
        for batch in flushed.batches:
            self.broker.on_published(batch, now)
        for batch in flushed.batches:
            self.standing.call(batch.topic, now)
        if self._urgent:
            self._next_job()
            self._tell()
        else:
            self._tell()
            self._next_job()

    def _tell(self) -> None:
        """Tell everybody who waits that a watermark moved, and call those there is something for."""
        waiting = self._takers | self._waiting
        self._takers, self._waiting = {}, {}
        for sender in waiting:
            sender.settled()
        self.journal()
        self._arm_timer()

    def _next_job(self) -> None:
        """Keep the disk busy; a chore goes first, or it might never."""
        if (job := self._chore()) is not None:
            self._committer.submit(job)
        else:
            self._flush()

    def _refuse(self, cause: StorageError) -> None:
        """The log dropped every publish not yet durable; it keeps the events and tries again."""
        self._snapshots.discard()
        self.broker.rewound(self.log.next_offset)
        refused = self._flushing + self._unsettled
        self._flushing, self._unsettled = [], []
        self._flushing_topics, self._unsettled_topics = set(), set()
        self.publishes_settled = self._ticket
        for request, sender in refused:
            self.refused_total += request.count
            sender.publish_refused(request, cause)

    def _await_events(self) -> None:
        """Flush events before long, unless something takes them along earlier."""
        if not self._busy and self._events_timer is None:
            self._idle.clear()
            self._events_behind = self._flush_ticket
            self._events_timer = self._loop.call_later(EVENTS_WAIT_S, self._events_due)

    def _events_due(self) -> None:
        """Flush what has waited long enough; what came behind a flush in the meantime has not."""
        self._events_timer = None
        if self._flush_ticket == self._events_behind:
            self._kick()
        elif self.log.pending_bytes or self._gathered:
            self._await_events()

    def _await_sync(self) -> None:
        """Come back when the policy wants a sync though nothing more is appended."""
        due = self.log.sync_due_us
        if due is not None:
            self._loop.call_later(max(0.0, (due - self.clock.now()) / 1e6), self._kick)

    def _arm_timer(self) -> None:
        """Wake up at the broker's next deadline, unless an earlier one is armed."""
        due = self.broker.next_deadline()
        if due is None or (self._timer is not None and self._timer_us <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = due
        self._timer = self._loop.call_later(max(0.0, (due - self.clock.now()) / 1e6), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.broker.tick(self.clock.now())
        self.journal()
        self._arm_timer()


class _Waiter:
    """A coroutine waiting for its own publish, or event."""

    def __init__(self, engine: Engine, undo: Callable[[], None] | None = None) -> None:
        self._engine = engine
        self._undo = undo
        self._moved = asyncio.Event()
        self._cause: StorageError | None = None

    def publish_refused(self, request: Publish, cause: StorageError) -> None:
        """The log would not take it."""
        self._cause = cause
        if self._undo is not None:
            self._undo()

    def settled(self) -> None:
        """A watermark moved."""
        self._moved.set()

    async def until(self, ticket: int) -> None:
        """Return when the publish is durable. Raises BrokerError(STORAGE) when it was refused."""
        while self._engine.publishes_settled < ticket:
            self._moved.clear()
            self._engine.when_settled(self)
            await self._moved.wait()
        if self._cause is not None:
            raise BrokerError(Code.STORAGE, f"durable publish failed: {self._cause}")

    async def until_recorded(self, ticket: int) -> None:
        """Return when the event is durable; the log keeps trying."""
        while self._engine.events_settled < ticket:
            self._moved.clear()
            self._engine.when_settled(self)
            await self._moved.wait()
