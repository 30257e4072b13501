"""The broker's state as bytes and back. What replay can tell as well (timers, who holds what) is left out."""

import msgspec

from headrace.broker.identities import Identities
from headrace.broker.readers import Reader, Readers
from headrace.broker.registry import Registry
from headrace.broker.runs import Run
from headrace.broker.subscription import Definition, Subscription
from headrace.broker.writers import Progress, Writers
from headrace.model.errors import HeadraceError

VERSION = 1


class BadSnapshot(HeadraceError):
    """Bytes that are not a snapshot this version can read."""


class SavedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic's totals up to an offset, and for whose share it counts."""

    name: str
    published: int
    end: int
    maker: str = ""


class SavedSubscription(msgspec.Struct, frozen=True, array_like=True):
    """A subscription; runs are (first, count, offset, attempt, due, awaited), `tails` those of them that have one."""

    id: int
    definition: Definition
    cursor: int
    passed: int
    redelivered: int
    tally: list[int]
    runs: list[tuple[int, int, int, int, int, bool]]
    tails: dict[int, int] = {}


class SavedWriter(msgspec.Struct, frozen=True, array_like=True):
    """A writer and how far it is."""

    owner: str
    writer: str
    batch: int | None
    open_batch: int | None
    chunks_done: int
    last_used: int


class SavedIdentities(msgspec.Struct, frozen=True, array_like=True):
    """The ids of each topic as the kernel writes them down, and what was counted of them."""

    recent: list[tuple[str, bytes]]
    repeated: int
    forgotten: int


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a broker remembers. `removed` is the tally of subscriptions that are gone."""

    version: int
    last_id: int
    topics: list[SavedTopic]
    subscriptions: list[SavedSubscription]
    removed: list[int]
    removed_redelivered: int
    writers: list[SavedWriter] = []
    readers: list[Reader] = []
    identities: SavedIdentities = SavedIdentities([], 0, 0)


def encode(registry: Registry, writers: Writers, readers: Readers, identities: Identities) -> bytes:
    """The snapshot of this state."""
    return msgspec.msgpack.encode(
        Saved(
            version=VERSION,
            last_id=registry.last_id,
            topics=[SavedTopic(t.name, t.published, t.end, t.maker) for t in map(registry.topic, registry.names)],
            subscriptions=[_save(sub) for sub in registry.subscriptions.values()],
            removed=registry.removed,
            removed_redelivered=registry.removed_redelivered,
            writers=[_save_writer(*key, progress) for key, progress in writers.items()],
            readers=readers.all(),
            identities=SavedIdentities(identities.saved(), identities.repeated, identities.forgotten),
        )
    )


def load(
    state: bytes, registry: Registry, writers: Writers, readers: Readers, identities: Identities
) -> list[Subscription]:
    """Fill an empty registry, who writes and reads and what ids were seen with what was saved; the subscriptions.

    What became visible since the snapshot is counted from the source.
    Raises BadSnapshot for bytes of another kind or version.
    """
    saved = _decode(state)
    registry.last_id = saved.last_id
    registry.removed = saved.removed
    registry.removed_redelivered = saved.removed_redelivered
    for known in saved.topics:
        registry.restore_topic(known.name, known.published, known.end, known.maker)
    for saved_writer in saved.writers:
        _load_writer(saved_writer, writers)
    for reader in saved.readers:
        readers.reported(reader)
    ids = saved.identities
    identities.restore(ids.recent, ids.repeated, ids.forgotten)
    subscriptions = [_load(each, registry) for each in saved.subscriptions]
    for sub in subscriptions:
        registry.add(sub)
    return subscriptions


def load_writers(state: bytes) -> Writers:
    """Who writes in transactions, alone. Raises BadSnapshot."""
    writers = Writers()
    for saved in _decode(state).writers:
        _load_writer(saved, writers)
    return writers


def _decode(state: bytes) -> Saved:
    try:
        saved = msgspec.msgpack.decode(state, type=Saved)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadSnapshot(f"not a snapshot of the broker: {error}") from error
    if saved.version != VERSION:
        raise BadSnapshot(f"snapshot of version {saved.version}, this broker reads {VERSION}")
    return saved


def _load(saved: SavedSubscription, registry: Registry) -> Subscription:
    sub = Subscription(saved.id, saved.definition, registry.topic(saved.definition.topic))
    sub.cursor = saved.cursor
    sub.passed = saved.passed
    sub.redelivered = saved.redelivered
    sub.tally = saved.tally
    for first, count, offset, attempt, due, awaited in saved.runs:
        run = Run(first, count, offset, attempt, due, awaited, None)
        run.tail = saved.tails.get(first, 0)
        sub.add(run)
    return sub


def _save(sub: Subscription) -> SavedSubscription:
    return SavedSubscription(
        sub.id,
        sub.definition,
        sub.cursor,
        sub.passed,
        sub.redelivered,
        sub.tally,
        [(run.first, run.count, run.offset, run.attempt, run.due, run.awaited) for run in sub.runs],
        {run.first: run.tail for run in sub.runs if run.tail},
    )


def _load_writer(saved: SavedWriter, writers: Writers) -> None:
    progress = Progress(saved.batch, saved.open_batch, saved.chunks_done, saved.last_used)
    writers.restore((saved.owner, saved.writer), progress)


def _save_writer(owner: str, writer: str, progress: Progress) -> SavedWriter:
    return SavedWriter(owner, writer, progress.batch, progress.open_batch, progress.chunks_done, progress.last_used)
