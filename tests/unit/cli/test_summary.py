"""What the demo says in the end: good news only when the books are good."""

from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from headrace.cli.demo.analysts import Findings
from headrace.cli.demo.books import Books
from headrace.cli.demo.screen import PlainScreen, totals
from headrace.cli.demo.story import Outcome
from headrace.cli.demo.summary import hard_life, stations, tables, verdict
from headrace.spark.ledger.accounts import Accounts
from headrace.spark.ledger.ledger import Ledger
from headrace.spark.ledger.offsets import Run
from tests.unit.cli.test_books import kept_books

LETTER = {"attempts": 3, "origin_offset": 4, "offset": 9}


def outcome(books: Books, **given: Any) -> Outcome:
    facts: dict[str, Any] = {
        "start_s": 0.4, "recovery_s": 0.5, "settled_at_kill": 5, "cut_off": 0, "cut_off_kept": 0, "revenue": 70,
        "turns": [], "same_subscription": True, "drained": True, "dead_letter": LETTER, "lives": [],
        "findings": None, "pictures": [],
    }  # fmt: skip
    return Outcome(proof=books.proof(), **(facts | given))


def lines(of: Outcome) -> list[str]:
    return [Text.from_markup(line).plain for line in verdict(of)]


def test_kept_promises_are_ticked_and_counted() -> None:
    told = outcome(kept_books(1200))
    assert told.kept
    assert lines(told) == [
        "✓ 1,200 orders were confirmed to the shop: 0 lost, 70 credits of revenue",
        "✓ 1,200 transactions into two topics were confirmed, 0 cut off by the kill (0 stored): 0 half done",
        "✓ 5 acks were confirmed before the kill, 2,400 in all: 0 came again",
        "✓ 3,600 messages = 2,400 acked + 1,200 acked, unanswered + 0 dead + 0 never stored",
        "✓ ready again 500 ms after the restart; everybody went on with the subscription they had",
    ]
    assert list(stations(told))[-1] == {
        "place": "label printed", "door": "sspq", "orders": 1200, "missing": 0, "twice": 0,
    }  # fmt: skip


def test_a_lost_order_is_not_hidden() -> None:
    books = kept_books(10)
    books.orders.mark_durable(books.orders.send(1))
    told = outcome(books)
    assert not told.kept
    assert lines(told)[0].startswith("✗ 11 orders were confirmed to the shop: 1 lost")
    assert lines(told)[3].startswith("✗ 31 messages = 20 acked")
    assert [row["missing"] for row in stations(told)] == [1, 1, 1, 1]


def test_half_a_transaction_is_not_hidden() -> None:
    books = kept_books(10)
    books.begin(3)
    books.payments.mark_delivered([10])
    told = outcome(books)
    assert not told.kept
    assert lines(told)[1].startswith("✗")
    assert lines(told)[1].endswith("1 half done")


def test_an_acked_message_that_came_again_is_not_hidden() -> None:
    books = kept_books(10)
    books.payments.mark_delivered([3])
    told = outcome(books)
    assert not told.kept
    assert lines(told)[2].endswith("1 came again")
    assert lines(told)[2].startswith("✗")


@pytest.mark.parametrize("broken", [{"drained": False}, {"same_subscription": False}, {"dead_letter": None}])
def test_a_story_that_did_not_come_to_its_end_fails(broken: dict[str, Any]) -> None:
    assert not outcome(kept_books(10), **broken).kept


def test_a_missing_dead_letter_is_said() -> None:
    (line,) = hard_life(outcome(kept_books(1), dead_letter=None))
    assert "did not become a dead letter" in line


def test_a_hard_life_leads_through_several_doors() -> None:
    def life(topic: str, offset: int, protocol: str, door: str) -> dict[str, Any]:
        message = {
            "offset": offset,
            "topic": topic,
            "timestamp_us": 1,
            "protocol": protocol,
            "qos": 1,
            "value": "",
            "text": "x",
        }
        step = {"event": "acked", "timestamp_us": 2 + offset, "subscription": 1, "name": door, "attempt": 1}
        return {"message": message, "events": [step]}

    lives = [
        life("orders", 4, "fujin", "grpcq"),
        life("orders", 9, "fujin", "grpcq"),
        life("labels", 10, "fujin", "sspq"),
    ]
    told = outcome(kept_books(1), lives=lives, turns=[{"event": "kill -9", "timestamp_us": 7}])
    text = [Text.from_markup(line).plain for line in hard_life(told)]
    assert [line.split("─")[1].split()[1] for line in text if "─" in line] == ["published", "acked", "kill", "acked"]
    assert text[-1].strip() == "and  labels 10: published over fujin · acked over sspq"


@pytest.mark.parametrize("every_s", [0.0, 3600.0])
def test_without_a_terminal_progress_is_a_line_now_and_then_if_there_is_some(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    monkeypatch.setattr("headrace.cli.demo.screen.LINE_EVERY_S", every_s)
    books = kept_books(7)
    with PlainScreen(books) as screen:
        screen.say("it begins")
        screen.refresh()
        screen.refresh()
    assert totals(books)["acked"] == 21
    assert capsys.readouterr().out.splitlines() == [
        "it begins",
        "  orders 7 in over grpcq, 7 done over grpcq; payments 7 in over fujin, 7 done over blipmq; "
        "labels 7 in over fujin, 7 done over sspq",
    ]


def findings(lost: list[Run], quarantined: list[str]) -> Findings:
    accounts = Accounts(accounts=(), faults={}, misfits=())
    ledger = Ledger(run=Run(0, 1000), lost=lost, accounts=accounts, tables=())
    rows = {"messages": 990, "events": 2000, "quarantine": len(quarantined)}
    return Findings(rows=rows, freshness_s=0.7, quarantined=quarantined, ledger=ledger)


def test_tables_that_agree_with_the_log_are_ticked() -> None:
    told = outcome(kept_books(10), findings=findings([], ["no [envelope]"]), pictures=[Path("a.png"), Path("a.html")])
    assert told.kept
    assert [Text.from_markup(line).plain for line in tables(told)] == [
        "✓ tables, 700 ms behind: 990 messages, 2,000 events, 1 quarantine",
        "✓ one bad record is in quarantine (no [envelope]), the queries went on",
        "✓ ledger: 1,000 offsets, 0 subscriptions, 0 tables against the log: 0 do not fit",
        "✓ traffic and latency are drawn in a.png and a.html",
    ]


def test_a_ledger_that_does_not_balance_fails_the_demo() -> None:
    told = outcome(kept_books(10), findings=findings([Run(3, 5)], ["bad"]))
    assert not told.kept
    assert [Text.from_markup(line).plain for line in tables(told)][2].endswith("2 do not fit")


def test_nothing_in_quarantine_fails_the_demo() -> None:
    told = outcome(kept_books(10), findings=findings([], []))
    assert not told.kept
    assert [Text.from_markup(line).plain for line in tables(told)][1].startswith("✗")
