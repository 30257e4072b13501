"""Following the log as a stream: what is new, how much of it a micro-batch takes, and how far the query has come.

Spark keeps one reader in a process of its own for the offsets of a query, and pickles another to the tasks for `read`.
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.feed.client import FeedClient, FeedError, Span
from headrace.spark.source.offsets import (
    Pace,
    Pending,
    Reports,
    batch_range,
    data_loss_error,
    decode,
    encode,
    loss,
    nothing,
    resolve,
)
from headrace.spark.source.options import OptionError, ReadOptions
from headrace.spark.source.ranges import SMALL_BYTES, Limits, OffsetRange
from headrace.spark.source.reader import read_range, shared_client, split_range

POLL_S = 1.0
"""How long a query waits inside Spark's question for news; more would make `stop()` slow."""

LULL_S, LULL_S_MAX = 0.01, 0.1
"""The least time between two looks at a log that is busy with what does not concern the query; it grows with them."""

REPORT_S = 5.0
REPORT_RETRY_S = 2.0
ECHO = 2
"""A query over events finds its own reports among them: progress by so few is not reported."""

logger = logging.getLogger("headrace.spark.source")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: every row of the selection once, in micro-batches."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pace = Pace(options.offsets_min, options.trigger_delay_max_s)
        self._reports = Reports(REPORT_S, echo=ECHO if options.stream == "events" else 0)
        self._target: int | None = None
        self._waiting: Pending | None = None
        self._initial: dict[str, int] | None = None
        self._pinned = options.starting is not None and options.starting.kind in ("earliest", "offset")

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where a query without a checkpoint begins; the same whenever it is asked."""
        if self._initial is None:
            position = self._options.starting
            assert position is not None
            client = self._client()
            span = client.span()
            start = resolve(position, span, client.offset_at)
            if position.kind == "offset" and start > span.latest:
                raise OptionError(f"option startingOffsets is {start}, but the log ends at offset {span.latest}")
            self._initial = encode(self._checked(start, span))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit to show Spark; with several, `latestOffset` keeps them all."""
        options = self._options
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        if options.offsets_min is not None:
            return ReadMinRows(options.offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, and end."""
        self._target = self._client().span().latest

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next micro-batch; `start` itself when there is nothing to do yet.

        Spark asks only after it has finished the batch that ended at `start`, so that is what the broker is told.
        """
        if start == self._initial and not self._pinned:
            return self._pin(start)
        done = decode(start)
        span = self._client().span()
        begin = self._checked(done, span)
        if self._target is None:
            self._report(min(done, begin))
            waiting = self._news(begin, span.latest)
        else:
            waiting = self._look(begin, begin, self._target)
            self._report(min(done, begin), last=waiting.quiet)
        self._waiting = waiting
        if not self._ready(waiting):
            return start
        self._pace.began(time.monotonic())
        end = waiting.end if isinstance(limit, ReadAllAvailable) else self._admitted(waiting)
        return encode(end, None if begin == done else begin)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """The newest offset that concerns the query, for its progress."""
        waiting = self._waiting
        if waiting is None:
            return None
        return encode(waiting.end if waiting.found else waiting.start)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The batch in one partition when it is small, else in one for each core, or as the options say."""
        first, last = batch_range(start, end)
        if first == last:
            return []
        options, waiting = self._options, self._waiting
        small = waiting is not None and (waiting.start, waiting.end) == (first, last) and waiting.bytes <= SMALL_BYTES
        if small and options.partitions_min is None and options.records_per_partition_max is None:
            return [OffsetRange(first, last)]
        return split_range(self._client(), options, first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_range(self._options, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing to do: Spark says this a batch late, `latestOffset` has told the broker before."""

    def _client(self) -> FeedClient:
        return shared_client(self._options.connection)

    def _pin(self, start: dict[str, int]) -> dict[str, int]:
        """Let the first batch of a query that begins at the newest offset, or at a time, be empty.

        Spark keeps the ends of batches. Were there rows in the first, a driver killed in it would not know any more
        where it began.
        """
        self._pinned = True
        self._waiting = nothing(start["offset"], start["offset"])
        return start

    def _checked(self, start: int, span: Span) -> int:
        gone = loss(start, span)
        if gone is None:
            return start
        if self._options.fail_on_data_loss:
            raise data_loss_error(gone.detail)
        logger.warning("spark.data_loss %s; going on at offset %d", gone.detail, gone.resume)
        return gone.resume

    def _news(self, start: int, latest: int) -> Pending:
        """What is waiting behind `start`; while that is not enough for a batch, wait a little for more."""
        client = self._client()
        deadline = time.monotonic() + POLL_S
        lull = LULL_S
        before = self._waiting
        quiet = before.end if before is not None and not before.found and before.start == start else start
        while True:
            waiting = self._look(start, quiet, latest)
            left = deadline - time.monotonic()
            if self._ready(waiting) or left <= 0:
                return waiting
            if not waiting.found:
                quiet = waiting.end
            asked = time.monotonic()
            latest = max(latest, client.wait(latest, left))
            time.sleep(max(0.0, lull - (time.monotonic() - asked)))
            lull = min(2 * lull, LULL_S_MAX)

    def _ready(self, waiting: Pending) -> bool:
        """Whether what is waiting makes a batch now."""
        now = time.monotonic()
        if waiting.quiet:
            return False
        if self._target is not None:
            return True
        return self._pace.ready(waiting.found, now) if waiting.found else self._pace.may_pass(now)

    def _look(self, start: int, quiet: int, end: int) -> Pending:
        """What waits between `start` and `end` when it is known that there is nothing before `quiet`."""
        end = max(end, quiet)
        parts = self._client().split(self._options.ticket(quiet, end), 1) if quiet < end else []
        rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
        first, found = self._probe(quiet, end) if rows else (end, 0)
        return Pending(start, end, first, found, rows, size) if found else nothing(start, end)

    def _probe(self, start: int, end: int) -> tuple[int, int]:
        """The offset of the first row between these, and how many there are, counted until they make a batch.

        The feed's own figures are about stretches of the log, whoever their rows belong to.
        """
        enough = self._options.offsets_min or 1
        first, found = end, 0
        ticket = replace(self._options.ticket(start, end), columns=("offset",), lossy=True)
        for batch in self._client().read(ticket):
            first = first if found else batch.column(0)[0].as_py()
            found += batch.num_rows
            if found >= enough:
                break
        return first, found

    def _admitted(self, waiting: Pending) -> int:
        """How far the next batch goes by the limits on rows and bytes."""
        limits = Limits(self._options.offsets_max, self._options.bytes_max)
        count = limits.pieces(waiting)
        if count == 1:
            return waiting.end
        parts = self._client().split(self._options.ticket(waiting.first, waiting.end), count)
        return limits.end(waiting, parts, single=self._options.stream == "messages")

    def _report(self, offset: int, *, last: bool = False) -> None:
        """Tell the broker how far the query has come; a broker that cannot hear it does not stop the query."""
        now = time.monotonic()
        reader = self._options.reader
        if reader is None or not self._reports.due(offset, now, last=last):
            return
        self._reports.trying(now)
        try:
            with self._options.connection.client(REPORT_RETRY_S) as client:
                client.report(reader, self._topics(client), offset)
            self._reports.heard(offset)
        except FeedError as error:
            logger.warning("spark.report reader=%s offset=%d: %s", reader, offset, error)

    def _topics(self, client: FeedClient) -> Sequence[str] | None:
        options = self._options
        if options.pattern is None:
            return options.topics
        matches = re.compile(options.pattern).fullmatch
        return [each.topic for each in client.topics() if matches(each.topic)]
