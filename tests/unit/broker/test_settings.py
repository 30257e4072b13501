import pytest

from headrace.broker import BrokerSettings, RetryPolicy, TopicSettings


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: RetryPolicy(max_attempts=0), "max_attempts"),
        (lambda: RetryPolicy(backoff_ms=-1), "backoff_ms"),
        (lambda: RetryPolicy(ack_wait_ms=-1), "ack_wait_ms"),
        (lambda: TopicSettings(ttl_s=-1), "ttl_s"),
        (lambda: TopicSettings(delay_ms=-1), "delay_ms"),
        (lambda: BrokerSettings(inflight_max=0), "inflight_max"),
        (lambda: BrokerSettings(qos0_pending_max=0), "qos0_pending_max"),
        (lambda: BrokerSettings(subscription_expiry_s=0), "subscription_expiry_s"),
        (lambda: BrokerSettings(topics={"t": TopicSettings(max_attempts=0)}), "max_attempts"),
    ],
)
def test_an_impossible_value_is_refused_by_name(make: object, key: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=key):
        make()


def test_a_topic_falls_back_field_by_field() -> None:
    default = RetryPolicy(max_attempts=7, backoff_ms=50, ack_wait_ms=9)
    assert TopicSettings(backoff_ms=10).retry(default) == RetryPolicy(max_attempts=7, backoff_ms=10, ack_wait_ms=9)
    assert TopicSettings(max_attempts=1).retry(default) == RetryPolicy(max_attempts=1, backoff_ms=50, ack_wait_ms=9)
