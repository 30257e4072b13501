"""What clients did and what they were told, with the times between which it happened. Knows no client and no broker."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path

_VALUE = re.compile(rb"[a-z]+\d*\.[a-z]+\.\d+;")


class Kind(StrEnum):
    """What an operation was."""

    PUBLISH = "publish"
    TRANSACT = "transact"
    TAKE = "take"
    ACK = "ack"
    NACK = "nack"


class Outcome(StrEnum):
    """What its client was told: done, refused, or nothing it could rely on."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Op:
    """One operation of one client. `attempts` are those a delivery named, in the order of `values`.

    `asked` is when the broker can first have done it: for a take by a client that reads ahead, before it `began`.
    """

    lane: str
    kind: Kind
    topic: str
    subscription: str
    values: tuple[str, ...]
    asked: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    attempts: tuple[int, ...] = ()


@dataclass(slots=True)
class Fault:
    """Something that was done to the broker, and until when."""

    name: str
    began: float
    ended: float


@dataclass(slots=True)
class History:
    """Everything of one run."""

    ops: list[Op] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def begin(self, lane: str, kind: Kind, topic: str, subscription: str, values: tuple[str, ...], now: float) -> Op:
        """An operation whose outcome is not known yet."""
        op = Op(lane, kind, topic, subscription, values, now)
        self.ops.append(op)
        return op

    def write(self, path: Path) -> None:
        """Keep it as lines of JSON, to be looked into."""
        with path.open("w") as out:
            for each in [*map(asdict, self.faults), *map(asdict, self.ops)]:
                out.write(json.dumps(each) + "\n")


@dataclass(slots=True)
class Final:
    """What was there when all faults had ended and every consumer had drained its subscription.

    `stored`: the values of each topic in the order of their offsets. `dead`: of each subscription, the values that were
    given up. `followed`: which topic each subscription follows. `lost`: values the broker itself has named as lost.
    """

    stored: dict[str, list[str]] = field(default_factory=dict)
    dead: dict[str, list[str]] = field(default_factory=dict)
    followed: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)


def values(lane: str, topic: str) -> Iterator[str]:
    """The values one lane publishes to one topic, each once, in their order."""
    for number in count():
        yield f"{lane}.{topic.strip('$')}.{number};"


def value_in(data: bytes) -> str:
    """The value somewhere in what a door delivered: bare, or inside an envelope."""
    found = _VALUE.search(data)
    if found is None:
        raise AssertionError(f"a delivery holds none of our values: {data[:80]!r}")
    return found[0].decode()


def place(value: str) -> tuple[str, str, int]:
    """Lane, topic and number of a value."""
    lane, topic, number = value.removesuffix(";").split(".")
    return lane, topic, int(number)
