"""Takes that found nothing and are good for a moment longer, as if they had come that much later."""

from typing import Protocol

from headrace.model.requests import Take


class Taker(Protocol):
    """Who stands for something."""

    def take_again(self, request: Take) -> None:
        """Something has come that this take may find; it is over now, whether it does or not."""


class Standing:
    """One take that is still good until a time."""

    __slots__ = ("request", "taker", "topic", "until")

    def __init__(self, taker: Taker, request: Take, topic: str, until: int) -> None:
        self.taker = taker
        self.request = request
        self.topic = topic
        self.until = until


class StandingRoom:
    """All that stand, by the topic they wait for. Nobody is woken by time: what came too late is thrown out then."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, dict[Standing, None]] = {}

    def __bool__(self) -> bool:
        """Whether anybody stands, in time or not."""
        return bool(self._topics)

    def enter(self, standing: Standing) -> None:
        """Stand behind everybody who came before."""
        self._topics.setdefault(standing.topic, {})[standing] = None

    def leave(self, standing: Standing) -> None:
        """Stand no longer; nothing to do for one that was called."""
        there = self._topics.get(standing.topic)
        if there is not None and there.pop(standing, standing) is None and not there:
            del self._topics[standing.topic]

    def call(self, topic: str, now: int) -> None:
        """Something was published: whoever still stands for it is called, in order, and then stands no longer."""
        for standing in self._topics.pop(topic, ()):
            if now <= standing.until:
                standing.taker.take_again(standing.request)
