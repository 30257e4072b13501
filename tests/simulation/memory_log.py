"""A log in memory: what is appended becomes visible by `sync`, and a crash loses any end of what was not."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.model.batch import Batch
from headrace.model.events import EventPart
from headrace.model.parts import iter_parts, payload_span


@dataclass(frozen=True)
class Record:
    """One payload and the offset of its first part; `publish`: what a failed write drops."""

    base: int
    payload: bytes
    publish: bool = False

    @property
    def end(self) -> int:
        return self.base + payload_span(self.payload, 0, len(self.payload))

    def parts(self) -> Iterator[Batch | tuple[int, EventPart]]:
        return iter_parts(self.payload, 0, len(self.payload), self.base)


class MemoryLog:
    """Implements BatchSource over the records that are synced."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.synced = 0
        self.first_offset = 0
        self._topics: dict[str, list[Batch]] = {}

    @property
    def next_offset(self) -> int:
        return self.records[-1].end if self.records else 0

    @property
    def durable_offset(self) -> int:
        return self.records[self.synced - 1].end if self.synced else 0

    def append(self, payload: bytes, *, publish: bool = False) -> Record:
        record = Record(self.next_offset, payload, publish)
        self.records.append(record)
        return record

    def sync(self) -> list[Batch]:
        """Make everything appended visible, and say which batches became so."""
        fresh = [p for record in self.records[self.synced :] for p in record.parts() if isinstance(p, Batch)]
        self.synced = len(self.records)
        for batch in fresh:
            self._topics.setdefault(batch.topic, []).append(batch)
        return fresh

    def crash(self, kept: int) -> None:
        """Lose the unsynced records but for the first `kept`; those are found again and so are visible."""
        del self.records[self.synced + kept :]
        self.sync()

    def refuse(self) -> None:
        """Drop the unsynced publishes, as after a failed write, and give the events kept the next offsets."""
        unsynced = self.records[self.synced :]
        del self.records[self.synced :]
        for record in unsynced:
            if not record.publish and not all(isinstance(part, Batch) for part in record.parts()):
                self.append(record.payload)

    def delete_before(self, offset: int) -> None:
        """Delete the batches that end at or before the offset, as retention does."""
        self.first_offset = offset
        for name, batches in self._topics.items():
            self._topics[name] = [batch for batch in batches if batch.end > offset]

    def batch_at(self, topic: str, offset: int) -> Batch | None:
        batches = self._topics.get(topic, [])
        index = bisect_right(batches, offset, key=lambda batch: batch.base) - 1
        if index >= 0 and offset < batches[index].end:
            return batches[index]
        return batches[index + 1] if index + 1 < len(batches) else None

    def topic_end(self, topic: str) -> int:
        batches = self._topics.get(topic)
        return batches[-1].end if batches else 0

    def lost_between(self, topic: str, start: int, end: int) -> list[tuple[int, int]]:
        """Memory does not go bad."""
        return []

    def count_from(self, topic: str, offset: int) -> int:
        return sum(max(0, b.end - max(offset, b.base)) for b in self._topics.get(topic, []))
