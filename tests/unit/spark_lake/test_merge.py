"""Which rows of equal keys are kept, and in which file they lie."""

from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.spark.lake.merge import buckets, merged
from headrace.spark.lake.table import TableSpec
from tests.unit.spark_lake.tables import NOON, UPSERT, minutes

LETTERS = TableSpec(
    name="letters", time=None, keys=("offset",), defaults={"redriven": False}, required="topic"
)  # fmt: skip
TYPES: dict[str, Any] = {
    "offset": pa.int64(), "topic": pa.string(), "headers": pa.list_(pa.string()), "redriven": pa.bool_(),
}  # fmt: skip


def letters(*rows: tuple[int, str | None, list[str] | None, bool | None]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(TYPES, row, strict=True)) for row in rows], pa.schema(TYPES))


def test_a_later_value_wins_and_a_null_leaves_what_was_there() -> None:
    first = merged(None, letters((2, "a", ["x"], None), (1, "a", None, None)), LETTERS)
    assert first.column("offset").to_pylist() == [1, 2], "in the order of the keys"
    assert first.column("redriven").to_pylist() == [False, False], "nulls have a default"
    then = merged(first, letters((2, None, None, True)), LETTERS)
    assert then.to_pylist() == [
        {"offset": 1, "topic": "a", "headers": None, "redriven": False},
        {"offset": 2, "topic": "a", "headers": ["x"], "redriven": True},
    ]


def test_within_a_batch_the_later_row_wins() -> None:
    rows = letters((1, "a", ["x"], None), (1, None, None, True), (1, "b", None, None))
    assert merged(None, rows, LETTERS).to_pylist() == [{"offset": 1, "topic": "b", "headers": ["x"], "redriven": True}]


def test_what_is_marked_and_was_never_there_stays_away() -> None:
    assert merged(None, letters((1, None, None, True)), LETTERS).num_rows == 0


def test_columns_may_be_added() -> None:
    old = pa.Table.from_batches([minutes({(0, "a"): 1, (0, "b"): 2})])
    new = pa.Table.from_batches([minutes({(0, "a"): 3})]).append_column("bytes", pa.array([9]))
    assert merged(old, new, UPSERT).to_pylist() == [
        {"minute": NOON, "topic": "a", "messages": 3, "bytes": 9},
        {"minute": NOON, "topic": "b", "messages": 2, "bytes": None},
    ]


def test_a_key_has_one_bucket() -> None:
    rows = pa.Table.from_batches([minutes({(0, "a"): 1, (59, "a"): 1, (60, "a"): 1, (60 * 12, "b"): 1})])
    found = {name: part.column("minute").to_pylist() for name, part in buckets(rows, UPSERT)}
    assert found == {
        "date=2026-05-04/12": [NOON, NOON + timedelta(minutes=59)],
        "date=2026-05-04/13": [NOON + timedelta(hours=1)],
        "date=2026-05-05/00": [NOON + timedelta(hours=12)],
    }
    by_offset = buckets(letters((0, "a", None, None), (1 << 20, "b", None, None)), LETTERS)
    assert [name for name, _ in by_offset] == ["000000000000", "000000000001"]
    assert list(buckets(letters(), LETTERS)) == []
