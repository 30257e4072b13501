"""The task of a backfill: rows from the log where it is near, else from the feed, into staged files."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.feed.client import FeedClient, FeedError, Part
from headrace.feed.ticket import Ticket
from headrace.feed.whereabouts import Whereabouts, whereabouts
from headrace.kernels import records
from headrace.log import Log, LogSettings, OsDisk
from headrace.spark.pipeline.backfill import Copy
from tests.unit.feed.logs import UNSYNCED
from tests.unit.log.records import batch, flushed, record
from tests.unit.spark_lake.tables import APPEND

NOBODY = FeedClient("grpc://127.0.0.1:1", retry_s=0.0)
PARTS = [Part(0, 250, 250, 1), Part(250, 400, 150, 1)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Whereabouts]:
    """Where a log of 400 messages is; interpreted kernels pass for compiled ones."""
    monkeypatch.setattr(records, "COMPILED", True)
    folder = tmp_path / "log"
    with closing(Log.open(folder, OsDisk(), LogSettings(sync=UNSYNCED, fill_bytes=0))) as log:
        for _ in range(20):
            log.append(record(batch("t", 20)), refusable=True)
            flushed(log)
        found = whereabouts(folder)
        assert found is not None
        yield found


def staged(place: Whereabouts | None, folder: Path, parts: Sequence[int]) -> list[int]:
    """The offsets in the files that a task with these parts stages."""
    folder.mkdir(exist_ok=True)
    task = Copy(NOBODY, place, Ticket(), PARTS, [], APPEND, folder)
    paths = [row["path"] for rows in task([pa.record_batch([pa.array(parts)], ["id"])]) for row in rows.to_pylist()]
    return sorted(row["offset"] for path in paths for row in pq.ParquetFile(path).read().to_pylist())


def test_a_task_near_the_log_asks_nobody(place: Whereabouts, tmp_path: Path) -> None:
    assert staged(place, tmp_path / "staged", [0, 1]) == list(range(400))
    assert staged(place, tmp_path / "other", [1]) == list(range(250, 400))


def test_a_task_elsewhere_asks_the_feed(place: Whereabouts, tmp_path: Path) -> None:
    for far in (None, place._replace(machine="another")):
        with pytest.raises(FeedError, match=r"127\.0\.0\.1:1"):
            staged(far, tmp_path / "staged", [0])
