"""Few files in place of many, while others write and read."""

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.spark.lake.compaction import MAINTENANCE_LOCK, SMALL_BYTES, Compacted, compact, groups
from headrace.spark.lake.disk import locked
from headrace.spark.lake.layout import FORMATS, Layout
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import DataFile, LakeError
from tests.unit.spark_lake.tables import APPEND, UPSERT, minutes, offsets, rows, write


def file(first: int, size: int = 100, partition: str = "date=2026-05-04") -> DataFile:
    return DataFile(Path(partition) / f"{first}", partition, size, 10, first, first + 9)


def test_small_neighbours_of_one_day_are_joined() -> None:
    small = [file(at) for at in (20, 0, 10)]
    big, alone = file(5, SMALL_BYTES), file(0, partition="date=2026-05-05")
    assert groups([*small, big, alone], 2) == [[small[1], small[2], small[0]]]
    assert groups(small, 4) == []


def test_what_does_not_fit_one_file_becomes_several() -> None:
    size = SMALL_BYTES - 1
    assert [len(group) for group in groups([file(at, size) for at in range(0, 80, 10)], 2)] == [4, 4]


@pytest.mark.parametrize("form", FORMATS)
def test_the_rows_stay(tmp_path: Path, form: str) -> None:
    for batch in range(5):
        write(tmp_path, form, APPEND, batch, rows(batch * 10, 10))
    store = open_store(tmp_path, form, APPEND)
    assert compact(store, files_min=2) == Compacted(5, 1)
    assert [(each.first, each.last, each.rows) for each in store.files()] == [(0, 49, 50)]
    assert offsets(tmp_path, form) == list(range(50))
    assert compact(store, files_min=2) == Compacted()
    assert not write(tmp_path, form, APPEND, 4, rows(40, 10)), "what was committed is remembered"


def test_replaced_files_go_after_a_while(tmp_path: Path) -> None:
    for batch in range(2):
        write(tmp_path, "parquet", APPEND, batch, rows(batch, 1))
    store = open_store(tmp_path, "parquet", APPEND)
    control = Layout(tmp_path).control(APPEND.name)
    compact(store, files_min=2)
    assert len(list(control.glob("replaced-*"))) == 1
    compact(store, files_min=2, grace_s=-60)
    assert not list(control.glob("replaced-*"))


def test_upsert_tables_have_nothing_to_join(tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, "parquet", UPSERT, batch, minutes({(0, "a"): batch}))
    assert compact(open_store(tmp_path, "parquet", UPSERT), files_min=2) == Compacted()


def test_one_at_a_time(tmp_path: Path) -> None:
    write(tmp_path, "parquet", APPEND, 0, rows(0, 1))
    with locked(Layout(tmp_path).control(APPEND.name) / MAINTENANCE_LOCK), pytest.raises(LakeError, match="another"):
        compact(open_store(tmp_path, "parquet", APPEND))


def test_a_reader_sees_every_row_once_at_any_moment(tmp_path: Path) -> None:
    """Batches come in, files are joined, and whoever lists the folder finds an unbroken beginning of the rows."""
    write(tmp_path, "parquet", APPEND, 0, rows(0, 10))
    failed: list[BaseException] = []

    def _write() -> None:
        try:
            for batch in range(1, 60):
                write(tmp_path, "parquet", APPEND, batch, rows(batch * 10, 10))
                if batch % 5 == 0:
                    compact(open_store(tmp_path, "parquet", APPEND), files_min=2)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=_write)
    writer.start()
    looks = before = 0
    while writer.is_alive() or not looks:
        seen = _seen(tmp_path / APPEND.name)
        if seen is not None:
            assert seen == list(range(len(seen))), "each once, none missing in between"
            assert len(seen) >= before
            before = len(seen)
            looks += 1
    writer.join()
    assert not failed
    assert _seen(tmp_path / APPEND.name) == list(range(600))


def _seen(table: Path) -> list[int] | None:
    """The offsets a plain reader finds; None when files it had listed were joined before it opened them."""
    found: list[int] = []
    for path in table.glob("**/*.parquet"):
        try:
            found += pq.ParquetFile(path).read(columns=["offset"]).column(0).to_pylist()  # type: ignore[arg-type]
        except FileNotFoundError:
            return None
    return sorted(found)
