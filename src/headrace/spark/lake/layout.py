"""Where things are in a lake directory.

<lake>/<table>/date=YYYY-MM-DD/*.parquet    what readers see, and nothing else that ends in .parquet
<lake>/_checkpoints/<table>/                Spark's, one a query
<lake>/_control/<table>/                    ours: staged files, journal, locks, folders just replaced
<lake>/_control/iceberg.db                  the catalog of Iceberg tables
<lake>/_control/lake.json                   the format
"""

import json
from dataclasses import dataclass
from pathlib import Path

from headrace.spark.lake.disk import write_atomically
from headrace.spark.lake.table import LakeError

FORMATS = ("parquet", "delta", "iceberg")


@dataclass(frozen=True)
class Layout:
    """The paths of one lake."""

    root: Path

    def table(self, name: str) -> Path:
        """The folder of a table's rows."""
        return self.root / name

    def control(self, name: str) -> Path:
        """The folder of what only the writers of a table look at."""
        return self.root / "_control" / name

    def checkpoint(self, name: str) -> Path:
        """Spark's folder for the query that fills a table."""
        return self.root / "_checkpoints" / name

    @property
    def catalog(self) -> Path:
        """The catalog of the lake's Iceberg tables."""
        return self.root / "_control" / "iceberg.db"

    @property
    def run_lock(self) -> Path:
        """Held by the pipeline that fills the lake: there is one at a time."""
        return self.root / "_control" / "run.lock"

    def format(self) -> str | None:
        """The format the lake was made with; None for one that is new.

        Raises LakeError when the note about it makes no sense.
        """
        note = self.root / "_control" / "lake.json"
        try:
            found = json.loads(note.read_text())["format"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{note} makes no sense: {error}") from error
        return str(found)

    def settle_format(self, wanted: str | None) -> str:
        """The lake's format from now on: what it has, else what is wanted, else Parquet.

        Raises LakeError for an unknown format, and for a lake that has another one.
        """
        found = self.format()
        if wanted is not None and wanted not in FORMATS:
            raise LakeError(f"unknown format {wanted!r}; there are {', '.join(FORMATS)}")
        if found is not None and wanted is not None and wanted != found:
            raise LakeError(
                f"the lake {self.root} is in {found}, not in {wanted}; choose another directory with --lake"
            )
        if found is not None:
            return found
        chosen = wanted or FORMATS[0]
        note = self.root / "_control" / "lake.json"
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, json.dumps({"format": chosen}).encode())
        return chosen
