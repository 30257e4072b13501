import pytest

from headrace.log.extents import EXTENT_BYTES, SegmentMap
from headrace.log.index import BadIndex, encode_index, read_directory, read_extents, read_map, read_sparse


def a_map() -> SegmentMap:
    segment_map = SegmentMap()
    for number in range(50):
        position = number * EXTENT_BYTES // 2
        segment_map.note_record(position, number * 3)
        segment_map.note_batch("orders" if number % 2 else "zahlung-ö", position, 1000, number * 3, 2)
    return segment_map


def encoded(segment_map: SegmentMap) -> bytes:
    return encode_index(segment_map, segment=77, first=0, end=150, size=10**6)


def test_a_map_comes_back_whole() -> None:
    written = a_map()
    directory, read = read_map(encoded(written))
    assert (directory.segment, directory.first, directory.end, directory.size) == (77, 0, 150, 10**6)
    assert (read.ids, read.positions) == (written.ids, written.positions)
    assert set(read.topics) == {"orders", "zahlung-ö"}
    for name, extents in written.topics.items():
        again = read.topics[name]
        assert (again.positions, again.bases, again.sizes, again.counts) == (
            extents.positions,
            extents.bases,
            extents.sizes,
            extents.counts,
        )
        assert (again.end, again.messages) == (extents.end, extents.messages)


def test_one_topic_is_read_without_the_others() -> None:
    data = encoded(a_map())
    read_bytes = 0

    def read(size: int, position: int) -> bytes:
        nonlocal read_bytes
        read_bytes += size
        return data[position : position + size]

    directory, start = read_directory(read)
    extents = read_extents(read, start, directory.topics["orders"])
    assert extents.messages == directory.topics["orders"].messages == 50
    assert read_bytes < len(data) - 16 * len(read_sparse(read, start, directory)[0])


def test_a_topic_whose_batches_all_went_elsewhere_is_left_out() -> None:
    segment_map = SegmentMap()
    segment_map.note_batch("gone", 0, 8, 0, 1)
    segment_map.topics["gone"].take_back(0, 1)
    assert read_map(encoded(segment_map))[0].topics == {}


def test_every_flipped_byte_and_every_cut_is_found() -> None:
    data = encoded(a_map())
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        with pytest.raises(BadIndex):
            read_map(bytes(flipped))
    for size in range(len(data)):
        with pytest.raises(BadIndex):
            read_map(data[:size])
