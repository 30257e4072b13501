"""Everything the commands print: tables in a terminal, tab-separated lines in a pipe, JSON when asked.

Results go to standard output, progress and remarks to standard error. rich is loaded only when a terminal wants it.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headrace.cli.failure import Failure
from headrace.cli.render import safe

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]

TEXT_WIDTH_MIN = 12
"""A column of text is not squeezed below this by its neighbours; longer text is folded."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """How one field of a row is shown; JSON always has the field as it is."""

    key: str
    title: str = ""
    right: bool = False
    width: int = 0
    show: Callable[[Any], str] | None = None
    colours: Mapping[str, str] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        """What stands above the column."""
        return self.title or self.key.replace("_", " ")

    def text(self, row: Row) -> str:
        """The cell for people; unprintable characters spelt out."""
        value = row.get(self.key)
        if self.show is not None:
            return safe(self.show(value))
        return "-" if value is None else safe(str(value))


class Meter(Protocol):
    """Counts work done."""

    def __call__(self, done: int, /) -> None:
        """This much is done now, counted from the beginning."""


class Output:
    """One command's printing."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    @property
    def is_terminal(self) -> bool:
        """Whether people are looking at the results directly."""
        return sys.stdout.isatty()

    def rows(self, columns: Sequence[Column], rows: Iterable[Row], *, title: str = "", empty: str = "") -> None:
        """Rows of equal shape; `empty` is said to people when there are none."""
        if self.as_json:
            for row in rows:
                self.json(row)
            return
        found = list(rows)
        if not found:
            if empty:
                self.note(empty)
            return
        if self.is_terminal:
            self._table(columns, found, title)
        else:
            for row in found:
                self._write("\t".join(column.text(row) for column in columns))

    def document(self, value: Row, lines: Iterable[str]) -> None:
        """One result: the whole of it as JSON, or these lines (with rich markup) for people."""
        if self.as_json:
            self.json(value)
            return
        if self.is_terminal:
            terminal = console()
            for line in lines:
                terminal.print(line, highlight=False)
            return
        from rich.text import Text

        for line in lines:
            self._write(Text.from_markup(line).plain)

    def stream(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        """Rows of equal shape printed as they come, however many there are."""
        if self.as_json:
            self.rows(columns, rows)
            return
        if self.is_terminal:
            self.line("  ".join(f"{column.heading:{column.width}}" for column in columns))
        for row in rows:
            texts = [column.text(row) for column in columns]
            if self.is_terminal:
                padded = zip(texts, columns, strict=True)
                self.line("  ".join(f"{text:{'>' if c.right else '<'}{c.width}}" for text, c in padded).rstrip())
            else:
                self.line("\t".join(texts))

    def json(self, value: Row) -> None:
        """A document on a line of its own."""
        self._write(json.dumps(value, ensure_ascii=False))

    def line(self, text: str) -> None:
        """A line of the result, as it is."""
        self._write(text)

    def raw(self, data: bytes) -> None:
        """Bytes of the result, as they are, on a line of their own."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()

    def note(self, text: str) -> None:
        """A remark to the person at the terminal; never part of the result."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def _table(self, columns: Sequence[Column], rows: Sequence[Row], title: str) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=title or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            header_style="bold cyan",
        )
        for column in columns:
            longest = max((len(column.text(row)) for row in rows), default=0)
            words = max(map(len, column.heading.split()), default=0)
            table.add_column(
                column.heading,
                justify="right" if column.right else "left",
                min_width=max(words, longest if column.right else min(longest, TEXT_WIDTH_MIN)),
                overflow="fold",
            )
        for row in rows:
            cells = []
            for column in columns:
                text = column.text(row)
                cells.append(Text(text, style=column.colours.get(text, "")))
            table.add_row(*cells)
        console().print(table)

    def _write(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def console(*, stderr: bool = False) -> "Console":
    """A rich console on one of the standard streams as they are now."""
    from rich.console import Console

    return Console(stderr=stderr)


def escaped(text: str) -> str:
    """Text that may stand inside rich markup: its own brackets mean nothing, control characters are spelt out."""
    from rich.markup import escape

    return escape(safe(text))


@contextmanager
def progress(what: str, total: int | None, *, unit: str = "", shown: bool = True) -> Iterator[Meter]:
    """A progress bar on standard error while the work lasts; silent where nobody watches or when not `shown`.

    Yields a function to be called with the amount done so far.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda done, /: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(),
        console=console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=total)

        def _update(done: int, /) -> None:
            bar.update(task, completed=done)

        yield _update


def report(failure: Failure) -> None:
    """What went wrong and what to do about it, on standard error."""
    if sys.stderr.isatty():
        terminal = console(stderr=True)
        terminal.print(f"[bold red]headrace:[/] {escaped(failure.problem)}", highlight=False, soft_wrap=True)
        if failure.advice:
            terminal.print(f"[dim]{escaped(failure.advice)}[/]", highlight=False, soft_wrap=True)
        return
    sys.stderr.write(f"headrace: {failure.problem}\n")
    if failure.advice:
        sys.stderr.write(f"{failure.advice}\n")
