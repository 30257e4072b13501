"""A topic as a polars frame: `python polars_topic.py orders --endpoint grpc://127.0.0.1:8815 --key dev-key`."""

import argparse
import json

import polars as pl
from pyarrow import flight


def read_topic(endpoint: str, key: str, topic: str) -> pl.DataFrame:
    """Everything the topic holds now, a row a message; only the columns named leave the broker's machine."""
    client = flight.FlightClient(endpoint)
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])
    ticket = flight.Ticket(json.dumps({"topics": [topic], "columns": ["offset", "timestamp", "value"]}).encode())
    frame = pl.from_arrow(client.do_get(ticket, options).to_reader().read_all())
    assert isinstance(frame, pl.DataFrame)
    return frame


def main() -> None:
    """Print messages and bytes for each minute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic")
    parser.add_argument("--endpoint", default="grpc://127.0.0.1:8815")
    parser.add_argument("--key", default="dev-key")
    given = parser.parse_args()
    frame = read_topic(given.endpoint, given.key, given.topic)
    minutes = frame.group_by(pl.col("timestamp").dt.truncate("1m").alias("minute")).agg(
        pl.len().alias("messages"), pl.col("value").bin.size().sum().alias("bytes")
    )
    for minute, messages, size in minutes.sort("minute").iter_rows():
        print(f"{minute:%H:%M} {messages} messages {size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
