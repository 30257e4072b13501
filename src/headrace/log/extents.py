"""Where in a segment the batches of each topic lie, in arrays that stay small however many batches there are.

An extent is a stretch of the segment of about EXTENT_BYTES that holds `count` messages of one topic, the first of
them with offset `base`; other topics' records may lie in between. Knows positions and offsets, reads no file.
"""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

EXTENT_BYTES = 64 * 1024


@dataclass(slots=True, eq=False)
class Extents:
    """The extents of one topic in one segment, in order."""

    positions: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes: "array[int]" = field(default_factory=lambda: array("I"))
    bases: "array[int]" = field(default_factory=lambda: array("Q"))
    counts: "array[int]" = field(default_factory=lambda: array("I"))
    end: int = 0
    messages: int = 0

    def add(self, position: int, size: int, base: int, count: int) -> None:
        """Note a batch in the record of `size` bytes at `position`; records come in order."""
        positions = self.positions
        if positions and (stretch := position + size - positions[-1]) <= EXTENT_BYTES:
            self.sizes[-1] = stretch
            self.counts[-1] += count
        else:
            positions.append(position)
            self.sizes.append(size)
            self.bases.append(base)
            self.counts.append(count)
        self.end = base + count
        self.messages += count

    def take_back(self, base: int, count: int) -> None:
        """Undo the last `add`, whose batch has been written elsewhere."""
        self.counts[-1] -= count
        self.messages -= count
        self.end = base
        if not self.counts[-1]:
            for column in (self.positions, self.sizes, self.bases, self.counts):
                column.pop()

    def first_holding(self, offset: int) -> int:
        """The number of the extent in which to look for this offset first."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def __len__(self) -> int:
        return len(self.bases)


@dataclass(slots=True, eq=False)
class SegmentMap:
    """The extents of every topic in a segment, and a sparse index from offset to position."""

    topics: dict[str, Extents] = field(default_factory=dict)
    ids: "array[int]" = field(default_factory=lambda: array("Q"))
    positions: "array[int]" = field(default_factory=lambda: array("Q"))

    def note_record(self, position: int, first: int) -> None:
        """Remember where a record is, if the last remembered one is far enough away."""
        if not self.positions or position - self.positions[-1] >= EXTENT_BYTES:
            self.ids.append(first)
            self.positions.append(position)

    def note_batch(self, topic: str, position: int, size: int, base: int, count: int) -> None:
        """Note a batch in the record of `size` bytes at `position`."""
        self.extents_of(topic).add(position, size, base, count)

    def extents_of(self, topic: str) -> Extents:
        """The topic's extents, to be added to."""
        extents = self.topics.get(topic)
        if extents is None:
            extents = self.topics[topic] = Extents()
        return extents

    def cut(self, first: int) -> None:
        """Forget remembered places of records from this offset on."""
        while self.ids and self.ids[-1] >= first:
            self.ids.pop()
            self.positions.pop()
