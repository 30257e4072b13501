"""The plain model of the simulation of the broker, fed from a real log as it grows."""

from typing import cast

from headrace.broker import BrokerSettings
from headrace.log import Log
from headrace.model.events import Event, EventPart, Range
from tests.simulation.memory_log import Record
from tests.simulation.model import LIVE, Entry, Model, ModelSubscription, State

DEAD_AT_ONCE = "never try again"
ROOM_FOR_ALL = 100_000
VISIBILITY_S = 4.0
"""How long consumers of the grpcq door ask for. No event tells, so nobody can be said to hold anything for longer."""


class LogModel(Model):
    """A fold over everything durable; `catch_up` applies what is new."""

    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__(settings)
        self._applied = 0
        self._tails: dict[tuple[int, int], tuple[int, int]] = {}

    def catch_up(self, stored: Log) -> None:
        """Learn what was recorded since the last time."""
        for record in stored.iter_records(self._applied):
            self.apply(cast(Record, record))
            self._applied = record.first + record.span

    def deadline(self, topic: str, attempt: int, now: int) -> int:
        return min(super().deadline(topic, attempt, now), now + round(VISIBILITY_S * 1e6))

    def deliverable(self, sub: ModelSubscription, now: int) -> list[Entry]:
        """What a reader that waits for the subscription should have been given."""
        passed = [entry for entry in sub.order if entry.state in (State.HELD, State.NACKED, State.DEFERRED)]
        found = [e for e in passed if e.state is not State.HELD and self._is_ready(sub, e, now)]
        if sub.tail:
            found = [e for e in found if self._tails.get((sub.id, e.delivery), (0, 0))[1] <= now]
        if len(passed) < self.settings.inflight_max:
            pending = [entry for entry in sub.order if entry.state is State.PENDING]
            found += [entry for entry in pending if entry.message.due <= now < entry.message.expires]
        return found

    def unsettled(self, sub: ModelSubscription) -> list[Entry]:
        """What is not over yet."""
        return [entry for entry in sub.order if entry.state in LIVE]

    def _check_and_change(self, sub: ModelSubscription, event: EventPart, entry: Entry, item: Range) -> None:
        if event.event == Event.DEAD and event.reason == DEAD_AT_ONCE:
            assert entry.state is State.HELD
            assert item.attempt == entry.attempt
            entry.state = State.DEAD
            return
        again = event.event == Event.DELIVERED and entry.attempt > 0
        super()._check_and_change(sub, event, entry, item)
        if sub.tail and again:
            self._check_tail(sub, entry)
        elif sub.tail and event.event == Event.NACKED:
            entry.due = 0
            self._tails[sub.id, entry.delivery] = self._seen_of(sub.topic), event.timestamp_us

    def _seen_of(self, topic: str) -> int:
        """How far somebody has come with the topic, so that it was visible that far."""
        return max(other.cursor for other in self.subscriptions.values() if other.topic == topic)

    def _check_tail(self, sub: ModelSubscription, entry: Entry) -> None:
        """What came back is delivered again only behind what there was, where there always is room."""
        tail, _ = self._tails.pop((sub.id, entry.delivery))
        if self.settings.inflight_max == ROOM_FOR_ALL and sub.cursor < tail:
            passed_over = [e for e in sub.order if e.state is State.PENDING and e.message.offset < tail]
            assert not passed_over, "before its turn"


def name_of(sub: ModelSubscription) -> str:
    """What the ledger calls a subscription."""
    return f"{sub.name}/{sub.topic}" if sub.name else f"blipmq/{sub.id}"
