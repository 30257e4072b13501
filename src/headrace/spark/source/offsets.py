"""Arithmetic on offsets: where to begin, what is gone, how much a micro-batch takes. Ends are exclusive.

Knows neither Spark nor the feed's connection; time is an argument.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.feed.client import Span
from headrace.spark.source.values import Position

QUIET_MAX = 65_536
QUIET_S = 60.0
"""A stretch this long with nothing for the query in it is passed over by an empty micro-batch now and then, so that the
checkpoint does not stay behind on a part of the log that retention removes."""


class DataLossError(RuntimeError):
    """Rows that the query has not read are gone, and it was not told to go on without them."""


def encode(offset: int, resumed: int | None = None) -> dict[str, int]:
    """The end of a batch as Spark keeps it in checkpoints.

    `resumed` is where the batch begins when that is not where the one before it ended, because something is gone.
    """
    return {"offset": offset} if resumed is None else {"offset": offset, "resumed": resumed}


def decode(kept: Mapping[str, Any]) -> int:
    """The offset of a checkpoint. Raises ValueError for the checkpoint of something else."""
    offset = kept.get("offset")
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise ValueError(f"the checkpoint says {dict(kept)!r}: no offset of this source; was it another query's?")
    return offset


def batch_range(start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[int, int]:
    """The offsets of the batch between two entries of a checkpoint.

    The very first batch has no start there. Asked for it again, a query that began at the newest offset may say one
    behind the end; its first batch is empty for that reason.
    """
    last = decode(end)
    first = end.get("resumed", decode(start))
    return min(first, last), last


def resolve(position: Position, span: Span, offset_at: Callable[[int], int]) -> int:
    """The offset a position means in a log with this span; `offset_at` finds the first one at or after a time (µs)."""
    if position.kind == "earliest":
        return span.earliest
    if position.kind == "latest":
        return span.latest
    if position.kind == "timestamp":
        return offset_at(position.value)
    return position.value


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a query cannot go on where it stopped, and where it goes on if it may."""

    detail: str
    resume: int


def loss(start: int, span: Span) -> Loss | None:
    """What is gone for a query that has read everything before `start`; None when nothing is."""
    if start < span.earliest:
        return Loss(
            f"offsets {start} to {span.earliest - 1} are gone: the oldest the log still has is {span.earliest}",
            span.earliest,
        )
    if start > span.latest:
        return Loss(
            f"the query has read up to offset {start}, but the log ends at {span.latest}: "
            "it was made anew or restored from a backup",
            span.earliest,
        )
    return None


def data_loss_error(detail: str) -> DataLossError:
    """The error that says what is gone and what the user can do."""
    return DataLossError(
        f"{detail}. Set option failOnDataLoss to false to go on with what there is, or begin anew with a new checkpoint"
    )


@dataclass(frozen=True, slots=True)
class Pending:
    """What waits for the query among the offsets from `start` to `end`.

    `first` is the offset of the first row, `found` how many rows were counted, which need not be all of them; `rows`
    and `bytes` are what there is at most.
    """

    start: int
    end: int
    first: int
    found: int
    rows: int
    bytes: int

    @property
    def quiet(self) -> bool:
        """Whether nothing waits, and the stretch is too short to be passed over."""
        return not self.found and self.end - self.start < QUIET_MAX


def nothing(start: int, end: int) -> Pending:
    """A stretch without a row for the query."""
    return Pending(start, end, end, 0, 0, 0)


@dataclass(slots=True)
class Pace:
    """When a micro-batch is big enough to begin: at `rows_min`, or when the last one began `delay_max_s` ago."""

    rows_min: int | None
    delay_max_s: float
    began_s: float | None = None

    def ready(self, rows: int, now_s: float) -> bool:
        """Whether a batch of so many rows begins now; the first always does."""
        waited = self.began_s is None or now_s - self.began_s >= self.delay_max_s
        return self.rows_min is None or rows >= self.rows_min or waited

    def may_pass(self, now_s: float) -> bool:
        """Whether a batch begins now only to pass over a stretch that has nothing for the query."""
        return self.began_s is None or now_s - self.began_s >= QUIET_S

    def began(self, now_s: float) -> None:
        """Note that a batch begins."""
        self.began_s = now_s


@dataclass(slots=True)
class Reports:
    """When to tell the broker how far the query is: what is new, but not more often than every `interval_s`.

    A report is itself an event in the log. A query over events that reported progress by no more than `echo` offsets
    would answer its own reports for ever.
    """

    interval_s: float
    echo: int = 0
    told: int | None = None
    tried_s: float | None = None

    def due(self, offset: int, now_s: float, *, last: bool = False) -> bool:
        """Whether to tell this offset now; `last` when there will hardly be another occasion."""
        if self.told is not None and 0 <= offset - self.told <= self.echo:
            return False
        return last or self.tried_s is None or now_s - self.tried_s >= self.interval_s

    def trying(self, now_s: float) -> None:
        """Note that the broker is being told."""
        self.tried_s = now_s

    def heard(self, offset: int) -> None:
        """Note that the broker knows."""
        self.told = offset
