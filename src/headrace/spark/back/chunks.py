"""Cutting what is to be sent into chunks by offset. Pure; ends are exclusive.

The rows are counted by stretches of equally many offsets, so that where to cut is known without looking at each row.
"""

from collections.abc import Iterable
from typing import NamedTuple

ROWS_MAX = 50_000
BYTES_MAX = 32 << 20
STRETCHES_MAX = 1 << 18


class Stretch(NamedTuple):
    """What lies in one stretch of offsets, the `number`-th from the first row's."""

    number: int
    rows: int
    bytes: int


class Chunk(NamedTuple):
    """One transaction: the rows with offsets from `start` up to `end`."""

    start: int
    end: int
    rows: int


def stretch_size(first: int, last: int) -> int:
    """How many offsets make a stretch, so that there are not too many from the first to the last; 1 when it can be."""
    return max(1, -(-(last - first + 1) // STRETCHES_MAX))


def rows_max(rate: int | None) -> int:
    """How many rows make a chunk at this rate: about as many as go in a second."""
    return ROWS_MAX if rate is None else max(1, min(rate, ROWS_MAX))


def cut(
    stretches: Iterable[Stretch], *, first: int, size: int, rows_max: int, bytes_max: int = BYTES_MAX
) -> list[Chunk]:
    """The stretches in chunks within both limits; one stretch is a chunk whatever it holds.

    Stretches come in order, those without rows left out; the stretch of number 0 begins at offset `first`.
    """
    chunks: list[Chunk] = []
    filled = 0
    for number, rows, weight in stretches:
        start = first + number * size
        end = start + size
        last = chunks[-1] if chunks else None
        if last is not None and last.rows + rows <= rows_max and filled + weight <= bytes_max:
            chunks[-1] = Chunk(last.start, end, last.rows + rows)
            filled += weight
        else:
            chunks.append(Chunk(start, end, rows))
            filled = weight
    return chunks
