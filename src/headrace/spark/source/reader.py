"""Reading a range of the log as a table: which range, in how many partitions, and the rows of each.

`partitions` runs on the driver, `read` on executors; a reader holds plain values and connects in the process it is in.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headrace.feed.client import DataLoss, FeedClient, FeedError, Span
from headrace.feed.schema import select
from headrace.feed.ticket import Ticket
from headrace.spark.daemon import main_module, settle
from headrace.spark.source.filters import Bounds, choose, push
from headrace.spark.source.offsets import data_loss_error, loss, resolve
from headrace.spark.source.options import Connection, OptionError, ReadOptions
from headrace.spark.source.ranges import OffsetRange, partition_count, partitions
from headrace.spark.source.values import Position

FIRST_CONTACT_S = 10.0
"""A broker that is not there when a query is planned is rather a wrong address than one being restarted."""

PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@lru_cache(maxsize=8)
def shared_client(connection: Connection) -> FeedClient:
    """This process's client for a connection; Spark's workers live through many tasks."""
    return connection.client()


def read_range(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one partition. Raises DataLossError when offsets are gone and that matters."""
    assert isinstance(partition, OffsetRange)
    settle()
    if partition.start >= partition.end:
        return
    try:
        rows = _rows(options, partition)
        yield from rows if not options.nullable else _loosened(rows, options)
    except DataLoss as error:
        raise data_loss_error(error.detail) from error


def _rows(options: ReadOptions, partition: OffsetRange) -> Iterator[pa.RecordBatch]:
    """From the log itself as far as it is near, the rest from the feed."""
    ticket = options.ticket(partition.start, partition.end)
    rest: Ticket | None = ticket
    if partition.place is not None:
        try:
            from headrace.feed.nearby import nearby
        except ImportError:
            pass  # an executor that was sent the source and nothing more
        else:
            rest = yield from nearby(partition.place, ticket)
    if rest is not None:
        yield from shared_client(options.connection).read(rest)


def _loosened(rows: Iterator[pa.RecordBatch], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The same rows with the schema Spark expects: columns it takes to be nullable are called so."""
    fields = select(options.stream, options.columns)
    schema = pa.schema([field.with_nullable(field.nullable or field.name in options.nullable) for field in fields])
    for batch in rows:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def split_range(client: FeedClient, options: ReadOptions, start: int, end: int) -> list[OffsetRange]:
    """The range in partitions of about equal size; none when it holds no row."""
    ticket = options.ticket(start, end)
    parts = client.split(ticket, 1)
    rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    wanted = partition_count(
        rows, size, partitions_min=options.partitions_min, records_max=options.records_per_partition_max
    )
    if wanted > 1:
        parts = client.split(ticket, wanted)
    return partitions(
        start, end, parts, partitions_min=options.partitions_min, records_max=options.records_per_partition_max
    )


class BatchReader(DataSourceReader):
    """`spark.read`: the rows between two places of the log, as they are when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """The log's range that can hold rows for this query, split by size."""
        connection = self._options.connection
        try:
            with connection.client(min(connection.retry_timeout_s, FIRST_CONTACT_S)) as client:
                start, end = self._range(client)
                found = split_range(client, self._options, start, end) if start < end else []
                near = found and self._options.short_circuit and self._options.stream == "messages"
                place = client.whereabouts() if near else None
        except FeedError as error:
            if error.code != "unavailable":
                raise
            said = f"no broker answers at {connection.endpoint}; is it running, and is listen.flight set? {error}"
            raise FeedError(error.code, said) from error
        return [replace(each, place=place) for each in found] or [OffsetRange(start, start)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_range(self._options, partition)

    def _range(self, client: FeedClient) -> tuple[int, int]:
        options, bounds = self._options, self._bounds
        assert options.starting is not None
        assert options.ending is not None
        span = client.span()
        start = self._place("startingOffsets", options.starting, span, client)
        end = self._place("endingOffsets", options.ending, span, client)
        start, end = bounds.between(start, end, client.offset_at)
        return (start, start) if options.topics == () else (start, end)

    def _place(self, name: str, position: Position, span: Span, client: FeedClient) -> int:
        """The offset meant, which must be there unless the query may lose data."""
        offset = resolve(position, span, client.offset_at)
        if not self._options.fail_on_data_loss:
            return min(max(offset, span.earliest), span.latest)
        if offset > span.latest:
            raise OptionError(f"option {name} is {offset}, but the log ends at offset {span.latest}")
        gone = loss(offset, span)
        if gone is not None:
            raise data_loss_error(gone.detail)
        return offset


class FilteringReader(BatchReader):
    """A batch reader that takes over conditions on topic, offset and timestamp.

    A class of its own, because Spark refuses a reader that has `pushFilters` while the session's
    `spark.sql.python.filterPushdown.enabled` is false.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Narrow what is read; returns what Spark still has to check."""
        self._bounds, left = push(filters)
        topics, pattern = choose(self._options.topics, self._options.pattern, self._bounds.topics)
        self._options = replace(self._options, topics=topics, pattern=pattern)
        return left


def batch_reader(options: ReadOptions) -> BatchReader:
    """The reader that Spark accepts in this process.

    Spark tells a source nothing of the session's settings, but plans with filters in a worker of its own kind.
    """
    pushing = PUSHDOWN_WORKER in sys.modules or main_module() == PUSHDOWN_WORKER
    return FilteringReader(options) if pushing else BatchReader(options)
