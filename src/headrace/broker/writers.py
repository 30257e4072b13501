"""Who writes in transactions, and how far each one is: the memory by which a batch that comes again is recognised.

A writer numbers its batches. A batch is committed in one record of the log or in several, its chunks, each with an
event that tells which it is; so what is remembered here is a fold over the log, like everything else.
"""

from dataclasses import dataclass

import msgspec

from headrace.broker.shares import Shares
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event, EventPart

WRITERS_MAX = 100_000
FORGOTTEN_AFTER_US = 30 * 86_400 * 1_000_000

WriterKey = tuple[str, str]
"""The owner and the writer's name: nobody can make another's batch look like a replay."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a batch: chunk `chunk`, from 0, of `chunks`. What a COMMITTED event tells."""

    owner: str
    writer: str
    batch: int
    chunk: int
    chunks: int

    @property
    def key(self) -> WriterKey:
        """Who writes."""
        return self.owner, self.writer

    def event(self, now: int) -> EventPart:
        """The event that goes into the chunk's record."""
        return EventPart(Event.COMMITTED, now, 0, detail=msgspec.json.encode(self))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a writer is.

    `batch` is the last one committed whole, None before the first. `open_batch` has `chunks_done` of its chunks in the
    log and is to be finished; None when there is no such batch.
    """

    batch: int | None = None
    open_batch: int | None = None
    chunks_done: int = 0
    last_used: int = 0

    def after(self, chunk: Chunk, now: int) -> "Progress":
        """The progress once this chunk is in the log as well."""
        if chunk.chunk + 1 == chunk.chunks:
            return Progress(chunk.batch, last_used=now)
        return Progress(self.batch, chunk.batch, chunk.chunk + 1, now)


class Writers:
    """The progress of every writer, the one used last at the end."""

    def __init__(self) -> None:
        self._known: dict[WriterKey, Progress] = {}
        self.shares = Shares("writers", "limits.writers_per_key_max")

    def __len__(self) -> int:
        return len(self._known)

    def progress(self, key: WriterKey) -> Progress:
        """How far a writer is; one never heard of is at its beginning."""
        return self._known.get(key, Progress())

    def has(self, key: WriterKey, batch: int) -> bool:
        """Whether this batch of the writer, or a later one, is committed."""
        last = self.progress(key).batch
        return last is not None and batch <= last

    def check_room(self, key: WriterKey) -> None:
        """Raises BrokerError(LIMIT) when there is no room for another writer, of all or of this owner."""
        if key not in self._known:
            if len(self._known) >= WRITERS_MAX:
                raise BrokerError(Code.LIMIT, f"{WRITERS_MAX} writers are known; one is forgotten after 30 days")
            self.shares.check(key[0])

    def committed(self, chunk: Chunk, now: int) -> None:
        """A chunk is in the log; writers not heard of for long are forgotten on the way."""
        progress = self._drop(chunk.key)
        self._put(chunk.key, progress.after(chunk, now))
        self._forget(now)

    def restore(self, key: WriterKey, progress: Progress) -> None:
        """Put a writer where it was: from a snapshot, or because the log refused its last chunk."""
        self._drop(key)
        if progress != Progress():
            self._put(key, progress)

    def items(self) -> list[tuple[WriterKey, Progress]]:
        """Every writer, the one not used for longest first."""
        return list(self._known.items())

    def _forget(self, now: int) -> None:
        for key, progress in list(self._known.items()):
            if progress.last_used > now - FORGOTTEN_AFTER_US:
                break
            if progress.open_batch is None:
                self._drop(key)

    def _put(self, key: WriterKey, progress: Progress) -> None:
        """At the end; for one that is not known."""
        self._known[key] = progress
        self.shares.add(key[0])

    def _drop(self, key: WriterKey) -> Progress:
        progress = self._known.pop(key, None)
        if progress is None:
            return Progress()
        self.shares.give(key[0])
        return progress
