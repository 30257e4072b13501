"""Sorted keys in blocks behave as a sorted list would."""

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker import ordered
from headrace.broker.ordered import Ordered
from tests.unit.broker.desk import Desk

KEYS = st.text("abc", max_size=4)


@given(st.lists(st.tuples(KEYS, KEYS, st.integers(0, 12))))
def test_it_is_a_sorted_set_whatever_is_added_and_removed(steps: list[tuple[str, str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "BLOCK_MAX", 3)
        keys: Ordered[str] = Ordered()
        model: list[str] = []
        for key, start, limit in steps:
            if key in model:
                keys.remove(key)
                model.remove(key)
            else:
                keys.add(key)
                bisect.insort(model, key)
            at = bisect.bisect_left(model, start)
            assert keys.page(start, limit) == model[at : at + limit]
            assert list(keys) == model
            assert len(keys) == len(model)


def test_the_broker_keeps_topics_and_subscriptions_in_order_through_a_restart() -> None:
    desk = Desk()
    for topic in ("b", "c", "a"):
        desk.publish(topic, b"x")
        desk.subscribe(topic)
    gone = desk.subscribe("b")
    desk.broker.unsubscribe(gone, "gone", desk.now)
    desk.sync()
    desk.restart()
    assert desk.broker.topic_names("", 10) == ["a", "b", "c"]
    assert desk.broker.topic_names("b", 1) == ["b"]
    assert desk.broker.placed("", 0, 10) == [("a", 3), ("b", 1), ("c", 2)]
    assert desk.broker.placed("b", 2, 10) == [("c", 2)]
    assert (desk.broker.topic_count, desk.broker.subscription_count) == (3, 3)
