"""A ledger as JSON and as lines for a screen. Knows no Spark: it prints what was counted."""

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.spark.ledger.ledger import Ledger
from headrace.spark.ledger.rules import OUTCOMES, Account
from headrace.spark.ledger.tables import TableCheck

ACCOUNTS_SHOWN = 12
MISFITS_SHOWN = 10


def account_row(account: Account) -> dict[str, Any]:
    """One subscription's account."""
    return {
        "subscription": account.life.subscription,
        "name": account.life.name,
        "topic": account.life.topic,
        "removed": account.removed,
        "published": account.published,
        **{name: getattr(account, name) for name in OUTCOMES},
        "pending": account.pending,
        "left": account.left,
        "balanced": account.balanced,
    }


def table_row(check: TableCheck) -> dict[str, Any]:
    """What came out for one table."""
    return {
        "table": check.table,
        "log": check.expected,
        "rows": check.found,
        "behind": check.behind,
        "saved": check.saved,
        "kept": check.kept,
        "faults": {fault.value: count for fault, count in sorted(check.faults.items())},
        "balanced": check.balanced,
    }


def document(ledger: Ledger) -> dict[str, Any]:
    """The summary; the offsets that do not fit come beside it, one by one."""
    return {
        "from": ledger.run.start,
        "to": ledger.run.end,
        "balanced": ledger.balanced,
        "faults": ledger.faults,
        "lost": [{"first": run.start, "count": run.size} for run in ledger.lost],
        "subscriptions": [account_row(account) for account in ledger.accounts.accounts],
        "tables": [table_row(check) for check in ledger.tables],
    }


def shown(accounts: Sequence[Account], limit: int = ACCOUNTS_SHOWN) -> tuple[list[Account], int]:
    """The accounts worth a line: those that do not balance first, then the biggest; and how many are left out."""
    ordered = sorted(accounts, key=lambda each: (each.balanced, -each.published, each.life.subscription))
    return ordered[:limit], max(0, len(ordered) - limit)


def misfit_line(misfit: dict[str, Any]) -> str:
    """One offset that does not fit."""
    first, count = misfit["offset"], misfit["count"]
    which = f"offset {first}" if count == 1 else f"offsets {first} to {first + count - 1}"
    place = misfit["where"]
    if place == "subscription":
        place = f"subscription {misfit['name'] or misfit['subscription']}" + (
            f" of {misfit['topic']}" if misfit["topic"] else ""
        )
    elif place != "log":
        place = f"table {place}"
    return f"{which}: {misfit['fault']} ({place})"


def remarks(ledger: Ledger) -> Iterator[str]:
    """What is no fault, and still worth saying."""
    for check in ledger.tables:
        if check.behind:
            yield f"{check.behind:,} rows are not yet in {check.table}"
        if check.kept:
            yield f"{check.kept:,} rows of {check.table} are older than the log"
        if check.saved:
            yield f"{check.saved:,} rows of {check.table} are of offsets the log lost; `headrace replay` can send them"
