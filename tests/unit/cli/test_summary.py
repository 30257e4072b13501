"""What the demo says in the end: good news only when the books are good."""

from typing import Any

import pytest
from rich.text import Text

from headrace.cli.demo.ledger import Ledger
from headrace.cli.demo.screen import PlainScreen, totals
from headrace.cli.demo.story import Outcome
from headrace.cli.demo.summary import dead_letter, verdict

LETTER = {"attempts": 3, "origin_offset": 4}


def settled(count: int) -> Ledger:
    ledger = Ledger()
    numbers = ledger.send(count)
    ledger.mark_durable(numbers)
    ledger.mark_delivered(numbers)
    ledger.mark_acked(numbers)
    ledger.mark_settled(numbers)
    return ledger


def outcome(ledger: Ledger, **given: Any) -> Outcome:
    facts: dict[str, Any] = {
        "start_s": 0.4, "recovery_s": 0.5, "settled_at_kill": 5, "turns": [], "same_subscriptions": True,
        "drained": True, "dead_letter": LETTER, "trace": None,
    }  # fmt: skip
    return Outcome(balances={"orders": ledger.balance()}, **(facts | given))


def lines(of: Outcome) -> list[str]:
    return [Text.from_markup(line).plain for line in verdict(of)]


def test_kept_promises_are_ticked_and_counted() -> None:
    told = outcome(settled(1200))
    assert told.kept
    assert lines(told) == [
        "✓ 1,200 publishes were answered: 0 lost",
        "✓ 5 acks were answered before the kill, 1,200 in all: 0 came again",
        "✓ 0 publishes had no answer: 0 are stored, either is right",
        "✓ 1,200 sent = 1,200 acked + 0 acked without an answer + 0 dead + 0 never stored",
        "✓ ready again 500 ms after the restart; each consumer went on with the subscription it had",
    ]


def test_a_lost_message_is_not_hidden() -> None:
    ledger = settled(10)
    ledger.mark_durable(ledger.send(1))
    told = outcome(ledger)
    assert not told.kept
    assert lines(told)[0] == "✗ 11 publishes were answered: 1 lost"
    assert lines(told)[3].startswith("✗ 11 sent = 10 acked")


def test_an_acked_message_that_came_again_is_not_hidden() -> None:
    ledger = settled(10)
    ledger.mark_delivered([3])
    told = outcome(ledger)
    assert not told.kept
    assert lines(told)[1].endswith("1 came again")
    assert lines(told)[1].startswith("✗")


@pytest.mark.parametrize("broken", [{"drained": False}, {"same_subscriptions": False}, {"dead_letter": None}])
def test_a_story_that_did_not_come_to_its_end_fails(broken: dict[str, Any]) -> None:
    assert not outcome(settled(10), **broken).kept


def test_a_missing_dead_letter_is_said() -> None:
    (line,) = dead_letter(outcome(settled(1), dead_letter=None))
    assert "did not become a dead letter" in line


def test_without_a_terminal_the_totals_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    books = {"orders": settled(3), "mail": settled(4)}
    with PlainScreen(books) as screen:
        screen.say("it begins")
        screen.refresh()
        screen.refresh()
    assert totals(books)["acked"] == 7
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "it begins",
        "  published 7  durable 7  delivered 7  delivered again 0  acked 7  in flight 0  dead 0",
    ]
