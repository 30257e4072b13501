"""What the ledger finds missing before it asks Spark for anything."""

from pathlib import Path

import pytest

from headrace.spark.lake.layout import Layout
from headrace.spark.lake.table import LakeError
from headrace.spark.ledger.tables import TABLES, require_tables


def begun(lake: Path, table: str) -> None:
    """As a query leaves it that has begun."""
    offsets = Layout(lake).checkpoint(table) / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").touch()


def test_a_lake_without_one_of_the_tables_is_named_with_what_it_has(tmp_path: Path) -> None:
    Layout(tmp_path).settle_format(None)
    begun(tmp_path, "messages")
    (tmp_path / "messages").mkdir()
    with pytest.raises(LakeError, match="has no rows in a table 'events'; it has messages"):
        require_tables(tmp_path)


def test_a_table_whose_query_has_begun_may_be_empty(tmp_path: Path) -> None:
    Layout(tmp_path).settle_format(None)
    for table in TABLES:
        begun(tmp_path, table)
    require_tables(tmp_path)
