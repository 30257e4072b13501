"""What the demo shows while it runs: a live table in a terminal, a line now and then elsewhere."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, Self

from headrace.cli.demo.ledger import Ledger
from headrace.cli.output import Output, console
from headrace.cli.render import number

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_EVERY_S = 1.0
COUNTS = ("published", "durable", "delivered", "again", "acked", "in_flight", "dead")
TITLES = {"again": "delivered again", "in_flight": "in flight"}


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


def totals(books: Mapping[str, Ledger]) -> dict[str, int]:
    """Each count over all topics."""
    return {name: sum(getattr(ledger, name) for ledger in books.values()) for name in COUNTS}


class PlainScreen:
    """Lines of text: every thing that happens, and the totals each second."""

    def __init__(self, books: Mapping[str, Ledger]) -> None:
        self._books = books
        self._output = Output()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        return

    def say(self, text: str) -> None:
        """Print it."""
        self._output.line(text)

    def refresh(self) -> None:
        """Print the totals, not too often."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_EVERY_S
            counts = totals(self._books).items()
            self._output.line("  " + "  ".join(f"{TITLES.get(name, name)} {number(count)}" for name, count in counts))


class LiveScreen:
    """A table that counts, below the things that happened."""

    def __init__(self, books: Mapping[str, Ledger]) -> None:
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


def table(books: Mapping[str, Ledger]) -> "RenderableType":
    """The counts of each topic and of all."""
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", show_footer=True)
    drawn.add_column("topic", footer="all")
    sums = totals(books)
    for name in COUNTS:
        drawn.add_column(TITLES.get(name, name), justify="right", footer=number(sums[name]))
    for topic, ledger in books.items():
        drawn.add_row(topic, *(number(getattr(ledger, name)) for name in COUNTS))
    return drawn


def screen_for(books: Mapping[str, Ledger]) -> Screen:
    """The screen that suits standard output."""
    return LiveScreen(books) if Output().is_terminal else PlainScreen(books)
