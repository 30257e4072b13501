"""The whole proof: the log has no gaps, every subscription's account balances, the tables hold what the log holds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.feed.client import FeedClient
from headrace.model.names import is_dead_topic
from headrace.spark.ledger.accounts import Accounts, keep_accounts, lives
from headrace.spark.ledger.log import Log, lost
from headrace.spark.ledger.offsets import Run, clipped, place
from headrace.spark.ledger.rules import Fault, Life
from headrace.spark.ledger.tables import TABLES, TableCheck, check_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = "spark.sql.shuffle.partitions"
OFFSETS_PER_PARTITION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What came out for a range. `lost` are offsets whose record is gone from the log."""

    run: Run
    lost: Sequence[Run]
    accounts: Accounts
    tables: Sequence[TableCheck]

    @property
    def balanced(self) -> bool:
        """Whether everything is accounted for."""
        return not self.lost and self.accounts.balanced and all(table.balanced for table in self.tables)

    @property
    def faults(self) -> int:
        """How many offsets do not fit."""
        found = sum(run.size for run in self.lost) + sum(self.accounts.faults.values())
        return found + sum(sum(table.faults.values()) for table in self.tables)

    def misfits(self) -> Iterator[dict[str, Any]]:
        """Every offset that does not fit, and why; they come from Spark as they are asked for."""
        for run in self.lost:
            yield {"where": "log", "fault": Fault.LOST.value, "offset": run.start, "count": run.size}
        names = {account.life.subscription: account.life for account in self.accounts.accounts}
        for frame in self.accounts.misfits:
            for row in _ordered(frame):
                life = names.get(row["subscription_id"])
                yield {
                    "where": "subscription",
                    "fault": row["fault"],
                    "offset": row["offset"],
                    "count": 1,
                    "subscription": row["subscription_id"],
                    "name": life.name if life else None,
                    "topic": life.topic if life else None,
                }
        for table in self.tables:
            if table.misfits is not None:
                for row in _ordered(table.misfits):
                    yield {"where": table.table, "fault": row["fault"], "offset": row["offset"], "count": 1}


def balance(
    spark: "SparkSession",
    client: FeedClient,
    options: Mapping[str, str],
    lake: Path | None,
    *,
    begin: str | None = None,
    end: str | None = None,
    known: Iterable[Life] = (),
) -> Ledger:
    """Prove the balance for the offsets from `begin` to `end` (offsets or times; None: all there are).

    `options` say where the broker is, `known` are subscriptions the broker has now. Without a lake only the log's own
    books are checked. Raises BadRange, FeedError and LakeError.
    """
    span = client.span()
    first = None if begin is None else place(begin, client.offset_at)
    last = None if end is None else place(end, client.offset_at)
    run = clipped(first, last, earliest=span.earliest, latest=span.latest)
    log = Log(spark=spark, options=options, span=Run(span.earliest, span.latest))
    letters = any(is_dead_topic(each.topic) for each in client.topics())
    with _partitioned(spark, log.span.size):
        gone = lost(log, run)
        return Ledger(
            run=run,
            lost=gone,
            accounts=keep_accounts(log, run, lives(log, known), gone, letters=letters),
            tables=[check_table(log, lake, name, run, gone) for name in TABLES] if lake is not None else [],
        )


@contextmanager
def _partitioned(spark: "SparkSession", offsets: int) -> Iterator[None]:
    """Have Spark group so many offsets in portions that fit into a small heap."""
    before = str(spark.conf.get(PARTITIONS, "1"))
    spark.conf.set(PARTITIONS, str(max(int(before), -(-offsets // OFFSETS_PER_PARTITION))))
    try:
        yield
    finally:
        spark.conf.set(PARTITIONS, before)


def _ordered(frame: "DataFrame") -> Iterator[Any]:
    return frame.orderBy("offset").toLocalIterator(prefetchPartitions=True)
