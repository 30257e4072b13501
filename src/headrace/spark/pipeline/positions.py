"""How far a table's query has come, read from Spark's checkpoint in the lake."""

import json
from pathlib import Path

from headrace.spark.lake.layout import Layout


def position(lake: Path, table: str) -> int | None:
    """The offset up to which the table holds everything, exclusive.

    None when its query never ran; 0 when it began and committed nothing yet.
    """
    checkpoint = Layout(lake).checkpoint(table)
    if not _numbers(checkpoint / "offsets"):
        return None
    committed = _numbers(checkpoint / "commits")
    if not committed:
        return 0
    lines = (checkpoint / "offsets" / str(max(committed))).read_text().splitlines()
    return int(json.loads(lines[2])["offset"])


def batches(lake: Path, table: str) -> int:
    """How many micro-batches the table's query has committed."""
    return max(_numbers(Layout(lake).checkpoint(table) / "commits"), default=-1) + 1


def _numbers(folder: Path) -> list[int]:
    """The batches a folder of the checkpoint has files for; those without a name yet do not count."""
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        return []
