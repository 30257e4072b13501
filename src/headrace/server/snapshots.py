"""When the broker's state is written down, so that a start need not read the whole log.

A snapshot may only be seen on disk once every event in it is durable; until then it waits here.
"""

import logging
import struct

from headrace.broker import Broker
from headrace.log import Log, SnapshotWrite
from headrace.model.errors import StorageError
from headrace.server.committer import Job

logger = logging.getLogger("headrace.snapshots")
EVENTS_FROM = struct.Struct("<Q")


class Snapshots:
    """Takes a snapshot whenever the log wants one."""

    def __init__(self) -> None:
        self._taken: tuple[int, int, bytes] | None = None
        self._writing = False

    def due(self, log: Log, broker: Broker) -> SnapshotWrite | None:
        """The write of the next snapshot, once one is due and all it says is on stable storage."""
        if self._writing:
            return None
        if self._taken is None:
            if not log.snapshot_due:
                return None
            self._taken = (log.durable_offset, log.next_offset, broker.snapshot())
        covered, events_from, state = self._taken
        if log.synced_offset < events_from:
            return None
        self._taken = None
        self._writing = True
        return log.begin_snapshot(EVENTS_FROM.pack(events_from) + state, covered)

    @property
    def waiting(self) -> bool:
        """Whether a snapshot waits for a sync."""
        return self._taken is not None

    def discard(self) -> None:
        """A flush failed: events were given other offsets, so a state that waits fits the log no more."""
        self._taken = None

    def ended(self, log: Log, job: Job) -> None:
        """A job of the committer ended; take it in if it was a snapshot."""
        if isinstance(job, SnapshotWrite):
            self._writing = False
            try:
                log.end_snapshot(job)
            except StorageError as error:
                logger.error("snapshot.failed", extra={"cause": str(error)})

    def write_now(self, log: Log, broker: Broker) -> None:
        """Write the state of a log that is completely synced."""
        try:
            log.write_snapshot(EVENTS_FROM.pack(log.next_offset) + broker.snapshot(), log.durable_offset)
        except StorageError as error:
            logger.error("snapshot.failed", extra={"cause": str(error)})


def split_snapshot(state: bytes) -> tuple[int, bytes]:
    """The offset from which events are not yet in the broker's state, and that state."""
    return EVENTS_FROM.unpack_from(state)[0], state[EVENTS_FROM.size :]
