"""A process of its own that copies the topic `orders` to `copies` as a stream, until it is killed or has caught up."""

import sys

from headrace.spark.session import new_session
from tests.spark.conftest import QUICK


def main(endpoint: str, key: str, checkpoint: str) -> None:
    """Copy what there is."""
    spark = new_session("copies", master="local[2]", memory="1g", conf=QUICK)
    options = {"endpoint": endpoint, "key": key}
    orders = (
        spark.readStream.format("headrace")
        .options(**options, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="250", reader="copier")
        .load()
    )
    query = (
        orders.select("key", "value")
        .writeStream.format("headrace")
        .options(**options, topic="copies", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
