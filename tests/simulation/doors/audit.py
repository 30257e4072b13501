"""What peers were told against what is in the log: the promises, one function each."""

from collections import Counter, defaultdict

from headrace.broker import Broker
from headrace.log import Log
from headrace.model.batch import ATTEMPTS_UNLIMITED, Batch
from headrace.model.names import is_dead_topic
from tests.simulation.doors.ledger import Fate, Ledger, number_of
from tests.simulation.doors.model import LogModel, name_of
from tests.simulation.model import State
from tests.unit.log.records import batches_of


class Audit:
    """The books, once nothing happens any more. `crashes` are the lives that ended in one."""

    def __init__(self, ledger: Ledger, stored: Log, broker: Broker, model: LogModel, crashes: list[int]) -> None:
        self._ledger = ledger
        self._broker = broker
        self._model = model
        self._crashes = crashes
        self._topics: dict[str, list[int]] = defaultdict(list)
        for topic in stored.topics():
            for batch in batches_of(stored, topic, 0):
                for index in range(batch.count):
                    number = number_of(batch.value(index))
                    self._topics[topic].append(number)
                    if not is_dead_topic(topic):
                        self._check_limit(number, batch)
        self._stored = Counter(
            number for topic, found in self._topics.items() if not is_dead_topic(topic) for number in found
        )

    def check(self) -> None:
        """Everything."""
        self.nothing_confirmed_is_lost()
        self.nothing_refused_is_stored()
        self.transactions_are_whole()
        self.publishers_are_in_order()
        self.what_was_delivered_is_stored()
        self.what_was_acked_stays_acked()
        self.every_message_is_accounted_for()

    def nothing_confirmed_is_lost(self) -> None:
        for sent in self._ledger.sent:
            count = self._stored[sent.number]
            assert count <= 1, f"{sent} is stored {count} times"
            if count:
                assert sent.number in self._topics[sent.topic]
            assert count or sent.fate is not Fate.CONFIRMED, f"{sent} is lost"

    def nothing_refused_is_stored(self) -> None:
        """Not even part of it; unless the disk would not take it back and the machine crashed before it did."""
        for sent in self._ledger.sent:
            if self._stored[sent.number]:
                assert sent.fate is not Fate.WITHDRAWN, f"{sent} is stored"
                assert sent.fate is not Fate.REFUSED or sent.life in self._crashes, f"{sent} is stored"

    def transactions_are_whole(self) -> None:
        stored: dict[int, set[bool]] = defaultdict(set)
        for sent in self._ledger.sent:
            if sent.transaction is not None:
                stored[sent.transaction].add(bool(self._stored[sent.number]))
        torn = [transaction for transaction, found in stored.items() if len(found) > 1]
        assert not torn, f"transactions {torn} are torn"

    def publishers_are_in_order(self) -> None:
        last: dict[tuple[str, str], int] = {}
        for topic, numbers in self._topics.items():
            if not is_dead_topic(topic):
                for number in numbers:
                    key = topic, self._ledger.sent[number].publisher
                    assert last.get(key, -1) < number, f"{self._ledger.sent[number]} is out of order"
                    last[key] = number

    def what_was_delivered_is_stored(self) -> None:
        missing = [number for number in sorted(self._ledger.delivered) if not self._stored[number]]
        assert not missing, f"{missing} were delivered and are not stored"

    def what_was_acked_stays_acked(self) -> None:
        states = {
            (name_of(sub), number_of(entry.message.value)): entry.state
            for sub in self._model.subscriptions.values()
            for entry in sub.order
        }
        for key in self._ledger.acked:
            assert states[key] is State.ACKED, f"{key} was acked and is {states[key].value}"

    def every_message_is_accounted_for(self) -> None:
        check_accounts(self._broker, self._model)
        self._every_death_has_its_letter()

    def _every_death_has_its_letter(self) -> None:
        deaths: Counter[tuple[str, int]] = Counter()
        for sub in self._model.subscriptions.values():
            if not is_dead_topic(sub.topic):
                dead = [entry for entry in sub.order if entry.state is State.DEAD]
                deaths.update((f"$dead.{sub.topic}", number_of(entry.message.value)) for entry in dead)
        letters = Counter(
            (topic, number) for topic, found in self._topics.items() if is_dead_topic(topic) for number in found
        )
        assert letters == deaths

    def _check_limit(self, number: int, batch: Batch) -> None:
        """Deliveries are one more than SSPQ's retries."""
        retries = self._ledger.sent[number].retries
        if retries is not None:
            assert batch.max_attempts == (ATTEMPTS_UNLIMITED if retries == 255 else retries + 1)


def check_accounts(broker: Broker, model: LogModel) -> None:
    """Published is acked, handed over, pending, in flight, deferred, dead, expired or dropped: never nothing.

    What readers that are gone held may have been given up since the log was written.
    """
    assert {info.id for info in broker.subscriptions()} == set(model.subscriptions)
    for sub in model.subscriptions.values():
        info = broker.subscription(sub.id)
        assert info is not None
        states, name = sub.states(), name_of(sub)
        assert info.acked == states[State.ACKED], name
        assert info.pending == states[State.PENDING], name
        assert info.deferred == states[State.DEFERRED], name
        assert info.expired == states[State.EXPIRED], name
        assert info.dropped == states[State.DROPPED], name
        assert info.dead >= states[State.DEAD], name
        assert info.in_flight + info.dead == states[State.HELD] + states[State.NACKED] + states[State.DEAD], name
