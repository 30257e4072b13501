"""What the demo has shown, on one screen: where every order arrived, which promises were kept, one hard life."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.cli.demo.books import LANES, ORDERS, Books
from headrace.cli.demo.screen import COUNTS, TITLES, table
from headrace.cli.output import Column, Output, console, escaped
from headrace.cli.render import duration, number
from headrace.cli.timeline import life as told
from headrace.cli.timeline import life_in_short as in_short

if TYPE_CHECKING:
    from headrace.cli.demo.story import Outcome

GOOD, BAD = "[green]✓[/]", "[bold red]✗[/]"
STATIONS = (
    Column(key="place", title="every order was"),
    Column(key="door", title="over"),
    Column(key="orders", right=True, show=number),
    Column(key="missing", right=True, show=number),
    Column(key="twice", right=True, show=number),
)
NEXT = (
    ("headrace serve --dev", "a broker of your own"),
    ("headrace pipeline run · headrace ledger", "its tables in headrace-lake/, and their proof"),
    ("headrace consume greetings -p grpcq", "in a second terminal"),
    ("headrace publish greetings hello -p fujin", "in a third: in by one door, out by another"),
    ("headrace trace 0 · headrace doctor · headrace --help", "its life, your machine, what else"),
)


def conclude(outcome: "Outcome", books: Books) -> None:
    """Print the summary."""
    output = Output()
    if output.is_terminal:
        console().print(table(books))
    else:
        output.line("\t".join(("topic", "in over", "out over", *(TITLES.get(name, name) for name in COUNTS))))
        for lane in LANES:
            counts = (str(getattr(books.ledgers[lane.topic], name)) for name in COUNTS)
            output.line("\t".join((lane.topic, lane.way_in, lane.way_out, *counts)))
        output.line("\t".join(column.heading for column in STATIONS))
    output.rows(STATIONS, stations(outcome))
    output.document({}, [*verdict(outcome), *tables(outcome), "", *hard_life(outcome), "", *next_steps()])
    sys.stdout.flush()


def stations(outcome: "Outcome") -> Iterator[dict[str, Any]]:
    """Where the orders arrived, as rows."""
    for station in outcome.proof.stations:
        counts = {"missing": len(station.missing), "twice": len(station.twice)}
        yield {"place": station.place, "door": station.door, "orders": station.orders} | counts


def verdict(outcome: "Outcome") -> Iterator[str]:
    """Each promise and whether it was kept, with the counts."""
    proof = outcome.proof
    orders, payments = (proof.balances[lane.topic] for lane in LANES[:2])
    arrived = all(station.complete for station in proof.stations) and not proof.lost
    yield (
        f"{_mark(arrived)} {number(orders.durable)} orders were confirmed to the shop: "
        f"[bold]{number(len(proof.lost))} lost[/], {number(outcome.revenue)} credits of revenue"
    )
    yield (
        f"{_mark(not proof.halves)} {number(payments.durable)} transactions into two topics were confirmed, "
        f"{number(outcome.cut_off)} cut off by the kill ({number(outcome.cut_off_kept)} stored): "
        f"[bold]{number(len(proof.halves))} half done[/]"
    )
    balances = proof.balances.values()
    returned = sum(len(balance.returned) for balance in balances)
    settled = sum(balance.settled for balance in balances)
    yield (
        f"{_mark(not returned)} {number(outcome.settled_at_kill)} acks were confirmed before the kill, "
        f"{number(settled)} in all: [bold]{number(returned)} came again[/]"
    )
    yield _reconciled(outcome)
    yield (
        f"{_mark(outcome.same_subscription)} ready again {duration(outcome.recovery_s)} after the restart; "
        "everybody went on with the subscription they had"
    )


def tables(outcome: "Outcome") -> Iterator[str]:
    """What the lake holds, and whether it all adds up."""
    found = outcome.findings
    if found is None:
        yield "[yellow]–[/] no tables: Spark is not installed (pip install 'headrace[spark]')"
        return
    rows = ", ".join(f"{number(count)} {name}" for name, count in found.rows.items())
    yield f"{_mark(found.rows['messages'] > 0)} tables, [bold]{duration(found.freshness_s)} behind[/]: {rows}"
    reasons = "; ".join(map(escaped, found.quarantined)) or "nothing"
    yield f"{_mark(len(found.quarantined) == 1)} one bad record is in quarantine ({reasons}), the queries went on"
    span, faults = found.ledger.run.size, found.ledger.faults
    accounts = len(found.ledger.accounts.accounts)
    yield (
        f"{_mark(found.ledger.balanced)} ledger: {number(span)} offsets, {accounts} subscriptions, "
        f"{len(found.ledger.tables)} tables against the log: [bold]{number(faults)} do not fit[/]"
    )
    if outcome.pictures:
        yield f"{GOOD} traffic and latency are drawn in {' and '.join(map(str, outcome.pictures))}"


def _reconciled(outcome: "Outcome") -> str:
    """Everything sent, by what became of it."""
    balances = outcome.proof.balances.values()
    sent, settled, recorded, dead, unanswered, kept = (
        sum(getattr(balance, name) for balance in balances)
        for name in ("sent", "settled", "settled_unanswered", "dead", "unanswered", "unanswered_kept")
    )
    unfinished = sum(len(balance.unfinished) for balance in balances)
    closed = outcome.drained and all(balance.reconciles for balance in balances)
    over = f" + {number(unfinished)} left over" if unfinished else ""
    return (
        f"{_mark(closed)} {number(sent)} messages = {number(settled)} acked + {number(recorded)} acked, unanswered + "
        f"{number(dead)} dead + {number(unanswered - kept)} never stored{over}"
    )


def hard_life(outcome: "Outcome") -> Iterator[str]:
    """The order that failed, died and was sent back, across the kill."""
    if outcome.dead_letter is None or not outcome.lives:
        yield f"{BAD} the order that failed did not become a dead letter"
        return
    attempts = outcome.dead_letter["attempts"]
    yield f"{GOOD} one order failed {attempts} times, was a dead letter and redriven (headrace deadletters, trace):"
    first, *later = outcome.lives
    again = [step for life in later if life["message"]["topic"] == ORDERS for step in life["events"]]
    steps = sorted(first["events"] + outcome.turns + again, key=lambda step: step["timestamp_us"])
    for line in told(first["message"], steps):
        if line:
            yield f"  {line}"
    for life in later:
        if life["message"]["topic"] != ORDERS:
            yield f"  [dim]{'and':>23}[/]  {in_short(life['message'], life['events'])}"


def next_steps() -> Iterator[str]:
    """What to try now."""
    yield "[bold cyan]Try next[/]"
    for command, purpose in NEXT:
        yield f"  [bold]{command:52}[/] [dim]{purpose}[/]"


def _mark(good: bool) -> str:
    return GOOD if good else BAD
