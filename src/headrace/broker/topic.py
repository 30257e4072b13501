"""A topic as the broker sees it: its settings resolved, how far it goes, who reads it. Holds no message."""

from typing import TYPE_CHECKING

from headrace.broker.alarms import NEVER
from headrace.broker.retry import deadline
from headrace.broker.settings import BrokerSettings, TopicSettings
from headrace.model.batch import Batch

if TYPE_CHECKING:
    from headrace.broker.subscription import Subscription


class Topic:
    """One topic.

    published   messages ever seen
    has_qos0    whether a QoS 0 subscription was ever made
    end         the offset after the last visible message
    waiting     subscriptions with somebody waiting for the next message
    unchecked   messages since QoS 0 subscriptions were last checked for overflow
    maker       whose share it counts for; nobody's if that is not known, or the broker's own
    """

    __slots__ = (
        "_first_wait_us", "delay_us", "end", "has_qos0", "maker", "name", "policy", "published", "subscriptions",
        "ttl_us", "unchecked", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, settings: BrokerSettings) -> None:
        own = settings.topics.get(name, TopicSettings())
        self.name = name
        self.policy = own.retry(settings.retry)
        self._first_wait_us = deadline(1, now=0, policy=self.policy)
        self.ttl_us = own.ttl_s * 1_000_000
        self.delay_us = own.delay_ms * 1000
        self.published = 0
        self.end = 0
        self.has_qos0 = False
        self.subscriptions: dict[int, Subscription] = {}
        self.waiting: dict[int, Subscription] = {}
        self.unchecked = 0
        self.maker = ""

    def saw(self, batch: Batch) -> None:
        """Count a batch; one that was counted before changes nothing."""
        if batch.base >= self.end:
            self.published += batch.count
            self.end = batch.base + batch.count

    def due(self, batch: Batch) -> int:
        """From when on the batch may be delivered."""
        due: int = batch.due_us
        if self.delay_us and not due:
            due = batch.timestamp_us + self.delay_us
        return due

    def expires(self, batch: Batch) -> int:
        """From when on the batch may not be delivered any more."""
        expires: int = batch.expires_us
        if self.ttl_us and not expires:
            expires = batch.timestamp_us + self.ttl_us
        return expires or NEVER

    def deadline(self, attempt: int, now: int) -> int:
        """Until when a delivery made now may be settled."""
        if attempt == 1:
            return now + self._first_wait_us
        return deadline(attempt, now=now, policy=self.policy)
