"""Transactions: what executors staged becomes visible by one commit, once, however often it is asked for.

A transaction that fits into one record is that record. A bigger one is decided by its manifest: from then on it will be
finished, by this process or, from the staged files, by the next one. Every record carries an event that tells which
chunk of which batch it is, so the writer's progress is known exactly as far as the log goes.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import msgspec

from headrace.auth import Identity, Scope
from headrace.broker.writers import Chunk, WriterKey
from headrace.feed.messages import Commit, Receipt
from headrace.feed.places import belongs, transaction_prefix
from headrace.log import Damage, LogDamaged, Report
from headrace.model.errors import BrokerError, Code
from headrace.server.engine import Engine
from headrace.server.manifests import STAGING, Plan, with_unfinished
from headrace.server.marks import Marks, without_marked
from headrace.server.staging import StagedChunk, Staging

SWEEP_EVERY_US = 3600 * 1_000_000
WRITING_MAX = 4
log = logging.getLogger("headrace.transactions")

P = ParamSpec("P")
T = TypeVar("T")


class Outcome(msgspec.Struct, frozen=True):
    """What became of a commit: `replayed` if the batch was in the log before; else how many rows went in.

    `skipped` counts copies of dead letters that somebody had redriven before, and rows whose ids their topics knew.
    """

    replayed: bool
    rows: int = 0
    skipped: int = 0


class Transactions:
    """The transactions of one broker. Those of one writer wait for each other."""

    def __init__(self, engine: Engine, staging: Staging, marks: Marks) -> None:
        self._engine = engine
        self._staging = staging
        self._marks = marks
        self._writers = engine.broker.writers
        self._promised: dict[WriterKey, list[Plan]] = {}
        self._locks: WeakValueDictionary[WriterKey, asyncio.Lock] = WeakValueDictionary()
        self._running: set[asyncio.Task[Any]] = set()
        self._writing = asyncio.Semaphore(WRITING_MAX)
        self._underway: Counter[str] = Counter()
        self._swept_us = 0
        self._stopping = False

    def recover(self, *, accept_damage: bool = False) -> None:
        """Find out what the last process promised; `tend` finishes it, as does the next commit of the same writer.

        Raises OSError when the staging directory cannot be read, and LogDamaged when a transaction is decided and
        nothing tells the rest of it, unless that damage is accepted; what is lost is remembered then.
        """
        found = self._staging.prepare()
        for note in found.notes:
            log.warning("staging.mended", extra={"cause": note})
        for plan in found.plans:
            self._promised.setdefault(plan.key, []).append(plan)
        known = {loss.damage.segment for loss in self._engine.log.catalog.losses if loss.given_up}
        damage = [each for each in with_unfinished(found, self._open_batches()) if each.segment not in known]
        report = self._engine.log.report
        if damage and not accept_damage and (found.damage or report.log_id):
            raise LogDamaged(Report(damage=damage))
        for each in found.damage:
            self._staging.set_aside(each.segment.removeprefix(f"{STAGING}/"))
        for each in damage:
            log.error("transaction.lost", extra={"file": each.segment, "cause": each.detail})
        report.damage += damage
        self._engine.write_down(damage, given_up=True)

    def _open_batches(self) -> Iterator[tuple[str, str, int, int]]:
        for (owner, writer), progress in self._writers.items():
            if progress.open_batch is not None:
                yield owner, writer, progress.open_batch, progress.chunks_done

    async def commit(self, request: Commit) -> Outcome:
        """Make the staged rows visible; returns once they are durable. Goes on when nobody waits for it any more.

        Raises BrokerError: INVALID for receipts that do not fit what is staged, STORAGE when the disk fails; the
        commit may then be tried again.
        """
        return await self._protect(self._commit(request))

    async def abort(self, owner: str, receipts: Sequence[Receipt]) -> None:
        """Throw away staged files; those a decided transaction needs stay."""
        for writer in {receipt.writer for receipt in receipts}:
            async with self._lock((owner, writer)):
                needed = self._needed()
                names = [
                    receipt.file
                    for receipt in receipts
                    if receipt.writer == writer
                    and belongs(receipt.file, transaction_prefix(owner, writer, receipt.batch))
                    and receipt.file not in needed
                ]
                await _on_disk(self._staging.drop, names)

    async def committed(self, key: WriterKey) -> int | None:
        """The last batch of this writer that is durable, one being written included."""
        async with self._lock(key):
            await self._finish(key)
            return self._writers.progress(key).batch

    async def tend(self) -> None:
        """Finish what is promised and not done; every hour clear away what was abandoned."""
        for key in list(self._promised):
            try:
                await self._protect(self._finish_alone(key))
            except BrokerError as error:
                log.error("transaction.unfinished", extra={"writer": key[1], "cause": error.detail})
        try:
            await _on_disk(self._staging.tidy)
        except BrokerError as error:
            log.warning("staging.not_removed", extra={"cause": error.detail})
        now = self._engine.clock.now()
        if now - self._swept_us >= SWEEP_EVERY_US:
            self._swept_us = now
            await self._sweep(now)

    async def drained(self, timeout_s: float) -> None:
        """Begin no further record; return when those being written are durable, or when that takes too long."""
        self._stopping = True
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def _sweep(self, now: int) -> None:
        try:
            dropped = await _on_disk(self._staging.sweep, now, self._needed())
        except BrokerError as error:
            log.warning("staging.not_removed", extra={"cause": error.detail})
            return
        if dropped:
            log.info("staging.swept", extra={"files": dropped})

    async def _commit(self, request: Commit) -> Outcome:
        key, batch = (request.owner, request.writer), request.batch
        async with self._lock(key), self._kept(request.staged):
            await self._finish(key)
            if self._writers.has(key, batch):
                prefix = transaction_prefix(*key, batch)
                files = [receipt.file for receipt in request.staged if belongs(receipt.file, prefix)]
                await _on_disk(self._staging.drop, files)
                return Outcome(True)
            self._writers.check_room(key)
            who = Identity(request.owner, Scope(request.publish), Scope(request.subscribe))
            asked = _Asked(who)
            plan, letters = await _on_disk(self._staging.plan, *key, batch, request.staged, asked.may_publish)
            if letters:
                await self._check_letters(letters, who)
            self._admit(plan, asked.topics)
            if plan.chunks > 1:
                await self._promise(plan)
            skipped = await self._write_first(plan)
        return Outcome(False, plan.rows - skipped, skipped)

    def _admit(self, plan: Plan, topics: Collection[str]) -> None:
        """Count the topics that are new, and what is published, for the owner. Raises OverQuota."""
        engine = self._engine
        engine.broker.claim(topics, plan.owner)
        if engine.quotas.rated:
            size = sum(file.size for file in plan.files)
            engine.quotas.admit(plan.owner, "", plan.rows, size, engine.clock.now())

    async def _promise(self, plan: Plan) -> None:
        """Decide the transaction: with the manifest on disk there is no way back."""
        try:
            await _on_disk(self._staging.promise, plan)
        except BrokerError:
            await _on_disk(self._staging.unpromise, plan)
            raise
        self._promised.setdefault(plan.key, []).append(plan)

    async def _write_first(self, plan: Plan) -> int:
        """Write a transaction that was just decided; should that fail, say that it will be finished all the same."""
        try:
            return await self._write(plan)
        except BrokerError as error:
            if plan.chunks > 1:
                raise BrokerError(error.code, f"{error.detail}; it is decided, commit again to wait for it") from error
            raise

    async def _finish_alone(self, key: WriterKey) -> None:
        async with self._lock(key):
            await self._finish(key)

    async def _finish(self, key: WriterKey) -> None:
        """Write the rest of what is promised for this writer. To be called with its lock."""
        for plan in list(self._promised.get(key, ())):
            progress = self._writers.progress(key)
            done = progress.chunks_done if progress.open_batch == plan.batch else 0
            about = {"writer": plan.writer, "batch": plan.batch, "chunks_done": done, "chunks": plan.chunks}
            try:
                if not self._writers.has(key, plan.batch):
                    await _on_disk(self._staging.check_whole, plan)
                await self._write(plan, done)
                log.info("transaction.finished", extra=about)
            except BrokerError as error:
                if error.code is not Code.UNKNOWN:
                    raise
                log.error("transaction.lost", extra=about | {"cause": error.detail})
                detail = f"batch {plan.batch} of {plan.writer!r} is lost: {error.detail}"
                lost = Damage(f"{STAGING}/{plan.names[0]}", 0, 0, 0, 0, detail)
                self._engine.disk.lost.append(lost)
                self._engine.write_down([lost], given_up=True)
                await self._forget(plan)

    async def _write(self, plan: Plan, done: int = 0) -> int:
        """Append a transaction from chunk `done` on and clear away its files; how many rows were skipped."""
        skipped = 0
        if not self._writers.has(plan.key, plan.batch):
            for number in range(done, plan.chunks):
                async with self._writing:
                    skipped += await self._append(plan, number)
        await self._forget(plan)
        return skipped

    async def _append(self, plan: Plan, number: int) -> int:
        """Append one chunk, durable on return; how many of its rows were skipped."""
        if self._stopping:
            raise BrokerError(Code.DRAINING, "the broker is stopping; commit again once it is back")
        chunk = await _on_disk(self._staging.read, plan, number)
        if not plan.redrives:
            return await self._publish(plan, number, chunk)
        async with self._marks.turn:
            left, skipped = await without_marked(chunk, self._marks)
            await self._publish(plan, number, left)
        return skipped

    async def _publish(self, plan: Plan, number: int, staged: StagedChunk) -> int:
        """Append a chunk with the event that tells of it; how many rows were left out for their ids.

        Copies of dead letters have the ids of what they are copies of, so nothing of a redrive is left out.
        """
        now, key = self._engine.clock.now(), plan.key
        chunk = Chunk(owner=plan.owner, writer=plan.writer, batch=plan.batch, chunk=number, chunks=plan.chunks)
        staged.stamp(now)
        staged.record += chunk.event(now).encode()
        before = self._writers.progress(key)
        self._writers.committed(chunk, now)
        undo = partial(self._writers.restore, key, before)
        if not plan.redrives and staged.rows:
            return (await self._engine.publish_once(staged.record, undo=undo)).repeated
        await self._engine.publish_record(plan.writer, staged.record, staged.rows, undo=undo)
        return 0

    async def _forget(self, plan: Plan) -> None:
        """The transaction is done; files that cannot be removed now are removed later."""
        try:
            await _on_disk(self._staging.forget, plan)
        except BrokerError as error:
            log.warning("staging.not_removed", extra={"writer": plan.writer, "cause": error.detail})
            return
        promised = self._promised.get(plan.key, [])
        if plan in promised:
            promised.remove(plan)
        if not promised:
            self._promised.pop(plan.key, None)

    async def _check_letters(self, letters: Sequence[int], identity: Identity) -> None:
        wrong = await self._marks.not_letters(letters, identity)
        if wrong:
            raise BrokerError(Code.INVALID, f"redriven_from: there is no dead letter of yours at offset {wrong[0]}")

    def _needed(self) -> frozenset[str]:
        """The staged files that must not be cleared away."""
        promised = (file.name for plans in self._promised.values() for plan in plans for file in plan.files)
        return frozenset(promised) | self._underway.keys()

    @contextlib.asynccontextmanager
    async def _kept(self, receipts: Sequence[Receipt]) -> AsyncIterator[None]:
        """Keep these files from being swept meanwhile."""
        names = [receipt.file for receipt in receipts]
        self._underway.update(names)
        try:
            yield
        finally:
            self._underway = self._underway - Counter(names)

    def _lock(self, key: WriterKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _protect(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work to its end, whoever stops waiting for it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)


class _Asked:
    """Which topics somebody was asked about who may publish to them."""

    def __init__(self, identity: Identity) -> None:
        self.topics: set[str] = set()
        self._identity = identity

    def may_publish(self, topic: str) -> bool:
        """Whether the identity may."""
        self.topics.add(topic)
        return self._identity.may_publish(topic)


async def _on_disk(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking work in a thread. Raises BrokerError: UNKNOWN when a file is gone, STORAGE when the disk fails."""
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except FileNotFoundError as error:
        raise BrokerError(Code.UNKNOWN, f"a staged file is gone: {error}") from error
    except OSError as error:
        raise BrokerError(Code.STORAGE, f"cannot use the staging directory: {error}") from error
