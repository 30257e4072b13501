"""A broker on a log in memory, with the calls that tests repeat."""

from headrace.broker import Broker, BrokerSettings, RetryPolicy
from headrace.model.batch import Batch, build_batch
from headrace.model.events import Event, EventPart
from headrace.model.requests import Start
from tests.simulation.memory_log import MemoryLog

OWNER = "owner"
MS = 1000
SECOND = 1_000_000
LITERAL = RetryPolicy(ack_wait_ms=0)
"""The backoff alone decides when a delivery comes again, so that tests can count in it."""


class Desk:
    """Everything is synced at once; `now` moves only when told."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.settings = settings or BrokerSettings(retry=LITERAL)
        self.log = MemoryLog()
        self.broker = Broker(self.log, self.settings)
        self.now = SECOND
        self.events: list[EventPart] = []

    def publish(
        self, topic: str, *values: bytes, qos: int = 1, due: int = 0, expires: int = 0, tries: int = 0
    ) -> Batch:
        """One visible batch."""
        part = build_batch(
            topic, values, timestamp_us=self.now, qos=qos, due_us=due, expires_us=expires, max_attempts=tries
        )
        self.log.append(part)
        self.sync()
        batch = self.log.batch_at(topic, self.log.topic_end(topic) - 1)
        assert batch is not None
        return batch

    def subscribe(
        self, topic: str, *, qos: int = 1, name: str = "", start: Start = Start.LATEST, owner: str = OWNER
    ) -> int:
        """A recorded subscription."""
        at = self.log.next_offset
        identity = self.broker.subscribe(topic, qos=qos, owner=owner, name=name, start=start, at=at, now=self.now)
        self.sync()
        return identity

    def take(self, subscription: int, limit: int = 100, consumer: str | None = None) -> list[tuple[int, bytes, int]]:
        """What is delivered, as (delivery id, value, attempt)."""
        portions = self.broker.take(subscription, limit, owner=OWNER, consumer=consumer, now=self.now)
        return [(p.first_delivery + i, p.batch.value(p.index + i), p.attempt) for p in portions for i in range(p.count)]

    def ack(self, subscription: int, *ranges: tuple[int, int]) -> None:
        """An ack of the usual owner."""
        self.broker.ack(subscription, ranges, owner=OWNER, now=self.now)

    def nack(self, subscription: int, *ranges: tuple[int, int], reason: str = "") -> None:
        """A nack of the usual owner."""
        self.broker.nack(subscription, ranges, owner=OWNER, reason=reason, now=self.now)

    def tick(self, after: int = 0) -> None:
        """Let some time pass and be noticed."""
        self.now += after
        self.broker.tick(self.now)

    def sync(self) -> list[EventPart]:
        """Append what the broker has to say, make it visible, and return the events among it."""
        events = []
        for payload in self.broker.drain():
            events += [p[1] for p in self.log.append(payload).parts() if not isinstance(p, Batch)]
        for batch in self.log.sync():
            self.broker.on_published(batch, self.now)
        self.events += events
        return events

    def kinds(self) -> list[Event]:
        """The kinds of the events since the last sync."""
        return [event.event for event in self.sync()]

    def restart(self) -> None:
        """Continue with a broker made from the whole log."""
        self.sync()
        self.broker = Broker(self.log, self.settings)
        for record in self.log.records:
            for part in record.parts():
                if isinstance(part, Batch):
                    self.broker.apply_batch(part)
                else:
                    self.broker.apply_event(part[1], part[0])
