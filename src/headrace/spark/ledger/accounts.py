"""The subscriptions' accounts, from the log's messages and events.

As with tables, messages passed and messages touched are compared by stretches of offsets first, and one by one only
where they differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.model.names import DEAD_PREFIX
from headrace.spark.ledger.log import Log, outside, stretch_of
from headrace.spark.ledger.offsets import Run
from headrace.spark.ledger.rules import DELIVERED, ONCE, OUTCOMES, SUBSCRIBED, UNSUBSCRIBED, Account, Fault, Life

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORIGIN_OFFSET = "headrace-origin-offset"
ORIGIN_SUBSCRIPTION = "headrace-origin-subscription"
LETTERS = r"\$dead\..*"
_KEYS = ["subscription_id", "stretch"]


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """The accounts of a range, and what does not fit in them."""

    accounts: Sequence[Account]
    faults: dict[Fault, int] = field(default_factory=dict)
    misfits: Sequence["DataFrame"] = ()

    @property
    def balanced(self) -> bool:
        """Whether every account is in order."""
        return not self.faults and all(account.balanced for account in self.accounts)


def lives(log: Log, known: Iterable[Life] = ()) -> list[Life]:
    """Every subscription the log tells of, and those of `known` it tells nothing of."""
    from pyspark.sql import functions as f

    columns = ["offset", "event", "topic", "subscription", "subscription_id", "message_offset"]
    event = f.col("event")
    found = (
        log.events(log.span, columns)
        .where("subscription_id != 0")
        .groupBy("subscription_id")
        .agg(
            f.max("topic").alias("topic"),
            f.max("subscription").alias("name"),
            f.min(f.when(event == SUBSCRIBED, f.col("offset"))).alias("subscribed"),
            f.max(f.when(event == UNSUBSCRIBED, f.col("offset"))).alias("unsubscribed"),
            f.min("message_offset").alias("lowest"),
            f.max("message_offset").alias("highest"),
        )
    )
    told = {row["subscription_id"]: row for row in found.collect()}
    names = {life.subscription: life for life in known}
    seen = []
    for identity, row in sorted(told.items()):
        given = names.pop(identity, None)
        seen.append(
            Life(
                subscription=identity,
                name=row["name"] or (given.name if given else str(identity)),
                topic=row["topic"] or (given.topic if given else ""),
                subscribed=row["subscribed"],
                unsubscribed=row["unsubscribed"],
                lowest=row["lowest"],
                highest=row["highest"],
            )
        )
    return [*seen, *names.values()]


def keep_accounts(log: Log, run: Run, lived: Sequence[Life], lost: Sequence[Run], *, letters: bool = True) -> Accounts:
    """The account of every subscription for the messages in the run; `letters` says whether there are dead letters."""
    rows = [(life.subscription, life.topic, life.begin, life.end, life.frontier) for life in lived]
    kinds = "subscription_id long, topic string, begin long, end long, frontier long"
    concerned = _concerned(log, run, log.spark.createDataFrame(rows, kinds))
    touched = _touched(log, run, lost)
    compared = _compared(concerned, touched)
    accounts, differing = _summed(compared, lived)
    suspects = []
    if letters or any(account.dead for account in accounts):
        suspects.append(_dead_letters(log, run, lost))
    if differing:
        suspects.append(_one_by_one(concerned, touched, compared.where("differs").select(*_KEYS)))
    faults: dict[Fault, int] = {}
    misfits = []
    for each in suspects:
        counted = each.groupBy("fault").count().collect()
        if counted:
            faults |= {Fault(row["fault"]): row["count"] for row in counted}
            misfits.append(each)
    return Accounts(accounts=accounts, faults=faults, misfits=misfits)


def _concerned(log: Log, run: Run, subscriptions: "DataFrame") -> "DataFrame":
    """One row for each message and subscription whose concern it is."""
    from pyspark.sql import functions as f

    messages = log.messages(run, ["offset", "topic"])
    return (
        messages.join(f.broadcast(subscriptions), "topic")
        .where("offset >= begin AND offset < end")
        .select("subscription_id", "offset", (f.col("offset") < f.col("frontier")).alias("passed"))
    )


def _touched(log: Log, run: Run, lost: Sequence[Run]) -> "DataFrame":
    """One row for each message and subscription that has an event about it, with how it ended and how often."""
    from pyspark.sql import functions as f

    columns = ["event", "reason", "subscription_id", "message_offset"]
    events = log.events(Run(run.start, log.span.end), columns)
    about = events.where((f.col("message_offset") >= run.start) & (f.col("message_offset") < run.end))
    event, once = f.col("event"), f.coalesce(f.col("reason"), f.lit("")) == ONCE
    ended = {name: (event == name) & once if name == DELIVERED else event == name for name in OUTCOMES}
    return (
        outside(about, "message_offset", lost)
        .groupBy("subscription_id", f.col("message_offset").alias("offset"))
        .agg(
            *(f.count_if(condition).alias(name) for name, condition in ended.items()),
            f.count_if(event == DELIVERED).alias("deliveries"),
        )
        .withColumn("endings", sum((f.col(name) for name in OUTCOMES), f.lit(0)))
    )


def _mixed(condition: "Column | None" = None) -> "Column":
    """One number for a set of offsets in any order."""
    from pyspark.sql import functions as f

    hashed = f.xxhash64("offset")
    return f.coalesce(f.bit_xor(hashed if condition is None else f.when(condition, hashed)), f.lit(0))


def _compared(concerned: "DataFrame", touched: "DataFrame") -> "DataFrame":
    """Both sides by subscription and stretch, and whether they differ there."""
    from pyspark.sql import functions as f

    keys = [f.col("subscription_id"), stretch_of("offset").alias("stretch")]
    left = concerned.groupBy(*keys).agg(
        f.count("*").alias("published"),
        f.count_if("passed").alias("passed"),
        _mixed(f.col("passed")).alias("passed_mixed"),
    )
    right = touched.groupBy(*keys).agg(
        f.count("*").alias("touched"),
        f.count_if(f.col("endings") == 0).alias("underway"),
        f.count_if(_is_faulty()).alias("faulty"),
        *(f.sum(name).alias(name) for name in OUTCOMES),
        _mixed().alias("touched_mixed"),
    )
    both = left.join(right, _KEYS, "full_outer").na.fill(0)
    agree = f.expr("passed = touched AND passed_mixed = touched_mixed AND faulty = 0")
    return both.withColumn("differs", ~agree)


def _is_faulty() -> "Column":
    from pyspark.sql import functions as f

    return (f.col("endings") > 1) | ((f.col("acked") > 0) & (f.col("deliveries") == 0))


def _summed(compared: "DataFrame", lived: Sequence[Life]) -> tuple[list[Account], bool]:
    """The accounts of the subscriptions that were concerned by anything, and whether anything differs."""
    from pyspark.sql import functions as f

    names = ("published", "passed", "underway", *OUTCOMES)
    sums = [f.sum(name).alias(name) for name in names]
    rows = compared.groupBy("subscription_id").agg(*sums, f.bool_or("differs").alias("differs")).collect()
    totals = {row["subscription_id"]: row for row in rows}
    found = []
    for life in lived:
        row = totals.get(life.subscription)
        if row is not None:
            counts = {name: row[name] for name in OUTCOMES}
            waiting = row["published"] - row["passed"]
            found.append(
                Account(life=life, published=row["published"], waiting=waiting, underway=row["underway"], **counts)
            )
    return found, any(row["differs"] for row in rows)


def _one_by_one(concerned: "DataFrame", touched: "DataFrame", where: "DataFrame") -> "DataFrame":
    """Every message of these stretches that does not fit, and why."""
    from pyspark.sql import functions as f

    def _part(rows: "DataFrame") -> "DataFrame":
        return rows.withColumn("stretch", stretch_of("offset")).join(f.broadcast(where), _KEYS, "left_semi")

    both = _part(concerned).join(_part(touched), [*_KEYS, "offset"], "full_outer")
    fault = (
        f.when(f.col("endings").isNull() & f.col("passed"), Fault.UNACCOUNTED)
        .when(f.col("passed").isNull(), Fault.UNKNOWN)
        .when(f.col("endings") > 1, Fault.SETTLED_TWICE)
        .when((f.col("acked") > 0) & (f.col("deliveries") == 0), Fault.UNDELIVERED)
    )
    return both.select("offset", "subscription_id", fault.alias("fault")).where("fault IS NOT NULL")


def _dead_letters(log: Log, run: Run, lost: Sequence[Run]) -> "DataFrame":
    """Deaths without a dead letter, and dead letters without a death. What dies as a dead letter stays where it is."""
    from pyspark.sql import functions as f

    later = Run(run.start, log.span.end)
    events = log.events(later, ["event", "topic", "subscription_id", "message_offset"])
    deaths = (
        events.where((f.col("event") == "dead") & ~f.coalesce("topic", f.lit("")).startswith(DEAD_PREFIX))
        .select("subscription_id", f.col("message_offset").alias("offset"))
        .distinct()
    )

    def _told(name: str) -> "Column":
        found = f.filter("headers", lambda header: header["key"] == name)
        return f.element_at(f.transform(found, lambda header: header["value"].cast("string")), -1).try_cast("long")

    letters = (
        log.messages(later, ["headers"], LETTERS)
        .select(_told(ORIGIN_SUBSCRIPTION).alias("subscription_id"), _told(ORIGIN_OFFSET).alias("offset"))
        .distinct()
    )
    keys = ["subscription_id", "offset"]
    both = deaths.withColumn("died", f.lit(True)).join(letters.withColumn("kept", f.lit(True)), keys, "full_outer")
    fault = f.when(f.col("kept").isNull(), Fault.NO_LETTER).when(f.col("died").isNull(), Fault.NO_DEATH)
    within = (f.col("offset") >= run.start) & (f.col("offset") < run.end)
    misfits = both.where(within).select("offset", "subscription_id", fault.alias("fault")).where("fault IS NOT NULL")
    return outside(misfits, "offset", lost)
