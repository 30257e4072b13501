"""Choosing dead letters by an SQL condition."""

from typing import Any

import pytest

from headrace.cli.where import COLUMNS, BadCondition, matching


def letter(offset: int, **given: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"offset": offset, "reason": "timeout", "attempts": 3} | given


LETTERS = [
    letter(1, origin_topic="orders", value="refund 12"),
    letter(4, origin_topic="orders", attempts=5, value="charge 7"),
    letter(9, origin_topic="mail", reason="expired", value="hello"),
]


@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        ("1", [1, 4, 9]),
        ("origin_topic = 'orders'", [1, 4]),
        ("attempts > 3 OR reason = 'expired'", [4, 9]),
        ("value LIKE '%refund%'", [1]),
        ("offset BETWEEN 2 AND 8", [4]),
        ("subscription IS NOT NULL", []),
        ("attempts = 3 -- a comment does not hide the end", [1, 9]),
    ],
)
def test_conditions_choose_letters_in_their_order(condition: str, offsets: list[int]) -> None:
    assert [found["offset"] for found in matching(condition, LETTERS)] == offsets


def test_a_chosen_letter_is_the_one_that_was_given() -> None:
    assert matching("offset = 4", LETTERS) == [LETTERS[1]]


@pytest.mark.parametrize("condition", ["reson = 'x'", "attempts >", "(", "1; DROP TABLE dead_letters"])
def test_what_sqlite_refuses_is_explained_with_the_columns(condition: str) -> None:
    with pytest.raises(BadCondition) as refused:
        matching(condition, LETTERS)
    assert condition in refused.value.problem
    assert "origin_topic" in refused.value.advice
