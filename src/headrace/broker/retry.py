"""When a failed delivery is tried again, and when it is given up. Arithmetic only."""

from dataclasses import dataclass

from headrace.broker.settings import RetryPolicy
from headrace.model.batch import ATTEMPTS_UNLIMITED

DOUBLINGS_MAX = 16


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Deliver it again from this time on."""

    due: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It had all its attempts."""


def next_step(attempt: int, *, now: int, policy: RetryPolicy, max_attempts: int = 0) -> RetryAt | GiveUp:
    """What follows the failure of the `attempt`-th delivery.

    `max_attempts` is the message's own limit as its batch carries it; 0 leaves it to the policy.
    """
    limit = max_attempts or policy.max_attempts
    if limit != ATTEMPTS_UNLIMITED and attempt >= limit:
        return GiveUp()
    return RetryAt(now + backoff_us(attempt, policy))


def deadline(attempt: int, *, now: int, policy: RetryPolicy) -> int:
    """When a delivery made now counts as failed unless it is settled."""
    return now + 1000 * policy.ack_wait_ms + backoff_us(attempt, policy)


def backoff_us(attempt: int, policy: RetryPolicy) -> int:
    """The pause after the `attempt`-th delivery: it doubles each time, at most DOUBLINGS_MAX times."""
    return 1000 * policy.backoff_ms << min(attempt - 1, DOUBLINGS_MAX)
