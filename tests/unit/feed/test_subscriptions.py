"""What subscriptions are called: learned from events, asked of the broker, and not too often."""

import pytest

from headrace.feed import subscriptions
from headrace.feed.subscriptions import Known, Subscriptions


class Broker:
    """Lists subscriptions, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.listed: list[dict[str, object]] = [{"id": 1, "name": "billing", "topic": "orders", "owner": "a"}]

    def __call__(self) -> object:
        self.asked += 1
        return self.listed


def test_events_tell_and_the_broker_is_asked_about_the_rest() -> None:
    broker = Broker()
    known = Subscriptions(broker)
    known.learn(5, b'{"topic":"stock","name":"","qos":1,"owner":"b","cursor":0}')
    assert known.known([5, 0]) == {5: Known("5", "stock")}
    assert broker.asked == 0
    assert known.known([1, 5, 9]) == {1: Known("billing", "orders"), 5: Known("5", "stock")}
    assert broker.asked == 1


def test_the_broker_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    known = Subscriptions(broker)
    for _ in range(5):
        assert known.known([9]) == {}
    assert broker.asked == 1
    monkeypatch.setattr(subscriptions, "ASK_AGAIN_S", 0.0)
    broker.listed.append({"id": 9, "name": "late", "topic": "stock", "owner": "a"})
    assert known.known([9]) == {9: Known("late", "stock")}


@pytest.mark.parametrize("detail", [b"", b"\xff", b"[]", b'{"name":"x"}'])
def test_a_definition_that_is_none_is_passed_over(detail: bytes) -> None:
    known = Subscriptions(list)
    known.learn(3, detail)
    assert known.known([3]) == {}


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "IDS_MAX", 3)
    known = Subscriptions(list)
    for identity in range(1, 6):
        known.learn(identity, b'{"topic":"stock"}')
    assert sorted(known.known([1, 2, 3, 4, 5])) == [3, 4, 5]
