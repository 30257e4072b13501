"""Which segments have had their time, and taking them off the disk."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from headrace.log.catalog import CatalogFile
from headrace.log.disk import Disk
from headrace.log.segment import Segment
from headrace.model.errors import StorageError


def expired_segments(segments: Sequence[Segment], *, before_us: int, below: int) -> list[Segment]:
    """The oldest sealed segments all of whose records are older than `before_us` and below the offset `below`.

    Nothing in a segment is younger than the creation of the next; the last segment is never among them.
    """
    expired = []
    for segment, following in pairwise(segments):
        if segment.end > below or following.header.created_us > before_us:
            break
        expired.append(segment)
    return expired


class Removal:
    """Segments the log has already forgotten, to be removed from the disk in any thread."""

    def __init__(self, directory: Path, disk: Disk, segments: list[Segment], catalog: CatalogFile) -> None:
        self.segments = segments
        self.error: StorageError | None = None
        self._directory = directory
        self._disk = disk
        self._catalog = catalog

    def run(self) -> None:
        """Remove them, oldest first, once the catalog says that they are not needed any more. Never raises OSError.

        A removal that fails or is cut short is done by the next start.
        """
        try:
            self._catalog.retires(self.segments[-1].end)
            names = set(self._disk.list(self._directory))
            for segment in self.segments:
                for path in (segment.path, segment.index_path):
                    if path.name in names:
                        self._disk.unlink(path)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            self.error = StorageError(f"cannot remove segments: {error.strerror or error}")
