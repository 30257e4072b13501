"""What can be set about retries, topics and subscriptions. Knows no configuration file."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.batch import ATTEMPTS_UNLIMITED, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often a message is delivered, and how long each attempt may take.

    `ack_wait_ms` is the time a consumer has before the backoff begins to count: long enough for a handful of tasks
    at work to lose nothing. BlipMQ's document knows none; 0 is its literal timer.
    """

    max_attempts: int = 3
    backoff_ms: int = 100
    ack_wait_ms: int = 30_000

    def __post_init__(self) -> None:
        _within("max_attempts", self.max_attempts, 1, ATTEMPTS_UNLIMITED)
        _within("backoff_ms", self.backoff_ms, 0, DAY_MS)
        _within("ack_wait_ms", self.ack_wait_ms, 0, DAY_MS)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSettings:
    """What one topic does differently; None means as everywhere."""

    ttl_s: int = 0
    delay_ms: int = 0
    max_attempts: int | None = None
    backoff_ms: int | None = None
    dedup_s: int | None = None

    def __post_init__(self) -> None:
        _within("dedup_s", self.dedup_s or 0, 0, WEEK_S)
        _within("ttl_s", self.ttl_s, 0, CENTURY_S)
        _within("delay_ms", self.delay_ms, 0, CENTURY_S * 1000)

    def retry(self, default: RetryPolicy) -> RetryPolicy:
        """The topic's own retry policy, falling back to the default field by field.

        Raises ValueError for a value no policy may have.
        """
        return RetryPolicy(
            max_attempts=default.max_attempts if self.max_attempts is None else self.max_attempts,
            backoff_ms=default.backoff_ms if self.backoff_ms is None else self.backoff_ms,
            ack_wait_ms=default.ack_wait_ms,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerSettings:
    """Everything the broker is told at start.

    `inflight_max` bounds what one subscription has delivered and not settled; `qos0_pending_max` what a QoS 0
    subscription may leave lying before the oldest is dropped. `dedup_s` is for how long topics without a window of
    their own remember the ids of messages (0: not at all), `dedup_door_s` for how long at least those that come in by a
    door; all together remember `dedup_ids_max`.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    topics: Mapping[str, TopicSettings] = field(default_factory=dict)
    subscription_expiry_s: int = 86_400
    qos0_pending_max: int = 100_000
    inflight_max: int = 100_000
    dedup_s: int = 0
    dedup_door_s: Mapping[Protocol, int] = field(default_factory=dict)
    dedup_ids_max: int = 1_000_000

    def __post_init__(self) -> None:
        _within("dedup_s", self.dedup_s, 0, WEEK_S)
        _within("dedup_ids_max", self.dedup_ids_max, 1, DEDUP_IDS_MAX)
        for window in self.dedup_door_s.values():
            _within("dedup_s", window, 0, WEEK_S)
        _within("subscription_expiry_s", self.subscription_expiry_s, 1, CENTURY_S)
        _within("qos0_pending_max", self.qos0_pending_max, 1, 1 << 40)
        _within("inflight_max", self.inflight_max, 1, 1 << 40)
        for topic in self.topics.values():
            topic.retry(self.retry)


DAY_MS = 86_400_000
WEEK_S = 604_800
DEDUP_IDS_MAX = 1 << 24
CENTURY_S = 3_155_760_000


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, not {value}")
