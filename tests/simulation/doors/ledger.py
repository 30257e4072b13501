"""What the peers know: what they sent, what they were told of it, what they were given, what they settled.

Nothing here looks into the broker. What can be judged from outside is asserted at once; the rest is for the audit.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

_NUMBER = re.compile(rb"\[#(\d+)#\]")


class Fate(Enum):
    """What its publisher was told of a message."""

    OPEN = "nothing"
    CONFIRMED = "it is stored"
    REFUSED = "it was not stored"
    WITHDRAWN = "rolled back by the publisher itself"


@dataclass
class Sent:
    """A message as its publisher, which is one connection, knows it.

    `retries` is what SSPQ asked for; `life` is the one of the broker in which its fate came.
    """

    number: int
    publisher: str
    topic: str
    qos: int = 1
    retries: int | None = None
    transaction: int | None = None
    fate: Fate = Fate.OPEN
    life: int = 0

    def value(self, padding: int) -> bytes:
        """What to send."""
        return b"[#%d#]" % self.number + b"x" * padding


class Holder(Protocol):
    """Somebody who holds messages until the connection ends."""

    @property
    def over(self) -> bool:
        """Whether the connection has ended, at either end."""


@dataclass
class Seen:
    """How often a message came by one subscription, in one life: the retries left each time, where they are told."""

    life: int
    left: list[int] = field(default_factory=list)


class Ledger:
    """Everything the peers wrote down."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.transactions = 0
        self.received = 0
        self.delivered: set[int] = set()
        self.acked: dict[tuple[str, int], int] = {}
        self._handed: dict[tuple[str, int], int] = {}
        self._holders: dict[tuple[str, int], Holder] = {}
        self._last_first: dict[tuple[Holder, str, str], int] = {}
        self._left: defaultdict[tuple[str, int], Seen] = defaultdict(lambda: Seen(0))

    # Publishers

    def new(
        self, publisher: str, topic: str, *, qos: int = 1, retries: int | None = None, transaction: int | None = None
    ) -> Sent:
        """A message about to be sent, unlike any other."""
        sent = Sent(len(self.sent), publisher, topic, qos, retries, transaction)
        self.sent.append(sent)
        return sent

    def new_transaction(self) -> int:
        self.transactions += 1
        return self.transactions

    def decide(self, sent: Sent, fate: Fate, life: int) -> None:
        """The publisher was told, or knows."""
        assert sent.fate is Fate.OPEN, f"message {sent.number} was told {sent.fate.value}, and now {fate.value}"
        sent.fate, sent.life = fate, life

    # Consumers

    def take(
        self,
        subscription: str,
        value: bytes,
        life: int,
        *,
        holder: Holder | None = None,
        attempt: int | None = None,
        once: bool = False,
    ) -> int:
        """A message came; its number. `holder` holds it until it settles or goes away; if `once` it is settled."""
        number = number_of(value)
        key = subscription, number
        assert self._handed.get(key) != life, f"{key} was handed over, and comes again"
        if once:
            self._handed[key] = life
        self.received += 1
        self.delivered.add(number)
        settled = self.acked.get(key)
        exact = holder is not None or attempt is not None
        assert settled is None or (settled == life and not exact), f"{key} was acked, and comes again"
        if holder is not None:
            other = self._holders.get(key)
            assert other is None or other.over, f"{key} is with two consumers"
            self._holders[key] = holder
            if attempt == 1:
                self._check_order(holder, subscription, self.sent[number])
        return number

    def let_go(self, subscription: str, number: int) -> None:
        """Whoever held it has settled it, or said goodbye."""
        self._holders.pop((subscription, number), None)

    def ack_confirmed(self, subscription: str, number: int, life: int) -> None:
        """The broker said that it knows the message is done, for ever."""
        self.acked[subscription, number] = life

    def retries_left(self, subscription: str, value: bytes, life: int, left: int) -> int | None:
        """SSPQ told how many retries are left; checks it and returns which attempt that was, if that can be told."""
        number = number_of(value)
        retries = self.sent[number].retries
        if retries is None:
            return None
        if retries == 255:
            assert left == 255, f"message {number} has {left} retries left of endless ones"
            return None
        seen = self._left[subscription, number]
        if seen.life != life:
            seen = self._left[subscription, number] = Seen(life)
        assert left <= retries and all(left < before for before in seen.left), (  # noqa: PT018 - one thought
            f"message {number} of {retries} retries: {seen.left} were left, and now {left}"
        )
        seen.left.append(left)
        return retries + 1 - left

    def _check_order(self, holder: Holder, subscription: str, sent: Sent) -> None:
        key = holder, subscription, sent.publisher
        last = self._last_first.get(key, -1)
        assert last < sent.number, f"message {sent.number} of {sent.publisher} comes after {last}"
        self._last_first[key] = sent.number


def number_of(value: bytes) -> int:
    """Which message these bytes hold, bare or in an envelope."""
    found = _NUMBER.search(value)
    assert found is not None, value[:80]
    return int(found[1])
