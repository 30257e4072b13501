import pytest

from headrace.broker.retry import DOUBLINGS_MAX, GiveUp, RetryAt, backoff_us, deadline, next_step
from headrace.broker.settings import RetryPolicy
from headrace.model.batch import ATTEMPTS_UNLIMITED

POLICY = RetryPolicy(max_attempts=3, backoff_ms=100, ack_wait_ms=20)


@pytest.mark.parametrize(("attempt", "pause_ms"), [(1, 100), (2, 200), (3, 400)])
def test_the_backoff_doubles(attempt: int, pause_ms: int) -> None:
    assert backoff_us(attempt, POLICY) == 1000 * pause_ms


def test_the_backoff_stops_doubling() -> None:
    assert backoff_us(1000, POLICY) == 100_000 << DOUBLINGS_MAX


def test_a_failed_delivery_is_due_again_after_its_backoff() -> None:
    assert next_step(2, now=5, policy=POLICY) == RetryAt(5 + 200_000)


def test_the_last_attempt_is_the_last() -> None:
    assert next_step(3, now=5, policy=POLICY) == GiveUp()


def test_a_message_may_have_its_own_limit() -> None:
    assert next_step(1, now=0, policy=POLICY, max_attempts=1) == GiveUp()
    assert next_step(3, now=0, policy=POLICY, max_attempts=4) == RetryAt(400_000)


def test_unlimited_attempts_never_end() -> None:
    assert isinstance(next_step(10_000, now=0, policy=POLICY, max_attempts=ATTEMPTS_UNLIMITED), RetryAt)


def test_a_consumer_has_the_ack_wait_on_top() -> None:
    assert deadline(2, now=7, policy=POLICY) == 7 + 20_000 + 200_000
