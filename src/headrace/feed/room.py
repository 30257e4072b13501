"""How much each owner may stage. Knows files by their names and sizes, not what is in them."""

import os
import shutil
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from headrace.broker.shares import Shares
from headrace.feed.places import OWNER_SIZE, created_us, owner_digest
from headrace.model.errors import OverQuota

COUNT_OFTEN_S = 0.005
COUNT_PART = 10
"""A count that takes longer than the first is made no more often than every so many times as long as it took."""


class Room:
    """How much each owner may stage, and what of the disk is not for staging. Used by several threads.

    What an owner has is what lies in the staging directory under their digest: counted once at the beginning, added to
    by every upload, and counted anew before anybody is refused, for the broker removes files without a word. So it is
    true after restarts, commits and aborts. 0 is no bound.
    """

    def __init__(self, directory: Path, *, uploads: int = 0, files: int = 0, size: int = 0, free_min: int = 0) -> None:
        self._directory = directory
        self._free_min = free_min
        self._uploads = Shares("uploads under way", "limits.uploads_per_key_max", uploads)
        self._files = Shares("staged files", "limits.staged_files_per_key_max", files)
        self._bytes = Shares("staged bytes", "limits.staged_bytes_per_key_max", size)
        self._lock = threading.Lock()
        self._count_from_s = 0.0
        if files or size:
            self._count()

    def begin(self, owner: str) -> "UploadRoom":
        """Room for one more file; `end` it. Raises OverQuota."""
        digest = owner_digest(owner)
        with self._lock:
            self._uploads.take(digest)
        upload = UploadRoom(self, digest)
        try:
            self._take(self._files, digest, 1)
            self._check_free(0)
        except OverQuota:
            upload.end()
            raise
        return upload

    def grow(self, digest: str, size: int) -> None:
        """So much more is about to be written. Raises OverQuota."""
        self._take(self._bytes, digest, size)
        self._check_free(size)

    def _take(self, shares: Shares, digest: str, more: int) -> None:
        if not shares.most:
            return
        with self._lock:
            with suppress(OverQuota):
                shares.take(digest, more)
                return
            if time.monotonic() >= self._count_from_s:
                self._count()
            shares.take(digest, more)

    def _count(self) -> None:
        """Find out what everybody has staged; where that takes long, not again at once, whoever asks."""
        began = time.thread_time()
        files: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        with suppress(FileNotFoundError), os.scandir(self._directory) as found:
            for entry in found:
                if created_us(entry.name) is not None:
                    with suppress(FileNotFoundError):
                        digest = entry.name[:OWNER_SIZE]
                        sizes[digest] += entry.stat(follow_symlinks=False).st_size
                        files[digest] += 1
        self._files.found(files)
        self._bytes.found(sizes)
        spent = time.thread_time() - began
        if spent > COUNT_OFTEN_S:
            self._count_from_s = time.monotonic() + COUNT_PART * spent

    def ended(self, digest: str) -> None:
        """An upload is over; what it left lies there."""
        with self._lock:
            self._uploads.give(digest)

    def _check_free(self, size: int) -> None:
        if self._free_min and shutil.disk_usage(self._directory).free - size < self._free_min:
            raise OverQuota(
                f"the disk has little room left, {self._free_min} bytes of which are for the log "
                "(limits.staging_free_bytes_min)"
            )


class UploadRoom:
    """What one upload takes of its owner's share."""

    __slots__ = ("_digest", "_room")

    def __init__(self, room: Room, digest: str) -> None:
        self._room: Room | None = room
        self._digest = digest

    def grow(self, size: int) -> None:
        """So much more is about to be written. Raises OverQuota."""
        if self._room is not None:
            self._room.grow(self._digest, size)

    def end(self) -> None:
        """The upload is over; saying so twice does nothing."""
        room, self._room = self._room, None
        if room is not None:
            room.ended(self._digest)
