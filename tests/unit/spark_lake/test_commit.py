"""A batch is in a table once, in every format, whatever happens during the commit."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.spark.lake import delta, iceberg, parquet
from headrace.spark.lake.commit import commit
from headrace.spark.lake.compaction import compact
from headrace.spark.lake.layout import FORMATS
from headrace.spark.lake.sink import Staged, Target
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import LakeError
from tests.unit.spark_lake.doomed import append, compacted, killed_at, upsert
from tests.unit.spark_lake.tables import APPEND, NOON, UPSERT, minutes, offsets, read, rows, staged, write

STEPS = {"parquet": parquet.STEPS, "delta": delta.STEPS, "iceberg": iceberg.STEPS}
EVERY_STEP = [(form, step) for form, steps in STEPS.items() for step in steps]
EVERY_SWAP_STEP = [*(("parquet", step) for step in parquet.SWAP_STEPS), *EVERY_STEP[len(parquet.STEPS) :]]


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_rows_are_there_once_committed(tmp_path: Path, form: str) -> None:
    assert write(tmp_path, form, APPEND, 0, rows(0, 10))
    assert write(tmp_path, form, APPEND, 1, rows(10, 5), rows(15, 5))
    assert offsets(tmp_path, form) == list(range(20))


def test_a_replayed_batch_is_ignored(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, APPEND, 0, rows(0, 10))
    write(tmp_path, form, APPEND, 1, rows(10, 10))
    assert not write(tmp_path, form, APPEND, 1, rows(10, 10))
    assert not write(tmp_path, form, APPEND, 0, rows(0, 10))
    assert write(tmp_path, form, APPEND, 2, rows(20, 1))
    assert offsets(tmp_path, form) == list(range(21))
    assert not list(open_store(tmp_path, form, APPEND).staging.iterdir())


def test_writers_count_for_themselves(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, APPEND, 7, rows(0, 3), writer="one")
    assert write(tmp_path, form, APPEND, 0, rows(3, 3), writer="other")
    assert offsets(tmp_path, form) == list(range(6))


def test_a_batch_without_rows_is_remembered_too(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, APPEND, 0, rows(0, 3))
    write(tmp_path, form, APPEND, 1)
    assert open_store(tmp_path, form, APPEND).committed("w") == 1
    assert offsets(tmp_path, form) == [0, 1, 2]


def test_rows_lie_by_day(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, APPEND, 0, rows(0, 2), rows(2, 2, NOON + timedelta(days=1)))
    found = open_store(tmp_path, form, APPEND).files()
    assert [(file.partition, file.rows, file.first, file.last) for file in found] == [
        ("date=2026-05-04", 2, 0, 1), ("date=2026-05-05", 2, 2, 3),
    ]  # fmt: skip
    assert offsets(tmp_path, form) == [0, 1, 2, 3]


def test_a_new_column_is_null_in_older_rows(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, APPEND, 0, rows(0, 2))
    wider = rows(2, 2).append_column("tenant", pa.array(["a", "b"]))
    write(tmp_path, form, APPEND, 1, wider)
    write(tmp_path, form, APPEND, 2, rows(4, 1))
    assert {row["offset"]: row.get("tenant") for row in read(tmp_path, form, APPEND)} == {
        0: None, 1: None, 2: "a", 3: "b", 4: None,
    }  # fmt: skip
    compact(open_store(tmp_path, form, APPEND), files_min=2)
    assert {row["offset"]: row.get("tenant") for row in read(tmp_path, form, APPEND)} == {
        0: None, 1: None, 2: "a", 3: "b", 4: None,
    }  # fmt: skip


def test_of_equal_keys_the_newest_row_is_kept(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, UPSERT, 0, minutes({(0, "a"): 1, (0, "b"): 5, (59, "a"): 7}))
    write(tmp_path, form, UPSERT, 1, minutes({(0, "a"): 2, (60, "a"): 3}))
    assert not write(tmp_path, form, UPSERT, 0, minutes({(0, "a"): 1}))
    found = read(tmp_path, form, UPSERT)
    assert {(row["minute"].hour, row["minute"].minute, row["topic"]): row["messages"] for row in found} == {
        (12, 0, "a"): 2, (12, 0, "b"): 5, (12, 59, "a"): 7, (13, 0, "a"): 3,
    }  # fmt: skip
    assert len(found) == 4
    assert len(open_store(tmp_path, form, UPSERT).files()) == 2


@pytest.mark.parametrize(("form", "step"), EVERY_STEP)
def test_killed_while_appending(tmp_path: Path, form: str, step: str) -> None:
    write(tmp_path, form, APPEND, 0, rows(0, 10))
    killed_at(step, append, tmp_path, form)
    between = offsets(tmp_path, form)
    assert len(between) == len(set(between)), "no row twice, not even before anybody cleaned up"
    assert between in ([*range(10)], [*range(20)], [*range(30)])
    write(tmp_path, form, APPEND, 1, rows(10, 10), rows(20, 10, NOON + timedelta(days=1)))
    assert offsets(tmp_path, form) == list(range(30))


@pytest.mark.parametrize(("form", "step"), EVERY_STEP)
def test_killed_while_upserting(tmp_path: Path, form: str, step: str) -> None:
    write(tmp_path, form, UPSERT, 0, minutes({(0, "a"): 1, (60, "a"): 1}))
    killed_at(step, upsert, tmp_path, form)
    between = [(row["minute"], row["topic"]) for row in read(tmp_path, form, UPSERT)]
    assert len(between) == len(set(between))
    write(tmp_path, form, UPSERT, 1, minutes({(0, "a"): 2, (60, "a"): 3}))
    assert sorted(row["messages"] for row in read(tmp_path, form, UPSERT)) == [2, 3]


@pytest.mark.parametrize(("form", "step"), EVERY_SWAP_STEP)
def test_killed_while_compacting(tmp_path: Path, form: str, step: str) -> None:
    for batch in range(3):
        write(tmp_path, form, APPEND, batch, rows(batch * 10, 10))
    killed_at(step, compacted, tmp_path, form)
    assert offsets(tmp_path, form) == list(range(30))
    write(tmp_path, form, APPEND, 3, rows(30, 10))
    compact(open_store(tmp_path, form, APPEND), files_min=2)
    assert offsets(tmp_path, form) == list(range(40))
    assert len(open_store(tmp_path, form, APPEND).files()) == 1


def test_staged_files_that_are_gone_stop_the_commit(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, APPEND, 0, rows(0, 3))
    lost = staged(tmp_path, APPEND, rows(3, 3))
    Path(lost[0].path).unlink()
    with pytest.raises((LakeError, FileNotFoundError)):
        commit(open_store(tmp_path, form, APPEND), "w", 1, lost)
    assert write(tmp_path, form, APPEND, 1, rows(3, 3))
    assert offsets(tmp_path, form) == list(range(6))


@pytest.mark.parametrize(("form", "step"), EVERY_STEP)
def test_a_commit_that_fails_and_is_aborted_loses_nothing(tmp_path: Path, form: str, step: str) -> None:
    def _fail(reached: str) -> None:
        if reached == step:
            raise OSError("the disk is full")

    write(tmp_path, form, APPEND, 0, rows(0, 3))
    files = staged(tmp_path, APPEND, rows(3, 3), rows(6, 3, NOON + timedelta(days=1)))
    with pytest.raises(OSError, match="full"):
        commit(open_store(tmp_path, form, APPEND, _fail), "w", 1, files)
    Target(tmp_path, form, APPEND).abort([Staged("w", files), None])
    write(tmp_path, form, APPEND, 1, rows(3, 3), rows(6, 3, NOON + timedelta(days=1)))
    assert offsets(tmp_path, form) == list(range(9))
    assert not list(open_store(tmp_path, form, APPEND).staging.iterdir())
