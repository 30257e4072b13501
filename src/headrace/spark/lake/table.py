"""What the lake needs to know of a table, and of a file of it. Knows no format and touches no disk."""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headrace.model.errors import HeadraceError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FILE = re.compile(r"(?P<first>\d{20})-(?P<last>\d{20})-(?P<rows>\d+)-[0-9a-f]{12}\.parquet")


class LakeError(HeadraceError):
    """Something about the lake that its owner has to know; the text says what and where."""


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """How a table is kept.

    Rows lie in folders by the day of the column `time`; without one there is a single folder. `position` is the column
    with the offset in the log, by which files are named. A table with `keys` is an upsert table: of rows with equal
    keys one is kept, in each column the newest value that is not null, else what `defaults` says; rows
    whose column `required` stays empty are left out.
    """

    name: str
    time: str | None = "timestamp"
    position: str | None = "offset"
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LakeError(f"bad table name {self.name[:100]!r}: lower-case letters, digits and '_', a letter first")

    def encode(self) -> str:
        """The table as text, to travel as an option of the sink."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "TableSpec":
        """The inverse of `encode`."""
        given = json.loads(text)
        return cls(**{**given, "keys": tuple(given["keys"])})


class StagedFile(NamedTuple):
    """A file that is written and synced and that no reader sees yet."""

    path: str
    partition: str
    name: str
    rows: int
    bytes: int
    newest_us: int


class DataFile(NamedTuple):
    """A file that readers see. `first` and `last` are the offsets of its rows; None when its name does not say."""

    path: Path
    partition: str
    bytes: int
    rows: int | None = None
    first: int | None = None
    last: int | None = None

    @property
    def bucket(self) -> str:
        """Of an upsert table: which part of the keys the file holds."""
        return "/".join(filter(None, (self.partition, self.path.stem.partition("-")[0])))


def file_name(first: int, last: int, rows: int) -> str:
    """A name for a file with so many rows of these offsets; no two are equal."""
    return f"{first:020d}-{last:020d}-{rows}-{uuid.uuid4().hex[:12]}.parquet"


def data_file(path: Path, table: Path, size: int) -> DataFile:
    """What path, name and size say about a file of a table."""
    parent = path.parent
    partition = "" if parent == table or "=" not in parent.name else parent.name
    if found := _FILE.fullmatch(path.name):
        return DataFile(
            path, partition, size, int(found["rows"]), int(found["first"]), int(found["last"])
        )  # fmt: skip
    return DataFile(path, partition, size)
