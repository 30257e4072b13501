"""Writing rows into topics, each batch once: tasks stage what they have, the driver commits it in one transaction.

What a task staged is durable but visible to nobody. The broker remembers the last batch of each writer, so a batch that
Spark runs again, after whatever failure, is recognised and dropped.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.spark.daemon import settle
from headrace.spark.source.options import WriteOptions
from headrace.spark.source.reader import shared_client
from headrace.spark.source.sink import project

CHUNK_BYTES = 8 << 20
"""What a task holds in memory to send again should the broker be restarted meanwhile."""

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

logger = logging.getLogger("headrace.spark.source")


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task staged, for whom."""

    writer: str
    receipts: tuple[dict[str, Any], ...]


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one transaction for the whole DataFrame."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        """Runs on the driver. A writer named by the user may have written this batch before: then nothing is staged."""
        self._options = options
        self._columns = columns
        self._writer = options.writer or f"spark:{uuid.uuid4().hex}"
        self._done = False
        if options.writer is not None:
            with options.connection.client() as client:
                committed = client.committed(self._writer)
            self._done = committed is not None and committed >= options.batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]  # as Spark's own
        """Stage one task's rows."""
        if self._done:
            return Staged(self._writer, ())
        return _staged(self._options, self._columns, self._writer, self._options.batch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make everything staged visible at once."""
        if self._done:
            logger.info("spark.replayed writer=%s batch=%d", self._writer, self._options.batch)
        _commit(self._options, messages, self._options.batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        _abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: one transaction for each micro-batch, known by the query's id and the batch's number."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]  # as Spark's own
        """Stage one task's rows."""
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) if context else None for name in (QUERY_ID, BATCH_ID))
        if query is None or batch is None:
            raise RuntimeError("Spark does not say which query and batch this is; is it a streaming query?")
        return _staged(self._options, self._columns, query, int(batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the micro-batch visible at once, unless it was before."""
        settle()
        _commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop what was staged for the micro-batch."""
        _abort(self._options, messages)


def _staged(
    options: WriteOptions, columns: tuple[str, ...], writer: str, batch: int, rows: Iterator[pa.RecordBatch]
) -> Staged:
    """Stage a task's rows in chunks; each attempt of a task has names of its own."""
    settle()
    client = shared_client(options.connection)
    context = TaskContext.get()
    task = f"{context.partitionId()}-{context.taskAttemptId()}" if context else "0-0"
    attempt = f"{task}-{uuid.uuid4().hex[:12]}"
    receipts = [
        client.stage(writer, batch, f"{attempt}-{number}", options.topic, chunk)
        for number, chunk in enumerate(_chunks(project(each, columns, options.topic) for each in rows))
    ]
    return Staged(writer, tuple(receipts))


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches in lists of about CHUNK_BYTES; none when there is no row."""
    chunk: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        chunk.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    """Commit what the tasks staged. A batch without rows is none: the broker need not know of it."""
    staged = [message for message in messages if isinstance(message, Staged) and message.receipts]
    if not staged:
        return
    writer = staged[0].writer
    with options.connection.client() as client:
        answer = client.commit(writer, batch, [receipt for message in staged for receipt in message.receipts])
    if answer.get("replayed"):
        logger.info("spark.replayed writer=%s batch=%d", writer, batch)


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    receipts = [receipt for message in messages if isinstance(message, Staged) for receipt in message.receipts]
    if receipts:
        with options.connection.client() as client:
            client.abort(receipts)
