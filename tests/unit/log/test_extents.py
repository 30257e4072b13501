from headrace.log.extents import EXTENT_BYTES, Extents, SegmentMap


def test_neighbouring_batches_share_an_extent() -> None:
    extents = Extents()
    for number in range(10):
        extents.add(64 + 100 * number, 100, 5 * number, 3)
    assert len(extents) == 1
    assert (extents.positions[0], extents.sizes[0], extents.counts[0]) == (64, 1000, 30)
    assert (extents.messages, extents.end) == (30, 48)


def test_an_extent_spans_no_more_than_its_limit() -> None:
    extents = Extents()
    extents.add(0, 8, 0, 1)
    extents.add(EXTENT_BYTES - 8, 8, 10, 1)
    extents.add(EXTENT_BYTES, 8, 20, 1)
    assert list(extents.bases) == [0, 20]
    assert list(extents.sizes) == [EXTENT_BYTES, 8]


def test_a_record_larger_than_an_extent_has_one_of_its_own() -> None:
    extents = Extents()
    extents.add(0, 3 * EXTENT_BYTES, 0, 1)
    extents.add(3 * EXTENT_BYTES, 8, 1, 1)
    assert list(extents.sizes) == [3 * EXTENT_BYTES, 8]


def test_where_to_look_for_an_offset() -> None:
    extents = Extents()
    for number in range(3):
        extents.add(number * EXTENT_BYTES, 8, 10 * number + 5, 2)
    assert [extents.first_holding(offset) for offset in (0, 5, 14, 15, 99)] == [0, 0, 0, 1, 2]


def test_batches_written_elsewhere_are_taken_back() -> None:
    extents = Extents()
    extents.add(0, 8, 0, 2)
    extents.add(8, 8, 2, 3)
    extents.add(EXTENT_BYTES + 8, 8, 5, 4)
    extents.take_back(5, 4)
    extents.take_back(2, 3)
    assert (list(extents.counts), extents.messages, extents.end) == ([2], 2, 2)
    extents.take_back(0, 2)
    assert (len(extents), extents.messages) == (0, 0)


def test_the_sparse_index_remembers_a_record_each_extent() -> None:
    segment_map = SegmentMap()
    for number in range(100):
        segment_map.note_record(number * 1000, number)
    assert list(segment_map.ids) == [0, 66]
    segment_map.cut(66)
    assert (list(segment_map.ids), list(segment_map.positions)) == ([0], [0])
