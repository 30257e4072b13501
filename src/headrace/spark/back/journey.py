"""One replay or redrive from beginning to end: found again or planned, rehearsed, sent; or only looked at.

Knows the steps and their order; how rows are chosen and shaped is told by `replay` and `redrive`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.spark.back.pace import Pace
from headrace.spark.back.plan import Plan, Plans, Wish
from headrace.spark.back.sending import Broker, Meter, NothingToSend, extent, make_plan, rehearse, send
from headrace.spark.lake.table import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREVIEW_ROWS = 20


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen: the table it was chosen from, the rows as they are there, and the messages they become."""

    table: "DataFrame"
    rows: "DataFrame"
    messages: "DataFrame"


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a run did. `rows` is how many there were to send, `sent` how many of them this run sent.

    `resumed`: an earlier run had begun; `rows` without `sent`: it had also ended.
    """

    id: str
    rows: int
    sent: int
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What would be sent: how many rows of each topic, and the first of them as they would arrive."""

    topics: Sequence[tuple[str, str, int]]
    first: Sequence[dict[str, Any]]

    @property
    def rows(self) -> int:
        """How many rows would be sent."""
        return sum(count for _, _, count in self.topics)


def travel(
    spark: "SparkSession",
    lake: Path,
    wish: Wish,
    choose: Callable[[], Choice],
    broker: Broker,
    *,
    identity: str | None = None,
    rate: int | None = None,
    began: Callable[[Plan, bool], None] = lambda _plan, _resumed: None,
    told: Meter = lambda _: None,
) -> Sent | None:
    """Send what the wish is about, each row once however often this is called; None when there is nothing to send.

    `began` hears the plan before the first row goes, and whether an earlier run had made it.
    Raises LakeError, FeedError for a target the broker refuses, BadQuery.
    """
    if wish.to is not None:
        rehearse(broker, [wish.to])
    plans = Plans(lake)
    known = plans.find(identity) if identity is not None else plans.unfinished(wish)
    chosen: Choice | None = None
    if identity is None and known is None:
        chosen = choose()
        identity = wish.identity(extent(chosen.table))
    name = known.id if known is not None else identity
    assert name is not None
    with plans.locked(name):
        plan = plans.find(name)
        resumed = plan is not None
        if plan is None:
            try:
                plan = make_plan(plans, name, wish, (chosen or choose()).messages, rate)
            except NothingToSend:
                return None
        elif plan.wish != wish:
            raise LakeError(f"the id {name} belongs to something else: {plan.wish.kind} where {plan.wish.where}")
        began(plan, resumed)
        if plan.done:
            told(plan.rows)
            return Sent(id=name, rows=plan.rows, sent=0, resumed=True)
        if wish.to is None:
            topics = spark.read.parquet(str(plans.rows(name))).select("topic").distinct()
            rehearse(broker, [row[0] for row in topics.collect()])
        sent = send(spark, plans, plan, broker, Pace(rate), told)
        return Sent(id=name, rows=plan.rows, sent=sent, resumed=resumed)


def preview(choice: Choice) -> Preview:
    """What would be sent."""
    from pyspark.sql import functions as f

    named = choice.messages.select("offset", f.col("topic").alias("to")).join(
        choice.rows.select("offset", f.col("topic").alias("from")), "offset"
    )
    counted = named.groupBy("from", "to").agg(f.count("*").alias("rows")).orderBy("from", "to").collect()
    first = choice.messages.orderBy("offset").limit(PREVIEW_ROWS).collect()
    return Preview(
        topics=[(row["from"], row["to"], row["rows"]) for row in counted],
        first=[row.asDict(recursive=True) for row in first],
    )
