"""Streams into the lake's tables through real Spark: each row once, also when Spark does a batch again."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from headrace.spark.lake.layout import FORMATS, Layout
from headrace.spark.lake.sink import FORMAT, LakeSink
from headrace.spark.lake.stores import open_store
from tests.unit.spark_lake.tables import APPEND, SCHEMA, offsets, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_SCHEMA = "offset long, timestamp timestamp, value binary"


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def follow(spark: "SparkSession", tmp_path: Path) -> Callable[[str], None]:
    """Bring the table up to date with the folder `in`, one micro-batch a file."""
    spark.dataSource.register(LakeSink)
    (tmp_path / "in").mkdir()

    def _follow(form: str) -> None:
        source = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        query = (
            source.repartition(2).writeStream.format(FORMAT)
            .options(path=str(tmp_path), tableformat=form, table=APPEND.encode())
            .option("checkpointLocation", str(Layout(tmp_path).checkpoint(APPEND.name)))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()

    return _follow


def arrive(folder: Path, first: int, count: int) -> None:
    """A file of rows for the stream to find."""
    with pq.ParquetWriter(folder / f"{first:04d}.parquet", SCHEMA) as writer:
        writer.write_batch(rows(first, count))


def test_a_batch_done_again_changes_nothing(tmp_path: Path, form: str, follow: Callable[[str], None]) -> None:
    arrive(tmp_path / "in", 0, 100)
    follow(form)
    arrive(tmp_path / "in", 100, 50)
    follow(form)
    assert offsets(tmp_path, form) == list(range(150))
    files = open_store(tmp_path, form, APPEND).files()
    commits = Layout(tmp_path).checkpoint(APPEND.name) / "commits"
    newest = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    newest.unlink()
    follow(form)
    assert open_store(tmp_path, form, APPEND).files() == files
    arrive(tmp_path / "in", 150, 1)
    follow(form)
    assert offsets(tmp_path, form) == list(range(151))


def test_any_reader_of_parquet_sees_the_table(
    spark: "SparkSession", tmp_path: Path, follow: Callable[[str], None]
) -> None:
    import duckdb
    import pandas as pd
    import polars as pl

    arrive(tmp_path / "in", 0, 10)
    follow("parquet")
    table = tmp_path / "messages"
    assert spark.read.parquet(str(table)).count() == 10
    assert len(pd.read_parquet(table)) == 10
    assert pl.read_parquet(table / "**" / "*.parquet").height == 10
    counted = duckdb.connect().execute(f"SELECT count(*), min(date)::VARCHAR FROM '{table}/**/*.parquet'").fetchall()
    assert counted == [(10, "2026-05-04")]
