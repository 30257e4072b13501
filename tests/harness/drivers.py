"""Spark's two sides of a transaction without Spark: executors that stage rows, a driver that commits them."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from headrace.feed.messages import Commit, Receipt
from headrace.feed.staging import Put, Upload
from headrace.log import Log
from headrace.log.disk import Disk
from headrace.model.batch import Message, iter_messages
from headrace.server.engine import Engine
from headrace.server.marks import Marks
from headrace.server.staging import Staging
from headrace.server.transactions import Outcome, Transactions
from headrace.server.walk import batches_from

OWNER = "spark"
WRITER = "query"
TOPIC = "out"


def uploaded(upload: Upload, batches: Sequence[pa.RecordBatch]) -> Receipt:
    """The receipt of an upload of these, or nothing left of it."""
    try:
        upload.write(batches)
        return upload.finish()
    finally:
        upload.abandon()


class Office:
    """The transactions of an engine, and the directory where parts are staged for them."""

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        disk: Disk,
        record_bytes: int = 8 << 20,
        transactions: Transactions | None = None,
    ) -> None:
        self.engine = engine
        self.directory = directory
        self.disk = disk
        self.marks = Marks(engine.log)
        self.transactions = transactions or Transactions(
            engine, Staging(directory, disk, record_bytes=record_bytes), self.marks
        )
        if transactions is None:
            self.transactions.recover()

    def stage(
        self,
        batch: int,
        rows: pa.RecordBatch | Sequence[bytes],
        *,
        part: str = "",
        writer: str = WRITER,
        owner: str = OWNER,
    ) -> Receipt:
        """What an executor does."""
        if not isinstance(rows, pa.RecordBatch):
            rows = pa.record_batch({"value": pa.array(rows, pa.binary())})
        put = Put(writer, batch, part, TOPIC)
        now = self.engine.clock.now()
        return uploaded(Upload(self.disk, self.directory, owner, put, rows.schema, allow=allow_all, now=now), [rows])

    async def commit(
        self,
        batch: int,
        *receipts: Receipt,
        writer: str = WRITER,
        owner: str = OWNER,
        subscribe: str = "*",
    ) -> Outcome:
        """What the driver does."""
        request = Commit(id=1, owner=owner, subscribe=(subscribe,), writer=writer, batch=batch, staged=receipts)
        return await self.transactions.commit(request)

    def names(self) -> list[str]:
        """The files in the staging directory."""
        return self.disk.list(self.directory)


def allow_all(topic: str) -> None:
    """Everybody may write everything."""


def values(log: Log, topic: str = TOPIC) -> list[bytes]:
    """The values in a topic, in order."""
    return [message.value for message in messages_of(log, topic)]


def messages_of(log: Log, topic: str) -> list[Message]:
    """Every message of a topic, in order."""
    return list(iter_messages(batches_from(log, topic, 0)))
