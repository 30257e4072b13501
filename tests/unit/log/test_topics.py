from pathlib import Path

from headrace.log import OsDisk
from headrace.log.extents import SegmentMap
from headrace.log.format import SegmentHeader
from headrace.log.reader import Reader
from headrace.log.segment import Segment
from headrace.log.topics import Topics
from headrace.model.batch import Batch
from tests.unit.log.records import batch

BATCH_COST = len(batch()) + 1000


def a_segment(first: int = 0) -> Segment:
    return Segment(Path("unread.seg"), SegmentHeader(first, 0), first + 1000, 64, SegmentMap())


def some_topics(batches: int, cache: int) -> tuple[Topics, list[Batch]]:
    """Topics to which one-message batches of two topics in turn were added."""
    topics = Topics(Reader(OsDisk()), cache * BATCH_COST)
    segment = a_segment()
    added = [Batch(batch("ab"[base % 2]), 0, base) for base in range(batches)]
    for item in added:
        topics.add_batch(item, segment)
    return topics, added


def test_the_newest_batches_are_found_in_memory() -> None:
    topics, added = some_topics(1000, cache=600)
    for offset in range(500, 1000):
        assert topics.batch_at("ab"[offset % 2], offset) is added[offset]
    assert topics.batch_at("b", 500) is added[501]


def test_an_offset_between_two_batches_leads_to_the_second() -> None:
    topics, added = some_topics(10, cache=100)
    assert topics.batch_at("a", 3) is added[4]
    assert topics.batch_at("a", 8) is added[8]
    assert topics.batch_at("a", 9) is None
    assert topics.end("a") == 9


def test_no_cache_keeps_nothing() -> None:
    topics, _ = some_topics(10, cache=0)
    assert topics.batch_at("a", 0) is None


def test_a_topic_without_segments_is_no_topic() -> None:
    topics = Topics(Reader(OsDisk()), 0)
    segment = a_segment()
    topics.add_batch(Batch(batch("a"), 0, 0), segment)
    assert topics.names() == ["a"]
    topics.remove_segment(segment)
    assert topics.names() == []
