"""One segment as seen from outside: where its records and topics are, by its sidecar or by walking it forward.

Belongs to a follower, which says how far it may be read and lets one thread at a time in.
"""

from array import array
from pathlib import Path
from typing import NamedTuple

from headrace.kernels.records import BATCHES, MARK_BYTES, tally
from headrace.log.disk import Disk
from headrace.log.extents import SegmentMap
from headrace.log.format import SEGMENT_HEADER_SIZE
from headrace.log.index import BadIndex
from headrace.log.segment import Segment, load_directory, read_segment_header
from headrace.log.walk import Gone, SegmentWalk

_TALLY = 4


class TopicTally(NamedTuple):
    """What there is of one topic: the offset of its first message, the offset after its last, how many, their bytes."""

    first: int
    end: int
    messages: int


class TopicCodes(dict[bytes, int]):
    """Every topic met gets the next number."""

    def __missing__(self, name: bytes) -> int:
        self[name] = code = len(self)
        return code


class Followed:
    """The segment at `path`; offsets from `limit` on belong to the next one, if there is one.

    `segment` says what is known of it: all there is once it is sealed, else as far as it was walked.
    """

    def __init__(self, path: Path, disk: Disk, limit: int | None) -> None:
        """Raises OSError, BadHeader or NewerFormat."""
        self.limit = limit
        self._disk = disk
        self._codes = TopicCodes()
        self._tallies = array("q")
        file = disk.open(path)
        try:
            header, size = read_segment_header(file), file.size()
        finally:
            file.close()
        self.segment = Segment(path, header, header.first, SEGMENT_HEADER_SIZE, SegmentMap())
        if limit is not None:
            self._trust_index(limit, size)

    @property
    def first(self) -> int:
        """Its first offset."""
        return self.segment.first

    @property
    def is_sealed(self) -> bool:
        """Whether its sidecar tells all about it."""
        return self.segment.directory is not None

    @property
    def is_repaired(self) -> bool:
        """Whether some of its offsets may have been given up; its sidecar does not say which."""
        return self.segment.header.generation > 0

    def grow(self, latest: int) -> None:
        """Walk what was not walked yet of the offsets below `latest`. Raises OSError."""
        segment, marks = self.segment, self.segment.map
        limit = latest if self.limit is None else min(latest, self.limit)
        if self.is_sealed or marks is None or segment.end >= limit:
            return
        file = self._disk.open(segment.path)
        try:
            walk = SegmentWalk(file, BATCHES, self._codes, start=segment.end, limit=limit).whole_batches()
            for found in walk.go(segment.size, segment.end):
                for offset, position in walk.take_marks():
                    if not marks.positions or position - marks.positions[-1] >= MARK_BYTES:
                        marks.ids.append(offset)
                        marks.positions.append(position)
                if not isinstance(found, Gone):
                    self._tallies.extend([0] * (_TALLY * len(self._codes) - len(self._tallies)))
                    tally(found.table, found.parts, self._tallies)
            segment.end, segment.size = walk.expected, walk.position
        finally:
            file.close()

    def tallies(self) -> dict[str, TopicTally]:
        """What it holds of each topic, as far as it was walked."""
        if self.segment.directory is not None:
            topics = self.segment.directory.topics
            return {name: TopicTally(entry.first, entry.end, entry.messages) for name, entry in topics.items()}
        return {
            name.decode(errors="replace"): TopicTally(*self._tallies[_TALLY * code : _TALLY * code + 3])
            for name, code in self._codes.items()
            if _TALLY * code < len(self._tallies)
        }

    def _trust_index(self, limit: int, size: int) -> None:
        """Take the sidecar's word, if there is one that was made from this segment."""
        try:
            directory = load_directory(self.segment, self._disk)
        except (BadIndex, OSError):
            return
        if directory.end == limit and directory.size <= size:
            self.segment.end, self.segment.size = limit, directory.size
            self.segment.map, self.segment.directory = None, directory
