"""A driver to be killed: tables of every kind, and a stream from one topic into another, in one session.

Prints `begun` once its queries have begun, which may be in the middle of what a killed one left, and `running` once
the table of messages has grown; `once` makes it catch up, in bigger steps, and end.
"""

import sys
import threading
from pathlib import Path

from headrace.spark.pipeline.run import Pipeline
from headrace.spark.pipeline.settings import Settings
from headrace.spark.pipeline.tables import chosen
from headrace.spark.session import new_session

TABLES = ("messages", "events", "envelopes", "traffic")
"""Rows as they are, rows of the other stream, rows with state, and rows that replace others."""

CONF = {"spark.sql.shuffle.partitions": "1"}


def main(endpoint: str, key: str, lake: str, how: str) -> None:
    """Run until killed, or once."""
    once = how == "once"
    spark = new_session("torture", master="local[2]", memory="1g", conf=CONF)
    settings = Settings(lake=Path(lake), endpoint=endpoint, key=key, every_s=0.5, offsets_max=100_000 if once else 2000)
    connection = {"endpoint": endpoint, "key": key}
    source = {"subscribe": "orders", "startingOffsets": "earliest", "reader": "copier"}
    source["maxOffsetsPerTrigger"] = str(settings.offsets_max // 4)
    orders = spark.readStream.format("headrace").options(**connection, **source).load()
    copies = (
        orders.select("key", "value", "headers", "message_id")
        .writeStream.format("headrace")
        .options(**connection, topic="copies", checkpointLocation=str(Path(lake, "_copies")))
    )
    copying = copies.trigger(**({"availableNow": True} if once else {"processingTime": "0 seconds"})).start()
    pipeline = Pipeline(spark, chosen(TABLES), settings, once=once)
    to_tell = {"begun": False, "running": False}
    for _ in pipeline.run(threading.Event()):
        messages = pipeline.runners[0].query
        now = {"begun": messages is not None, "running": messages is not None and messages.lastProgress is not None}
        for word in [word for word, told in to_tell.items() if now[word] and not told]:
            print(word, flush=True)  # noqa: T201 - the parent waits for it
            to_tell[word] = True
    copying.awaitTermination()
    if (error := copying.exception()) is not None:
        raise error
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
