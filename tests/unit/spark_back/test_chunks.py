"""Where what is to be sent is cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.back.chunks import ROWS_MAX, STRETCHES_MAX, Chunk, Stretch, cut, rows_max, stretch_size


def test_a_stretch_is_one_offset_while_there_are_few() -> None:
    assert stretch_size(10, 10) == 1
    assert stretch_size(0, STRETCHES_MAX - 1) == 1


def test_there_are_never_too_many_stretches() -> None:
    for last in (STRETCHES_MAX, 10 * STRETCHES_MAX + 7, 1 << 50):
        size = stretch_size(0, last)
        assert (last + size) // size <= STRETCHES_MAX


def test_a_chunk_holds_about_a_second_of_rows() -> None:
    assert rows_max(None) == ROWS_MAX
    assert rows_max(7) == 7
    assert rows_max(10 * ROWS_MAX) == ROWS_MAX


def test_rows_are_cut_where_the_limit_is_reached() -> None:
    stretches = [Stretch(number, 1, 10) for number in (0, 3, 4, 9, 10)]
    assert cut(stretches, first=100, size=1, rows_max=2) == [
        Chunk(100, 104, 2),
        Chunk(104, 110, 2),
        Chunk(110, 111, 1),
    ]


def test_big_rows_make_small_chunks() -> None:
    stretches = [Stretch(number, 1, 60) for number in range(3)]
    assert [chunk.rows for chunk in cut(stretches, first=0, size=1, rows_max=100, bytes_max=100)] == [1, 1, 1]


def test_a_stretch_is_never_divided() -> None:
    assert cut([Stretch(0, 500, 10)], first=0, size=1000, rows_max=100) == [Chunk(0, 1000, 500)]


def test_nothing_is_no_chunk() -> None:
    assert cut([], first=0, size=1, rows_max=10) == []


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50), st.integers(0, 1000)), unique_by=lambda each: each[0]),
    st.integers(1, 9),
    st.integers(1, 200),
    st.integers(1, 5000),
)
def test_every_row_is_in_one_chunk(
    given_stretches: list[tuple[int, int, int]], size: int, limit: int, bytes_max: int
) -> None:
    stretches = [Stretch(*each) for each in sorted(given_stretches)]
    chunks = cut(stretches, first=5, size=size, rows_max=limit, bytes_max=bytes_max)
    assert sum(chunk.rows for chunk in chunks) == sum(each.rows for each in stretches)
    assert all(one.end <= other.start for one, other in pairwise(chunks))
    for each in stretches:
        start = 5 + each.number * size
        assert sum(chunk.start <= start and start + size <= chunk.end for chunk in chunks) == 1
