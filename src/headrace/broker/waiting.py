"""Who waits for which subscription, and who is to be called. First come, first called."""

from collections.abc import Collection

from headrace.broker.runs import Consumer
from headrace.broker.subscription import Subscription


class WaitingRoom:
    """Consumers that found nothing to take.

    A call is answered by a take; if its consumer leaves instead, the next one is called.
    """

    __slots__ = ("_called", "_places", "_unanswered")

    def __init__(self) -> None:
        self._places: dict[Consumer, dict[int, Subscription]] = {}
        self._called: dict[Consumer, None] = {}
        self._unanswered: dict[Consumer, dict[int, Subscription]] = {}

    def enter(self, sub: Subscription, consumer: Consumer) -> None:
        """Wait for a subscription; waiting twice is waiting once, in the first place."""
        sub.waiters[consumer] = None
        sub.topic.waiting[sub.id] = sub
        self._places.setdefault(consumer, {})[sub.id] = sub

    def leave(self, consumer: Consumer, but_for: Collection[int] = ()) -> None:
        """Wait for nothing any more, called or not, but for these subscriptions."""
        places = self._places.pop(consumer, {})
        if kept := {identity: sub for identity, sub in places.items() if identity in but_for}:
            self._places[consumer] = kept
        for sub in places.values():
            if sub.id not in but_for:
                self._strike(sub, consumer)
        calls = self._unanswered.pop(consumer, {})
        if kept := {identity: sub for identity, sub in calls.items() if identity in but_for}:
            self._unanswered[consumer] = kept
        else:
            self._called.pop(consumer, None)
        for sub in calls.values():
            if sub.id not in but_for:
                self.call(sub, 1)

    def call(self, sub: Subscription, count: int) -> None:
        """Call as many of those who wait for the subscription, the first first."""
        for consumer in list(sub.waiters)[:count]:
            self._strike(sub, consumer)
            places = self._places[consumer]
            del places[sub.id]
            if not places:
                del self._places[consumer]
            self._called[consumer] = None
            self._unanswered.setdefault(consumer, {})[sub.id] = sub

    def answer(self, sub: Subscription, consumer: Consumer) -> None:
        """The consumer takes from the subscription, called or not."""
        calls = self._unanswered.get(consumer)
        if calls is not None:
            calls.pop(sub.id, None)
            if not calls:
                del self._unanswered[consumer]

    def call_now(self, consumer: Consumer) -> None:
        """Call somebody who does not wait."""
        self._called[consumer] = None

    def drain(self) -> list[Consumer]:
        """Everybody called since the last time, in order."""
        if not self._called:
            return []
        called = list(self._called)
        self._called.clear()
        return called

    def _strike(self, sub: Subscription, consumer: Consumer) -> None:
        del sub.waiters[consumer]
        if not sub.waiters:
            del sub.topic.waiting[sub.id]
