"""The lake's format, the names in it, and how far a query has come."""

import json
from pathlib import Path

import pytest

from headrace.spark.lake.layout import Layout
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import LakeError, TableSpec
from headrace.spark.pipeline.positions import batches, position
from headrace.spark.pipeline.tables import TABLES, chosen


def test_a_lake_keeps_its_format(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert layout.format() is None
    assert layout.settle_format("delta") == "delta"
    assert layout.settle_format(None) == "delta"
    with pytest.raises(LakeError, match="is in delta, not in parquet"):
        layout.settle_format("parquet")


def test_formats_are_known_by_name(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="unknown format 'orc'; there are parquet, delta, iceberg"):
        Layout(tmp_path).settle_format("orc")
    with pytest.raises(LakeError, match="unknown format"):
        open_store(tmp_path, "orc", TableSpec(name="messages"))
    assert Layout(tmp_path).settle_format(None) == "parquet"


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "_control", "1st"])
def test_a_table_name_is_never_a_path(name: str) -> None:
    with pytest.raises(LakeError, match="bad table name"):
        TableSpec(name=name)


def test_specs_travel() -> None:
    for table in TABLES.values():
        assert TableSpec.decode(table.spec.encode()) == table.spec


def test_unknown_tables_are_refused() -> None:
    assert [table.name for table in chosen(["traffic", "messages", "traffic"])] == ["traffic", "messages"]
    assert len(chosen(None)) == 7
    with pytest.raises(LakeError, match="unknown table 'trafic'; there are messages, events"):
        chosen(["trafic"])


def test_the_position_is_that_of_the_last_committed_batch(tmp_path: Path) -> None:
    checkpoint = Layout(tmp_path).checkpoint("messages")
    assert position(tmp_path, "messages") is None
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "commits").mkdir()
    for batch, offset in enumerate((10, 25)):
        lines = ["v1", "{}", json.dumps({"offset": offset})]
        (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))
    assert (position(tmp_path, "messages"), batches(tmp_path, "messages")) == (0, 0)
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    (checkpoint / "commits" / ".1.tmp").write_text("")
    assert (position(tmp_path, "messages"), batches(tmp_path, "messages")) == (10, 1)
