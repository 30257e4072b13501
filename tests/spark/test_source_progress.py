"""The stream reader by itself against a real broker: what is new, when it waits, what it reports. No JVM needed."""

import json
import threading
from urllib.request import Request, urlopen

from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.feed.client import FeedClient
from headrace.spark.source.offsets import QUIET_MAX
from headrace.spark.source.options import read_options
from headrace.spark.source.stream import StreamReader
from tests.harness.lakeside import Lakeside
from tests.spark.conftest import Publish

EVERYTHING = ReadAllAvailable()


def stream_reader(broker: Lakeside, **given: str) -> StreamReader:
    connection = {"endpoint": broker.endpoint, "key": broker.key, "startingOffsets": "earliest"}
    return StreamReader(read_options(connection | given, streaming=True))


def rows(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> int:
    return sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))


def readers(broker: Lakeside) -> dict[str, int]:
    """How many messages each reader is behind, as the broker's API tells."""
    request = Request(f"{broker.served.endpoints['http']}/api/subscriptions")
    request.add_header("authorization", f"Bearer {broker.key}")
    with urlopen(request) as answer:
        return {each["reader"]: each["lag"] for each in json.load(answer)["readers"]}


def test_news_end_the_wait(feed_broker: Lakeside, publish: Publish) -> None:
    reader = stream_reader(feed_broker, subscribe="orders", reader="")
    start = reader.initialOffset()
    publisher = threading.Thread(target=publish, args=("orders", [b"a", b"b"]))
    publisher.start()
    end = start
    while end == start:
        end = reader.latestOffset(start, EVERYTHING)
    publisher.join()
    assert rows(reader, start, end) == 2
    assert reader.reportLatestOffset() == end


def test_a_report_makes_no_batch(feed_broker: Lakeside, publish: Publish) -> None:
    publish("orders", [b"a", b"b"])
    reader = stream_reader(feed_broker, subscribePattern=".*", reader="mine")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert rows(reader, start, end) == 2
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(end, EVERYTHING) == end
    with FeedClient(feed_broker.endpoint, key=feed_broker.key) as client:
        assert client.span().latest > end["offset"], "the reports are in the log"
    assert reader.reportLatestOffset() == end, "and are no lag"
    assert readers(feed_broker) == {"mine": 0}


def test_a_query_over_events_does_not_feed_itself(feed_broker: Lakeside, publish: Publish) -> None:
    publish("orders", [b"a"])
    with FeedClient(feed_broker.endpoint, key=feed_broker.key) as client:
        client.report("somebody else", ["orders"], 0)
    reader = stream_reader(feed_broker, stream="events", reader="mine")
    offset = reader.initialOffset()
    ends = []
    for _ in range(6):
        reader.prepareForTriggerAvailableNow()
        while (end := reader.latestOffset(offset, EVERYTHING)) != offset:
            assert rows(reader, offset, end) > 0
            offset = end
        ends.append(offset["offset"])
    assert ends[0] > 0
    assert len(set(ends)) <= 3, "it comes to rest"
    assert len(set(ends[-3:])) == 1


def test_the_broker_shows_how_far_a_query_is(feed_broker: Lakeside, publish: Publish) -> None:
    publish("orders", [b"%d" % number for number in range(10)])
    reader = stream_reader(feed_broker, subscribe="orders", maxOffsetsPerTrigger="4")
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
    assert readers(feed_broker) == {"spark:orders": 10}, "the first batch is not done yet"
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        offset = end
    assert readers(feed_broker) == {"spark:orders": 0}, "the last batch is, though no other follows"


def test_a_long_quiet_is_passed_over(feed_broker: Lakeside, publish: Publish) -> None:
    publish("orders", [b"a"])
    reader = stream_reader(feed_broker, subscribe="orders", reader="")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert rows(reader, start, end) == 1
    publish("payments", [b""] * (QUIET_MAX + 1))
    assert reader.latestOffset(end, EVERYTHING) == end, "a batch began just now"
    assert reader.reportLatestOffset() == end, "nothing waits"
    later = stream_reader(feed_broker, subscribe="orders", reader="")
    beyond = later.latestOffset(end, EVERYTHING)
    assert beyond["offset"] - end["offset"] > QUIET_MAX
    assert rows(later, end, beyond) == 0
