"""What the demo shows while it runs: a live table in a terminal, a line now and then elsewhere."""

import time
from typing import TYPE_CHECKING, Protocol, Self

from headrace.cli.demo.books import LANES, Books
from headrace.cli.output import Output, console
from headrace.cli.render import number

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_EVERY_S = 1.0
COUNTS = ("published", "durable", "delivered", "again", "acked", "in_flight", "dead")
TITLES = {"in_flight": "in flight"}


class Screen(Protocol):
    """Where the story is told."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *how: object) -> None:
        """End; what is shown may vanish."""

    def say(self, text: str) -> None:
        """A thing happened."""

    def refresh(self) -> None:
        """The books may have changed."""


def totals(books: Books) -> dict[str, int]:
    """Each count over all topics."""
    return {name: sum(getattr(ledger, name) for ledger in books.ledgers.values()) for name in COUNTS}


class PlainScreen:
    """Lines of text: every thing that happens, and each second how far every topic is, unless it has not moved."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._output = Output()
        self._next = 0.0
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        return

    def say(self, text: str) -> None:
        """Print it."""
        self._output.line(text)

    def refresh(self) -> None:
        """Print how far they are, not too often."""
        now = time.monotonic()
        if now >= self._next and (line := self._line()) != self._shown:
            self._next = now + LINE_EVERY_S
            self._shown = line
            self._output.line(line)

    def _line(self) -> str:
        parts = (
            f"{lane.topic} {number(ledger.durable)} in over {lane.way_in}, "
            f"{number(ledger.acked)} done over {lane.way_out}"
            for lane, ledger in zip(LANES, self._books.ledgers.values(), strict=True)
        )
        return "  " + "; ".join(parts)


class LiveScreen:
    """A table that counts, below the things that happened."""

    def __init__(self, books: Books) -> None:
        from rich.live import Live

        self._books = books
        self._said: list[str] = []
        self._live = Live(get_renderable=self._picture, console=console(), transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *how: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Add it above the table."""
        self._said.append(text)
        self._live.refresh()

    def refresh(self) -> None:
        """Draw the counts anew."""
        self._live.refresh()

    def _picture(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        lines = [Text(f"  {text}", style="dim" if text is not self._said[-1] else "bold") for text in self._said]
        return Group(Text("headrace demo", style="bold cyan"), *lines, table(self._books))


def table(books: Books) -> "RenderableType":
    """The counts of each topic and of all."""
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", show_footer=True, pad_edge=False, padding=(0, 1, 0, 0))
    drawn.add_column("topic", footer="all")
    drawn.add_column("in over")
    drawn.add_column("out over")
    sums = totals(books)
    for name in COUNTS:
        drawn.add_column(TITLES.get(name, name), justify="right", footer=number(sums[name]))
    for lane, ledger in zip(LANES, books.ledgers.values(), strict=True):
        counts = (number(getattr(ledger, name)) for name in COUNTS)
        drawn.add_row(lane.topic, lane.way_in, lane.way_out, *counts)
    return drawn


def screen_for(books: Books) -> Screen:
    """The screen that suits standard output."""
    return LiveScreen(books) if Output().is_terminal else PlainScreen(books)
