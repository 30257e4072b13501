"""What the log holds of each topic, newest batches in memory, older ones by way of the segments' extents."""

from bisect import bisect_right
from collections import deque
from operator import attrgetter

from headrace.log.reader import Reader
from headrace.log.segment import Segment
from headrace.model.batch import Batch

_OBJECT_BYTES = 1000
"""What a cached batch costs besides its bytes."""

_COMPACT_FROM = 256

_segment_end = attrgetter("end")


class Topic:
    """One topic: the segments it occurs in, and its cached newest batches."""

    __slots__ = ("_bases", "_batches", "_head", "cold_end", "end", "segments")

    def __init__(self) -> None:
        self.end = 0
        self.cold_end = 0
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self._batches: list[Batch | None] = []
        self._head = 0

    def remember(self, batch: Batch) -> None:
        """Cache the newest batch."""
        self._bases.append(batch.base)
        self._batches.append(batch)
        self.end = batch.base + batch.count

    def evict(self) -> None:
        """Forget the oldest cached batch; its place in the lists is given back with those of others."""
        oldest = self._batches[self._head]
        assert oldest is not None
        self.cold_end = oldest.end
        self._batches[self._head] = None
        self._head += 1
        if self._head >= _COMPACT_FROM and 2 * self._head >= len(self._batches):
            del self._bases[: self._head], self._batches[: self._head]
            self._head = 0
        elif self._head == len(self._batches):
            self._bases.clear()
            self._batches.clear()
            self._head = 0

    def cached_at(self, offset: int) -> Batch | None:
        """The cached batch that holds `offset`, else the next; call only for offsets from `cold_end` on."""
        number = bisect_right(self._bases, offset, self._head)
        if number > self._head:
            batch = self._batches[number - 1]
            assert batch is not None
            if offset < batch.base + batch.count:
                return batch
        return self._batches[number] if number < len(self._batches) else None


class Topics:
    """Every topic of a log, with one bound on the bytes cached for all of them."""

    def __init__(self, reader: Reader, cache_bytes: int) -> None:
        self._reader = reader
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._cached: deque[tuple[Topic, int]] = deque()
        self._topics: dict[str, Topic] = {}

    def names(self) -> list[str]:
        """The topics that have messages, sorted."""
        return sorted(name for name, topic in self._topics.items() if topic.segments)

    def add_segment(self, segment: Segment) -> None:
        """Take in the topics of a segment found at start-up; segments come in order."""
        if segment.map is not None:
            ends = {name: extents.end for name, extents in segment.map.topics.items() if len(extents)}
        else:
            assert segment.directory is not None
            ends = {name: entry.end for name, entry in segment.directory.topics.items()}
        for name, end in ends.items():
            topic = self._topics.setdefault(name, Topic())
            topic.segments.append(segment)
            topic.end = topic.cold_end = end

    def add_batch(self, batch: Batch, segment: Segment) -> None:
        """Take in a batch that became visible, now at the end of this segment."""
        topic = self._topics.get(batch.topic)
        if topic is None:
            topic = self._topics[batch.topic] = Topic()
        self.place_batch(topic, segment)
        topic.remember(batch)
        cost = batch.size + _OBJECT_BYTES
        self._cached.append((topic, cost))
        self._cached_bytes += cost
        while self._cached_bytes > self._cache_bytes:
            oldest, cost = self._cached.popleft()
            oldest.evict()
            self._cached_bytes -= cost

    def place_batch(self, topic: Topic, segment: Segment) -> None:
        """Note that the topic occurs in this segment."""
        if not topic.segments or topic.segments[-1] is not segment:
            topic.segments.append(segment)

    def move_batch(self, name: str, segment: Segment) -> None:
        """Note that a visible batch was written again, into this segment."""
        self.place_batch(self._topics[name], segment)

    def remove_segment(self, segment: Segment) -> None:
        """Forget a segment that was retired or replaced."""
        for topic in self._topics.values():
            if segment in topic.segments:
                topic.segments.remove(segment)

    def end(self, name: str) -> int:
        """The offset after the topic's last message, 0 when it never had one."""
        topic = self._topics.get(name)
        return topic.end if topic else 0

    def batch_at(self, name: str, offset: int) -> Batch | None:
        """The topic's batch that holds the offset, else its first after it."""
        topic = self._topics.get(name)
        if topic is None or offset >= topic.end:
            return None
        if offset < topic.cold_end:
            batch = self._cold_at(topic, name, offset)
            if batch is not None:
                return batch
            offset = topic.cold_end
        return topic.cached_at(offset)

    def next_in(self, name: str, offset: int) -> int | None:
        """An offset before which the topic has no message from `offset` on; None when it has none at all.

        With offset 0 it is the topic's first message. Reads no file: it is told by where the segments' extents begin.
        """
        topic = self._topics.get(name)
        if topic is None or offset >= topic.end:
            return None
        for number in range(bisect_right(topic.segments, offset, key=_segment_end), len(topic.segments)):
            first, end = self._bounds(topic.segments[number], name)
            if offset < end:
                return max(offset, first)
        return offset

    def count_from(self, name: str, offset: int) -> int:
        """How many messages of the topic have this offset or a later one."""
        topic = self._topics.get(name)
        if topic is None or offset >= topic.end:
            return 0
        count = 0
        for segment in reversed(topic.segments):
            if offset >= segment.end:
                break
            if offset <= segment.first:
                count += self._messages(segment, name)
            else:
                count += self._count_within(segment, name, offset)
        return count

    def lost_between(self, name: str, start: int, end: int) -> list[tuple[int, int]]:
        """Where messages of the topic were lost to damage that begins in these offsets: first offset, how many."""
        topic = self._topics.get(name)
        if topic is None:
            return []
        segments = [segment for segment in topic.segments if segment.end > start and segment.first < end]
        return [lost for segment in segments for lost in self._reader.lost_in(segment, name, start, end)]

    def _count_within(self, segment: Segment, name: str, offset: int) -> int:
        extents = self._reader.extents(segment, name)
        if not len(extents):
            return 0
        number = extents.first_holding(offset)
        count = sum(extents.counts[number + 1 :])
        if offset <= extents.bases[number]:
            return count + extents.counts[number]
        for batch in self._reader.stretch(segment, name, extents, number).batches:
            count += min(batch.count, max(0, batch.end - offset))
        return count

    def _cold_at(self, topic: Topic, name: str, offset: int) -> Batch | None:
        """The batch on disk that holds the offset, else the first after it."""
        for number in range(bisect_right(topic.segments, offset, key=_segment_end), len(topic.segments)):
            segment = topic.segments[number]
            extents = self._reader.extents(segment, name)
            for extent in range(extents.first_holding(offset), len(extents)):
                batch = self._reader.stretch(segment, name, extents, extent).at(offset)
                if batch is not None:
                    return batch
        return None

    @staticmethod
    def _bounds(segment: Segment, name: str) -> tuple[int, int]:
        """The topic's first offset in a segment and the one after its last; (0, 0) when it is not in there."""
        if segment.map is not None:
            extents = segment.map.topics.get(name)
            return (extents.bases[0], extents.end) if extents else (0, 0)
        assert segment.directory is not None
        entry = segment.directory.topics.get(name)
        return (entry.first, entry.end) if entry else (0, 0)

    @staticmethod
    def _messages(segment: Segment, name: str) -> int:
        if segment.map is not None:
            extents = segment.map.topics.get(name)
            return extents.messages if extents else 0
        assert segment.directory is not None
        entry = segment.directory.topics.get(name)
        return entry.messages if entry else 0
