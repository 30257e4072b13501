"""The demo's own books: every message it sent, what it knows for certain of it, and whether the broker kept its word.

Knows numbers only. A number is *durable* once its publish was confirmed, and *settled* once its acknowledgement was.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SENT, DURABLE, SEEN, ACKED, SETTLED, DEAD = 1, 2, 4, 8, 16, 32


@dataclass(frozen=True, kw_only=True)
class Balance:
    """What the books of one topic say in the end."""

    sent: int
    durable: int
    unanswered: int
    unanswered_kept: int
    settled: int
    settled_unanswered: int
    dead: int
    lost: tuple[int, ...]
    returned: tuple[int, ...]
    unfinished: tuple[int, ...]

    @property
    def kept(self) -> bool:
        """Whether nothing durable was lost, nothing settled came back and nothing was left over."""
        return not (self.lost or self.returned or self.unfinished)

    @property
    def reconciles(self) -> bool:
        """Whether everything sent is acknowledged, dead, or was never answered for and never stored.

        An acknowledgement sent right before the kill may have been recorded though its answer never came: its message
        did not come again, and nothing is left.
        """
        accounted = self.settled + self.settled_unanswered + self.dead + self.unanswered - self.unanswered_kept
        return self.sent == accounted


class Ledger:
    """The books of one topic; message numbers run from 0."""

    def __init__(self) -> None:
        self._marks = bytearray()
        self._returned: list[int] = []
        self.published = 0
        self.durable = 0
        self.delivered = 0
        self.again = 0
        self.acked = 0
        self.settled = 0
        self.dead = 0
        self.redriven = 0

    @property
    def in_flight(self) -> int:
        """Delivered and neither acknowledged nor given up."""
        return self.delivered - self.again - self.acked - self.dead + self.redriven

    @property
    def stored(self) -> frozenset[int]:
        """What is certainly in the broker, for it came out again."""
        return frozenset(number for number, mark in enumerate(self._marks) if mark & SEEN)

    @property
    def confirmed(self) -> frozenset[int]:
        """What the broker said it has."""
        return frozenset(number for number, mark in enumerate(self._marks) if mark & DURABLE)

    @property
    def unanswered(self) -> list[int]:
        """What was sent and not confirmed."""
        return [number for number, mark in enumerate(self._marks) if not mark & DURABLE]

    def send(self, count: int) -> range:
        """Numbers for the next messages, entered as sent."""
        first = len(self._marks)
        self._marks += bytes([SENT]) * count
        self.published += count
        return range(first, first + count)

    def mark_durable(self, numbers: Iterable[int]) -> None:
        """These were confirmed."""
        self.durable += self._mark(numbers, DURABLE)

    def mark_delivered(self, numbers: Iterable[int]) -> None:
        """These arrived; some perhaps not for the first time."""
        for number in numbers:
            self.delivered += 1
            if not self._mark((number,), SEEN):
                self.again += 1
            if self._marks[number] & SETTLED:
                self._returned.append(number)

    def mark_acked(self, numbers: Iterable[int]) -> None:
        """Acknowledgements for these were sent."""
        self.acked += self._mark(numbers, ACKED)

    def mark_settled(self, numbers: Iterable[int]) -> None:
        """Their acknowledgements were confirmed."""
        self.settled += self._mark(numbers, SETTLED)

    def mark_dead(self, number: int) -> None:
        """The broker gave this one up."""
        self.dead += self._mark((number,), DEAD)

    def mark_redriven(self, number: int) -> None:
        """This one was dead and was sent back: it has to come to an end anew."""
        self._marks[number] &= ~DEAD
        self.redriven += 1

    def balance(self) -> Balance:
        """The books closed: call when the broker says that nothing is left to deliver."""
        marks = list(enumerate(self._marks))
        unanswered = [mark for _, mark in marks if not mark & DURABLE]
        return Balance(
            sent=len(marks),
            durable=self.durable,
            unanswered=len(unanswered),
            unanswered_kept=sum(1 for mark in unanswered if mark & SEEN),
            settled=self.settled,
            settled_unanswered=sum(1 for _, mark in marks if mark & (ACKED | SETTLED | DEAD) == ACKED),
            dead=sum(1 for _, mark in marks if mark & DEAD),
            lost=tuple(number for number, mark in marks if mark & DURABLE and not mark & SEEN),
            returned=tuple(self._returned),
            unfinished=tuple(number for number, mark in marks if mark & SEEN and not mark & (ACKED | SETTLED | DEAD)),
        )

    def _mark(self, numbers: Iterable[int], bit: int) -> int:
        """Set a bit; how many did not have it."""
        fresh = 0
        marks = self._marks
        for number in numbers:
            if not marks[number] & bit:
                marks[number] |= bit
                fresh += 1
        return fresh
