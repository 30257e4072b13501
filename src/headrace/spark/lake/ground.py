"""Where a table lies in the lake, whatever its format, and the lock of those who write it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.spark.lake.disk import locked, make_folder
from headrace.spark.lake.layout import Layout
from headrace.spark.lake.staging import staged_folder
from headrace.spark.lake.store import Step, unwatched
from headrace.spark.lake.table import TableSpec


class Ground:
    """What stores of every format stand on."""

    def __init__(self, layout: Layout, spec: TableSpec, step: Step = unwatched) -> None:
        self.spec = spec
        self._layout = layout
        self._table = layout.table(spec.name)
        self._control = layout.control(spec.name)
        self._step = step

    @property
    def staging(self) -> Path:
        """Beside the tables, so that no listing of one finds it."""
        return staged_folder(self._control)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer of ours; a format with a log or catalog keeps others apart by that."""
        make_folder(self._control)
        with locked(self._control / "lock"):
            yield
