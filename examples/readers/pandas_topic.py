"""A topic as a pandas frame: `python pandas_topic.py orders --endpoint grpc://127.0.0.1:8815 --key dev-key`."""

import argparse
import json

import pandas as pd
from pyarrow import flight


def read_topic(endpoint: str, key: str, topic: str) -> pd.DataFrame:
    """Everything the topic holds now, a row a message."""
    client = flight.FlightClient(endpoint)
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])
    ticket = flight.Ticket(json.dumps({"topics": [topic]}).encode())
    return client.do_get(ticket, options).to_reader().read_pandas()


def main() -> None:
    """Print how many messages came by which door, and the newest ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic")
    parser.add_argument("--endpoint", default="grpc://127.0.0.1:8815")
    parser.add_argument("--key", default="dev-key")
    given = parser.parse_args()
    frame = read_topic(given.endpoint, given.key, given.topic)
    print(frame.groupby("protocol").size().rename("messages").to_string())  # noqa: T201
    print(frame[["offset", "timestamp", "value"]].tail(5).to_string(index=False))  # noqa: T201


if __name__ == "__main__":
    main()
