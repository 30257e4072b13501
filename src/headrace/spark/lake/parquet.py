"""Tables as plain Parquet files: what lies under `<table>/` is the table, for whoever lists it.

A commit writes its manifest, renames the files into place and then gives the manifest the name of the writer's last
batch. Whoever locks the table next finishes a commit that died in between, so a batch is never in twice and never in
part for good. A file gets its name by one rename; a batch of several files may be seen growing while it is committed.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.spark.lake.disk import exchange, make_folder, sync_folder, write_atomically
from headrace.spark.lake.ground import Ground
from headrace.spark.lake.staging import drop_stale, is_regular
from headrace.spark.lake.table import DataFile, LakeError, StagedFile, data_file

STEPS = ("manifest", "renamed", "visible", "noted")
SWAP_STEPS = ("built", "exchanged")


class ParquetStore(Ground):
    """A table of Parquet files."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer; a commit that died half-way is finished first."""
        make_folder(self._control / "committed")
        with super().locked():
            if self._pending.exists():
                self._settle(json.loads(self._pending.read_text()))
            yield

    def committed(self, writer: str) -> int | None:
        """The newest batch of this writer that is in the table."""
        try:
            return int(json.loads(self._noted(writer).read_text())["batch"])
        except FileNotFoundError:
            return None

    def files(self) -> list[DataFile]:
        """The files under the table's folder."""
        found: list[DataFile] = []
        folders = [self._table]
        while folders:
            try:
                entries = list(os.scandir(folders.pop()))
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.is_dir() and "=" in entry.name:
                    folders.append(Path(entry.path))
                elif is_regular(entry):
                    found.append(data_file(Path(entry.path), self._table, entry.stat().st_size))
        return sorted(found)

    def publish(self, writer: str, batch: int, added: Sequence[StagedFile], removed: Sequence[DataFile]) -> None:
        """Files into place by rename; those of an upsert take the names of the ones they replace.

        Raises LakeError when a staged file is gone; nothing is changed then.
        """
        gone = [file.path for file in added if not Path(file.path).exists()]
        if gone:
            raise LakeError(f"{self.spec.name}: somebody deleted staged files of batch {batch}: {', '.join(gone)}")
        names = {self._target(file) for file in added}
        assert all(file.path in names for file in removed), "a file is only ever replaced by one of its name"
        moves = [[file.path, str(self._target(file).relative_to(self._table))] for file in added]
        manifest = {"writer": writer, "batch": batch, "moves": moves}
        write_atomically(self._pending, json.dumps(manifest).encode())
        self._step("manifest")
        self._settle(manifest)

    def swap(self, added: Sequence[StagedFile], removed: Sequence[DataFile]) -> None:
        """Each folder changes places with one that holds the new files and links to the others.

        The old folder is kept for readers that are listing it; `tidy` deletes it.
        """
        for partition in sorted({file.partition for file in removed}):
            self._swap_folder(
                partition,
                [file for file in added if file.partition == partition],
                {file.path.name for file in removed if file.partition == partition},
            )

    def tidy(self, before_s: float) -> None:
        """Delete replaced folders and the files of dead tasks that are older than this."""
        drop_stale(self.staging, before_s)
        for folder in self._control.glob("replaced-*"):
            if folder.stat().st_mtime < before_s:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _pending(self) -> Path:
        return self._control / "pending.json"

    def _noted(self, writer: str) -> Path:
        if not writer.replace("-", "").isalnum():
            raise LakeError(f"bad writer {writer[:100]!r}: letters, digits and '-' only")
        return self._control / "committed" / f"{writer}.json"

    def _target(self, file: StagedFile) -> Path:
        return self._table / file.partition / file.name

    def _settle(self, manifest: dict[str, object]) -> None:
        """Carry out a manifest, from wherever it was left."""
        folders = set()
        moves = manifest["moves"]
        assert isinstance(moves, list)
        for source, name in moves:
            target = self._table / name
            if target.parent not in folders:
                make_folder(target.parent)
                folders.add(target.parent)
            try:
                Path(source).rename(target)
            except FileNotFoundError:
                continue
            self._step("renamed")
        for folder in folders:
            sync_folder(folder)
        self._step("visible")
        self._pending.rename(self._noted(str(manifest["writer"])))
        sync_folder(self._control / "committed")
        sync_folder(self._control)
        self._step("noted")

    def _swap_folder(self, partition: str, added: Sequence[StagedFile], gone: set[str]) -> None:
        current = self._table / partition
        built = self._control / f"replaced-{uuid.uuid4().hex}"
        built.mkdir()
        for entry in os.scandir(current):
            if entry.name not in gone:
                os.link(entry.path, built / entry.name)
        for file in added:
            Path(file.path).rename(built / file.name)
        sync_folder(built)
        self._step("built")
        exchange(built, current)
        os.utime(built)
        sync_folder(current.parent)
        self._step("exchanged")
