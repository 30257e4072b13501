"""What every table format must be able to do, so that appending, upserting and compacting are written once."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from headrace.spark.lake.table import DataFile, StagedFile, TableSpec

Step = Callable[[str], None]
"""Called with the name of each step of a commit as it is reached; tests end the process there."""


def unwatched(_: str) -> None:
    """Nobody watches the steps."""


class Store(Protocol):
    """One table in one format."""

    spec: TableSpec

    @property
    def staging(self) -> Path:
        """The folder into which files are written before `publish`."""

    def locked(self) -> AbstractContextManager[None]:
        """Be the only one to change the table; what a dead writer left half done is finished or undone first."""

    def committed(self, writer: str) -> int | None:
        """The newest batch of this writer that is in the table."""

    def files(self) -> list[DataFile]:
        """The files that readers see now."""

    def publish(self, writer: str, batch: int, added: Sequence[StagedFile], removed: Sequence[DataFile]) -> None:
        """In one step: files in, files out, and the note that this batch of this writer is in. Needs `locked`."""

    def swap(self, added: Sequence[StagedFile], removed: Sequence[DataFile]) -> None:
        """In one step for each folder: the same rows in other files. Needs `locked`."""

    def tidy(self, before_s: float) -> None:
        """Delete what no reader that began after this time can want. Needs `locked`."""
