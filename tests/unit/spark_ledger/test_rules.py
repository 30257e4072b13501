"""What is a subscription's concern, and when its account balances."""

from dataclasses import replace

import pytest

from headrace.broker.dispatch import AT_MOST_ONCE
from headrace.model.events import Event
from headrace.spark.ledger.rules import NEVER, ONCE, OUTCOMES, SUBSCRIBED, UNSUBSCRIBED, Account, Life

OWN = Life(subscription=3, name="3", topic="orders", subscribed=100, lowest=104, highest=180)
ACCOUNT = Account(life=OWN, published=10, waiting=2, underway=1, acked=3, delivered=1, dead=1, expired=1, dropped=1)


def test_the_words_are_those_of_the_log() -> None:
    names = {event.name.lower() for event in Event}
    assert {*OUTCOMES, SUBSCRIBED, UNSUBSCRIBED} <= names
    assert ONCE == AT_MOST_ONCE


def test_a_consumers_own_begins_where_it_was_made() -> None:
    assert OWN.begin == 100
    assert replace(OWN, lowest=None, highest=None).begin == 100


def test_a_message_on_its_way_just_then_is_its_concern_if_it_touched_it() -> None:
    assert replace(OWN, lowest=98).begin == 98


def test_a_shared_one_begins_with_the_oldest_message() -> None:
    assert replace(OWN, name="grpcq").begin == 0


def test_one_made_before_the_logs_oldest_record_has_everything() -> None:
    assert replace(OWN, subscribed=None).begin == 0


def test_it_ends_when_it_is_removed() -> None:
    assert OWN.end == NEVER
    assert replace(OWN, unsubscribed=150).end == 150


def test_everything_up_to_the_highest_it_touched_is_passed() -> None:
    assert OWN.frontier == 181
    assert replace(OWN, lowest=None, highest=None).frontier == 0


def test_what_is_published_is_settled_or_pending() -> None:
    assert ACCOUNT.balanced
    assert (ACCOUNT.pending, ACCOUNT.left) == (3, 0)


@pytest.mark.parametrize("name", ["published", "waiting", "underway", *OUTCOMES])
def test_one_too_many_anywhere_does_not_balance(name: str) -> None:
    for step in (1, -1):
        assert not replace(ACCOUNT, **{name: getattr(ACCOUNT, name) + step}).balanced


def test_what_was_not_settled_went_with_a_removed_subscription() -> None:
    removed = replace(ACCOUNT, life=replace(OWN, unsubscribed=200))
    assert removed.balanced
    assert (removed.pending, removed.left) == (0, 3)
