"""The way of rows from a table into topics: planned once, then sent chunk by chunk through `format("headrace")`.

Each chunk is one transaction of the broker, known by the plan's name and the chunk's number. Whoever sends a plan
begins behind the last chunk the broker has, so it does not matter how often, or where, the one before was killed.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.feed.client import FeedClient
from headrace.spark.back.chunks import Stretch, cut, rows_max, stretch_size
from headrace.spark.back.pace import Pace
from headrace.spark.back.plan import Plan, Plans, Wish
from headrace.spark.lake.table import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REHEARSAL = "rehearsal"

Meter = Callable[[int], None]


class NothingToSend(Exception):
    """No row was chosen."""


@dataclass(frozen=True, kw_only=True)
class Broker:
    """Where rows go: options of the data source, and a client for what only the driver asks."""

    options: Mapping[str, str]
    client: FeedClient


def extent(rows: "DataFrame") -> tuple[int, int, int]:
    """The lowest and the highest offset of the rows, and how many there are; zeros for none."""
    from pyspark.sql import functions as f

    found = rows.agg(f.min("offset"), f.max("offset"), f.count("offset")).head()
    assert found is not None
    return (0, 0, 0) if not found[2] else (int(found[0]), int(found[1]), int(found[2]))


def make_plan(plans: Plans, identity: str, wish: Wish, messages: "DataFrame", rate: int | None) -> Plan:
    """Write down the messages that are to be sent, and where they are cut into chunks. To be called with the lock.

    Raises NothingToSend, and LakeError for rows that are no messages.
    """
    from pyspark.sql import functions as f

    folder = plans.rows(identity)
    spark = messages.sparkSession
    ordered = messages.repartitionByRange("offset").sortWithinPartitions("offset")
    ordered.write.mode("overwrite").parquet(str(folder))
    kept = spark.read.schema(messages.schema).parquet(str(folder))
    first, last, count = extent(kept)
    if not count:
        shutil.rmtree(folder.parent)
        raise NothingToSend
    _check(kept)
    size = stretch_size(first, last)
    number = f.floor((f.col("offset") - f.lit(first)) / f.lit(size)).cast("long")
    counted = kept.groupBy(number.alias("number")).agg(f.count("*"), f.sum(f.length("value"))).orderBy("number")
    stretches = (Stretch(row[0], row[1], row[2]) for row in counted.collect())
    chunks = cut(stretches, first=first, size=size, rows_max=rows_max(rate))
    plan = Plan(id=identity, wish=wish, chunks=tuple(chunks))
    plans.keep(plan)
    return plan


def rehearse(broker: Broker, topics: Sequence[str]) -> None:
    """Have the broker look at one message for each topic, and throw them away: a target it refuses is refused now.

    Raises FeedError with the broker's words.
    """
    values = [b""] * len(topics)
    trial = pa.RecordBatch.from_arrays(
        [pa.array(topics, pa.string()), pa.array(values, pa.binary())], ["topic", "value"]
    )
    receipt = broker.client.stage(REHEARSAL, 0, REHEARSAL, None, [trial])
    broker.client.abort([receipt])


def send(
    spark: "SparkSession", plans: Plans, plan: Plan, broker: Broker, pace: Pace, told: Meter = lambda _: None
) -> int:
    """Send the chunks the broker does not have yet; `told` hears how many rows it has. Returns how many were sent now.

    To be called with the plan's lock.
    """
    committed = broker.client.committed(plan.writer)
    begins = plan.sent(committed)
    told(begins)
    done = begins
    folder = plans.rows(plan.id)
    for number in range(0 if committed is None else committed + 1, len(plan.chunks)):
        time.sleep(pace.wait_s(time.monotonic()))
        chunk = plan.chunks[number]
        pace.sent(chunk.rows, time.monotonic())
        _send_chunk(spark, folder, chunk.start, chunk.end, {**broker.options, "writer": plan.writer}, number)
        done += chunk.rows
        told(done)
    plans.finish(plan)
    return done - begins


def _send_chunk(
    spark: "SparkSession", folder: Path, start: int, end: int, options: Mapping[str, str], number: int
) -> None:
    from pyspark.sql import functions as f

    rows = spark.read.parquet(str(folder)).where((f.col("offset") >= start) & (f.col("offset") < end))
    ordered = rows.coalesce(1).sortWithinPartitions("offset")
    ordered.write.format("headrace").mode("append").options(**options, batch=str(number)).save()


def _check(messages: "DataFrame") -> None:
    """Raises LakeError for rows without a value or a topic: they would be refused one chunk after another."""
    from pyspark.sql import functions as f

    missing = messages.agg(*(f.count_if(f.col(name).isNull()).alias(name) for name in ("value", "topic"))).head()
    assert missing is not None
    for name in ("value", "topic"):
        if missing[name]:
            raise LakeError(f"{name} is null in {missing[name]} of the chosen rows; choose or set it otherwise")
