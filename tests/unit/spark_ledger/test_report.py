"""A ledger as people and programs read it."""

import json
from dataclasses import replace
from typing import Any

from headrace.spark.ledger.accounts import Accounts
from headrace.spark.ledger.ledger import Ledger
from headrace.spark.ledger.offsets import Run
from headrace.spark.ledger.report import document, misfit_line, remarks, shown
from headrace.spark.ledger.rules import Account, Fault, Life
from headrace.spark.ledger.tables import TableCheck


def account(number: int, published: int, acked: int) -> Account:
    life = Life(subscription=number, name=str(number), topic="orders")
    return Account(life=life, published=published, waiting=0, underway=0, acked=acked)


def table(name: str = "messages", faults: dict[Fault, int] | None = None, **given: Any) -> TableCheck:
    whole = TableCheck(table=name, expected=5, found=5, behind=0, saved=0, kept=0, faults=faults or {})
    return replace(whole, **given)


def ledger(*accounts: Account, tables: list[TableCheck], lost: list[Run] | None = None) -> Ledger:
    return Ledger(run=Run(0, 100), lost=lost or [], accounts=Accounts(accounts=accounts), tables=tables)


def test_everything_in_order_is_balanced() -> None:
    found = ledger(account(1, 5, 5), tables=[table()])
    assert found.balanced
    assert found.faults == 0
    assert json.loads(json.dumps(document(found)))["subscriptions"][0]["acked"] == 5


def test_a_loss_an_account_or_a_table_is_enough() -> None:
    assert not ledger(tables=[], lost=[Run(4, 9)]).balanced
    assert not ledger(account(1, 5, 4), tables=[]).balanced
    assert not ledger(tables=[table(faults={Fault.TWICE: 2})]).balanced
    assert ledger(tables=[table(faults={Fault.TWICE: 2})], lost=[Run(4, 9)]).faults == 7


def test_lost_offsets_are_listed_as_runs() -> None:
    (misfit,) = ledger(tables=[], lost=[Run(4, 9)]).misfits()
    assert misfit_line(misfit) == "offsets 4 to 8: lost from the log (log)"


def test_a_misfit_says_where_it_was_found() -> None:
    row = {"fault": "passed over without an event", "offset": 7, "count": 1}
    of = {"where": "subscription", "subscription": 3, "name": "grpcq", "topic": "orders"}
    assert misfit_line(row | of) == "offset 7: passed over without an event (subscription grpcq of orders)"
    nameless = {"where": "subscription", "subscription": 3, "name": None, "topic": None}
    assert misfit_line(row | nameless) == "offset 7: passed over without an event (subscription 3)"
    assert misfit_line(row | {"where": "messages"}) == "offset 7: passed over without an event (table messages)"


def test_what_does_not_balance_is_shown_first() -> None:
    accounts = [account(number, number, number) for number in range(1, 9)]
    first, more = shown([*accounts, account(9, 1, 0)], limit=3)
    assert [each.life.subscription for each in first] == [9, 8, 7]
    assert more == 6


def test_lag_and_age_are_no_faults() -> None:
    found = ledger(tables=[table(behind=1200, kept=3), table("events", saved=2)])
    assert found.balanced
    assert list(remarks(found)) == [
        "1,200 rows are not yet in messages",
        "3 rows of messages are older than the log",
        "2 rows of events are of offsets the log lost; `headrace replay` can send them",
    ]
