"""The demo's books: one ledger for each topic, and which order each transaction belongs to.

Numbers of `orders` are orders. Numbers of `payments` and `labels` are transactions, the same in both, for a transaction
writes one message to each.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.cli.demo.ledger import Balance, Ledger

ORDERS, PAYMENTS, LABELS = "orders", "payments", "labels"


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A topic with the doors its messages come in and go out by."""

    topic: str
    way_in: str
    way_out: str


LANES = (
    Lane(topic=ORDERS, way_in="grpcq", way_out="grpcq"),
    Lane(topic=PAYMENTS, way_in="fujin", way_out="blipmq"),
    Lane(topic=LABELS, way_in="fujin", way_out="sspq"),
)


@dataclass(frozen=True, kw_only=True)
class Station:
    """What arrived at one place: how many orders, which never did, which more than once."""

    place: str
    door: str
    orders: int
    missing: tuple[int, ...]
    twice: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether every order arrived, once."""
        return not (self.missing or self.twice)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the books prove in the end."""

    balances: dict[str, Balance]
    stations: tuple[Station, ...]
    halves: tuple[int, ...]
    lost: tuple[int, ...]

    @property
    def kept(self) -> bool:
        """Whether every order is where it should be, every transaction whole, and every promise kept."""
        whole = not (self.halves or self.lost) and all(station.complete for station in self.stations)
        return whole and all(balance.kept and balance.reconciles for balance in self.balances.values())


class Books:
    """Everything the demo's clients know for certain."""

    def __init__(self) -> None:
        self.ledgers = {lane.topic: Ledger() for lane in LANES}
        self._order_of: list[int] = []
        self._paid: set[int] = set()

    @property
    def orders(self) -> Ledger:
        """The shop's and the payment desk's."""
        return self.ledgers[ORDERS]

    @property
    def payments(self) -> Ledger:
        """The payment desk's and the dashboard's."""
        return self.ledgers[PAYMENTS]

    @property
    def labels(self) -> Ledger:
        """The payment desk's and the printer's."""
        return self.ledgers[LABELS]

    def begin(self, order: int) -> int:
        """A new transaction for an order; its number."""
        (number,) = self.payments.send(1)
        self.labels.send(1)
        self._order_of.append(order)
        return number

    def committed(self, number: int) -> None:
        """The broker confirmed this transaction."""
        for ledger in (self.payments, self.labels):
            ledger.mark_durable((number,))
        self._paid.add(self._order_of[number])

    def is_paid(self, order: int) -> bool:
        """Whether an order needs no transaction any more."""
        return order in self._paid

    def found(self, stored: Collection[int]) -> tuple[int, int]:
        """The log was asked what it stored: how many transactions had no answer, and how many of these it has."""
        unanswered = self.payments.unanswered
        kept = [number for number in unanswered if number in stored]
        self._paid.update(self._order_of[number] for number in kept)
        return len(unanswered), len(kept)

    def proof(self) -> Proof:
        """The books closed: call when the broker says that nothing is left to deliver."""
        accepted = self.orders.stored | self.orders.confirmed
        charged, shown, printed = (
            Counter(self._order_of[number] for number in numbers)
            for numbers in (self.payments.stored & self.labels.stored, self.payments.stored, self.labels.stored)
        )
        stations = (
            _station("charged in a transaction", "fujin", accepted, charged),
            _station("shown on the dashboard", "blipmq", accepted, shown),
            _station("label printed", "sspq", accepted, printed),
        )
        balances = {topic: ledger.balance() for topic, ledger in self.ledgers.items()}
        lost = {number for balance in balances.values() for number in balance.lost}
        return Proof(
            balances=balances,
            stations=(_station("accepted and handled", "grpcq", accepted, Counter(self.orders.stored)), *stations),
            halves=tuple(sorted(self.payments.stored ^ self.labels.stored)),
            lost=tuple(sorted(lost)),
        )


def _station(place: str, door: str, accepted: Iterable[int], arrived: Counter[int]) -> Station:
    return Station(
        place=place,
        door=door,
        orders=len(arrived),
        missing=tuple(sorted(set(accepted) - set(arrived))),
        twice=tuple(sorted(order for order, count in arrived.items() if count > 1)),
    )
