"""Single cells of a batch: parts of values, and rows found by what is in a column."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.batch import Batch, Column, build_batch

CELLS = st.lists(st.text("ab", max_size=4), min_size=1, max_size=12)


@given(CELLS, st.text("ab", max_size=3))
def test_rows_are_found_by_what_is_in_a_column(ids: list[str], needle: str) -> None:
    batch = Batch(build_batch("t", [b""] * len(ids), timestamp_us=1, message_ids=ids), 0, 5)
    found = list(batch.rows_containing(Column.MESSAGE_ID, needle.encode()))
    assert found == [row for row, cell in enumerate(ids) if needle and needle in cell]
    assert list(batch.rows_containing(Column.HEADERS, b"x")) == []


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5), st.integers(0, 12), st.integers(0, 12))
def test_a_value_is_had_in_parts_and_no_part_is_anothers(values: list[bytes], start: int, size: int) -> None:
    batch = Batch(build_batch("t", values, timestamp_us=1), 0, 5)
    for row, value in enumerate(values):
        assert batch.value_size(row) == len(value)
        assert batch.value_part(row, start, size) == value[start : start + size]
        assert batch.message(row, size).value == value[:size]
        assert batch.message(row).value == value
