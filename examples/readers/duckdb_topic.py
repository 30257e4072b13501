"""SQL over a topic: `python duckdb_topic.py orders "SELECT count(*) FROM messages" --endpoint … --key …`."""

import argparse
import json

import duckdb
from pyarrow import flight

EVERY_DOOR = 'SELECT protocol, count(*), max("offset") FROM messages GROUP BY ALL'


def query_topic(endpoint: str, key: str, topic: str, sql: str) -> list[tuple[object, ...]]:
    """The answer to a query over `messages`, which is read as it is needed and never held in memory as a whole."""
    client = flight.FlightClient(endpoint)
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])
    ticket = flight.Ticket(json.dumps({"topics": [topic]}).encode())
    connection = duckdb.connect()
    connection.register("messages", client.do_get(ticket, options).to_reader())
    return connection.execute(sql).fetchall()


def main() -> None:
    """Print the rows of the answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic")
    parser.add_argument("sql", nargs="?", default=EVERY_DOOR)
    parser.add_argument("--endpoint", default="grpc://127.0.0.1:8815")
    parser.add_argument("--key", default="dev-key")
    given = parser.parse_args()
    for row in query_topic(given.endpoint, given.key, given.topic, given.sql):
        print(*row, sep="\t")  # noqa: T201


if __name__ == "__main__":
    main()
