"""What subscriptions are called and which topic they read, by the ids that events name them with.

Learns from the events that made them and, of those made before anybody looked, from the broker. A subscription that is
gone and that nobody told of stays unknown.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

IDS_MAX = 100_000
ASK_AGAIN_S = 1.0


class Known(NamedTuple):
    """A subscription's name, which is its id when it has none, and its topic."""

    name: str
    topic: str


class _Definition(msgspec.Struct):
    """What the event that makes a subscription says of it, as far as it matters here."""

    topic: str
    name: str = ""


_definition = msgspec.json.Decoder(_Definition)


class Subscriptions:
    """Every subscription heard of. `ask` gives those there are, as the broker lists them."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._known: dict[int, Known] = {}
        self._asked = -ASK_AGAIN_S
        self._lock = threading.Lock()

    def learn(self, identity: int, detail: bytes) -> None:
        """Take in the definition of a subscription as its event holds it."""
        try:
            made = _definition.decode(detail)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        with self._lock:
            self._remember(identity, made.name, made.topic)

    def known(self, ids: list[int]) -> dict[int, Known]:
        """Those of these that are known; the broker is asked about others now and then. Raises BrokerError."""
        with self._lock:
            now = time.monotonic()
            if now - self._asked >= ASK_AGAIN_S and any(each and each not in self._known for each in ids):
                self._asked = now
                listed: Any = self._ask()
                for each in listed:
                    self._remember(each["id"], each["name"], each["topic"])
            return {each: self._known[each] for each in ids if each in self._known}

    def _remember(self, identity: int, name: str, topic: str) -> None:
        self._known[identity] = Known(name or str(identity), topic)
        if len(self._known) > IDS_MAX:
            del self._known[next(iter(self._known))]
