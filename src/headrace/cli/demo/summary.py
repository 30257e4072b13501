"""What the demo has shown, on one screen: the counts, whether they reconcile, one dead letter, what to try next."""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.cli.demo.ledger import Ledger
from headrace.cli.demo.screen import COUNTS, TITLES, table
from headrace.cli.output import Output, console
from headrace.cli.render import duration, number
from headrace.cli.timeline import life

if TYPE_CHECKING:
    from headrace.cli.demo.story import Outcome

GOOD, BAD = "[green]✓[/]", "[bold red]✗[/]"
NEXT = (
    ("headrace serve --dev", "a broker of your own"),
    ("headrace consume greetings", "in a second terminal"),
    ("headrace publish greetings hello", "in a third"),
    ("headrace bench · headrace doctor · headrace --help", "how fast, how fit, what else"),
)


def conclude(outcome: "Outcome", books: Mapping[str, Ledger]) -> None:
    """Print the summary."""
    output = Output()
    if output.is_terminal:
        console().print(table(books))
    else:
        output.line("\t".join(("topic", *(TITLES.get(name, name) for name in COUNTS))))
        for topic, ledger in books.items():
            output.line("\t".join((topic, *(str(getattr(ledger, name)) for name in COUNTS))))
    output.document({}, [*verdict(outcome), "", *dead_letter(outcome), "", *next_steps()])
    sys.stdout.flush()


def verdict(outcome: "Outcome") -> Iterator[str]:
    """Each promise and whether it was kept, with the counts."""
    balances = outcome.balances.values()
    lost = sum(len(balance.lost) for balance in balances)
    returned = sum(len(balance.returned) for balance in balances)
    unfinished = sum(len(balance.unfinished) for balance in balances)
    sent, durable, settled, recorded, dead, unanswered, kept = (
        sum(getattr(balance, name) for balance in balances)
        for name in ("sent", "durable", "settled", "settled_unanswered", "dead", "unanswered", "unanswered_kept")
    )
    yield f"{_mark(not lost)} {number(durable)} publishes were answered: [bold]{number(lost)} lost[/]"
    yield (
        f"{_mark(not returned)} {number(outcome.settled_at_kill)} acks were answered before the kill, "
        f"{number(settled)} in all: [bold]{number(returned)} came again[/]"
    )
    yield f"{GOOD} {number(unanswered)} publishes had no answer: {number(kept)} are stored, either is right"
    closed = outcome.drained and all(balance.reconciles for balance in balances)
    over = f" + {number(unfinished)} left over" if unfinished else ""
    yield (
        f"{_mark(closed)} {number(sent)} sent = {number(settled)} acked + {number(recorded)} acked without an answer "
        f"+ {number(dead)} dead + {number(unanswered - kept)} never stored{over}"
    )
    yield (
        f"{_mark(outcome.same_subscriptions)} ready again {duration(outcome.recovery_s)} after the restart; "
        "each consumer went on with the subscription it had"
    )


def dead_letter(outcome: "Outcome") -> Iterator[str]:
    """The message nobody acknowledged, and its life across the kill."""
    if outcome.dead_letter is None or outcome.trace is None:
        yield f"{BAD} the message nobody acknowledged did not become a dead letter"
        return
    letter = outcome.dead_letter
    yield (
        f"{GOOD} one message nobody could process is a dead letter after {letter['attempts']} attempts "
        f"(headrace deadletters, headrace trace):"
    )
    steps = sorted(outcome.trace["events"] + outcome.turns, key=lambda step: step["timestamp_us"])
    for line in life(outcome.trace["message"], steps):
        yield f"  {line}" if line else ""


def next_steps() -> Iterator[str]:
    """What to try now."""
    yield "[bold cyan]Try next[/]"
    for command, purpose in NEXT:
        yield f"  [bold]{command:52}[/] [dim]{purpose}[/]"


def _mark(good: bool) -> str:
    return GOOD if good else BAD
