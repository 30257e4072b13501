"""What of a message each door takes in and gives out: the one place that says what survives a crossing.

`docs/protocols/crossing.md` shows it as tables, and the crossing tests hold every cell of them true over real sockets.
`python -m headrace.protocols.crossing` prints the tables.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.model.batch import Protocol


class Field(StrEnum):
    """What can be known of a message beside where it is stored."""

    VALUE = "value"
    TOPIC = "topic"
    HEADERS = "headers"
    MESSAGE_ID = "message id"
    TIMESTAMP = "time of publishing"
    ATTEMPTS_MAX = "attempts allowed"
    ATTEMPT = "attempt"
    QOS = "QoS"
    DELIVERY = "delivery id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One door: how it takes each field in from a publisher, and how it gives it out to a consumer."""

    door: Protocol
    name: str
    takes: Mapping[Field, str]
    gives: Mapping[Field, str]


PASSAGES = (
    Passage(
        door=Protocol.BLIPMQ,
        name="BlipMQ",
        takes={Field.VALUE: "PUBLISH message", Field.TOPIC: "PUBLISH topic", Field.QOS: "PUBLISH qos"},
        gives={
            Field.VALUE: "PUBLISH message",
            Field.TOPIC: "PUBLISH topic",
            Field.QOS: "the lower of the message's and the subscription's",
            Field.DELIVERY: "correlation id",
        },
    ),
    Passage(
        door=Protocol.SSPQ,
        name="SSPQ",
        takes={Field.VALUE: "SEND payload", Field.ATTEMPTS_MAX: "retry counter + 1"},
        gives={Field.VALUE: "SEND payload", Field.ATTEMPT: "retry counter: attempts left"},
    ),
    Passage(
        door=Protocol.FUJIN,
        name="Fujin",
        takes={Field.VALUE: "WRITE message", Field.TOPIC: "WRITE topic", Field.HEADERS: "WRITE headers"},
        gives={Field.VALUE: "message value", Field.DELIVERY: "message id, without auto commit"},
    ),
    Passage(
        door=Protocol.GRPCQ,
        name="grpcq",
        takes={
            Field.VALUE: "the whole Message",
            Field.TOPIC: "queue",
            Field.HEADERS: "metadata",
            Field.MESSAGE_ID: "message_id",
            Field.TIMESTAMP: "timestamp_ms, within the Message",
        },
        gives={
            Field.VALUE: "the Message published; another door's value as payload of one made up",
            Field.HEADERS: "metadata",
            Field.MESSAGE_ID: "message_id; made from the offset where there is none",
            Field.TIMESTAMP: "timestamp_ms",
            Field.ATTEMPT: "Delivery.attempt",
            Field.DELIVERY: "receipt",
        },
    ),
)
"""Every door, in the order of their numbers."""


def passage(door: Protocol) -> Passage:
    """What a door takes and gives."""
    return next(each for each in PASSAGES if each.door is door)


def survives(field: Field, entering: Protocol, leaving: Protocol) -> bool:
    """Whether a consumer at one door learns what a publisher at another said."""
    return field in passage(entering).takes and field in passage(leaving).gives


def tables() -> str:
    """What each door takes and gives, and what survives which crossing, as Markdown."""
    heads = [each.name for each in PASSAGES]
    takes = [[field.value, *(each.takes.get(field, "-") for each in PASSAGES)] for field in Field]
    gives = [[field.value, *(each.gives.get(field, "-") for each in PASSAGES)] for field in Field]
    pairs = [
        [entering.name, *(_surviving(entering.door, leaving.door) for leaving in PASSAGES)] for entering in PASSAGES
    ]
    return "\n".join(
        (
            "### What a door takes in\n",
            _table(["of a message", *heads], [row for row in takes if set(row[1:]) != {"-"}]),
            "### What a door gives out\n",
            _table(["of a message", *heads], [row for row in gives if set(row[1:]) != {"-"}]),
            "### What survives a crossing\n",
            _table(["published at, consumed at", *heads], pairs),
        )
    )


def _surviving(entering: Protocol, leaving: Protocol) -> str:
    return ", ".join(field.value for field in Field if survives(field, entering, leaving))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(tables())
