"""Rows of the lake's tables by a condition in Spark's SQL, and edits of their columns on the way."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import HeadraceError
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.stores import open_store
from headrace.spark.lake.table import LakeError, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EDITABLE = ("key", "value", "headers", "message_id")

_EDIT = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*(\S.*)", re.DOTALL)
_ERROR_CLASS = re.compile(r"^\s*\[[A-Z_.]+\]\s*")
_ERROR_END = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)


class BadQuery(HeadraceError):
    """A condition or an edit that Spark does not take; the text says why, and which columns there are."""


class Edit(NamedTuple):
    """A column's new value as an SQL expression over the old row."""

    column: str
    expression: str


def parse_edit(text: str) -> Edit:
    """`column = expression`. Raises BadQuery."""
    found = _EDIT.fullmatch(text)
    if found is None:
        raise BadQuery(f"{text!r} is no edit; write column = expression, such as value = upper(value)")
    if found[1] not in EDITABLE:
        raise BadQuery(f"{found[1]!r} cannot be set; only {', '.join(EDITABLE)} can")
    return Edit(found[1], found[2].strip())


def stored_files(lake: Path, name: str) -> list[Path]:
    """The files of a table of the lake as it is now. Raises LakeError when there is no such table or nothing in it."""
    form = Layout(lake).format()
    if form is None:
        raise LakeError(f"there is no lake in {lake}; `headrace pipeline run --lake {lake}` makes one")
    files = open_store(lake, form, TableSpec(name=name)).files()
    if not files:
        there = sorted(path.name for path in lake.iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))
        raise LakeError(f"the lake {lake} has no rows in a table {name!r}; it has {', '.join(there) or 'none'}")
    return [file.path.absolute() for file in files]


def read_table(spark: "SparkSession", lake: Path, name: str) -> "DataFrame":
    """The rows of a table of the lake, as its readers see them now, whatever its format. Raises LakeError."""
    files, layout = stored_files(lake, name), Layout(lake)
    data = layout.table(name).absolute() / ("data" if layout.format() == "iceberg" else "")
    reader = spark.read.option("basePath", str(data)).option("mergeSchema", "true")
    return reader.parquet(*map(str, files))


def matching(rows: "DataFrame", condition: str) -> "DataFrame":
    """The rows for which the condition holds. Raises BadQuery."""
    with explained(f"--where {condition!r}", rows.columns):
        return rows.where(condition)


def edited(rows: "DataFrame", edits: Sequence[Edit]) -> "DataFrame":
    """The rows with their columns set anew, all at once: each expression sees the old row. Raises BadQuery."""
    from pyspark.sql import functions as f

    if not edits:
        return rows
    columns = {}
    for edit in edits:
        with explained(f"--set {edit.column} = {edit.expression!r}", rows.columns):
            columns[edit.column] = f.expr(edit.expression)
            rows.select(columns[edit.column])
    return rows.withColumns(columns)


@contextmanager
def explained(what: str, columns: Sequence[str]) -> Iterator[None]:
    """Has what Spark says about wrong SQL as a BadQuery, in one line, and nothing of it in the log."""
    from pyspark.errors import AnalysisException, ParseException

    told = logging.getLogger("SQLQueryContextLogger")
    before, told.disabled = told.disabled, True
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise BadQuery(f"{what}: {brief(str(error))} The columns are {', '.join(columns)}.") from None
    finally:
        told.disabled = before


def brief(text: str) -> str:
    """What Spark says about an error, without its code, its plan and its place."""
    said = _ERROR_END.sub("", _ERROR_CLASS.sub("", text.strip(), count=1)).strip()
    line = " ".join(said.split())
    return line if line.endswith((".", "?")) else f"{line}."
