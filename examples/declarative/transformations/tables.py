"""Part of headrace's pipeline for Spark Declarative Pipelines: `messages`, `dead_letters` and `traffic`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ENDPOINT = os.environ.get("HEADRACE_FLIGHT", "grpc://127.0.0.1:8815")
ORIGINS = {"origin_topic": "headrace-origin-topic", "reason": "headrace-reason", "attempts": "headrace-attempts"}


def follow(pattern: str, reader: str) -> DataFrame:
    """Topics whose whole name matches, from the oldest message on; the broker shows the lag under the reader's name."""
    options = {"endpoint": ENDPOINT, "subscribePattern": pattern, "startingOffsets": "earliest", "reader": reader}
    return SparkSession.active().readStream.format("headrace").options(**options).load()


@dp.table(comment="Every message of every topic, as it was published.")
def messages() -> DataFrame:
    return follow("[^$].*", "declarative:messages")


@dp.table(comment="What the broker gave up delivering, from where and why.")
def dead_letters() -> DataFrame:
    def header(name: str) -> "f.Column":
        found = f.filter("headers", lambda each: each["key"] == name)
        return f.element_at(f.transform(found, lambda each: each["value"].cast("string")), -1)

    origins = [header(name).alias(column) for column, name in ORIGINS.items()]
    return follow(r"\$dead\..*", "declarative:dead_letters").select("offset", "timestamp", "topic", "value", *origins)


@dp.materialized_view(comment="What was published in each minute, by topic and protocol.")
def traffic() -> DataFrame:
    published = SparkSession.active().read.table("messages")
    minute = f.date_trunc("minute", "timestamp").alias("minute")
    return published.groupBy(minute, "topic", "protocol").agg(
        f.count("*").alias("messages"), f.sum(f.length("value")).alias("bytes")
    )
