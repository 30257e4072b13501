"""Choosing dead letters with an SQL condition, evaluated here, in memory, over what the broker sent."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.cli.failure import Failure

COLUMNS = (
    "offset", "topic", "origin_topic", "origin_offset", "subscription", "reason", "attempts", "timestamp", "value",
)  # fmt: skip


class BadCondition(Failure):
    """The condition is not SQL over these columns."""


def matching(condition: str, letters: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The letters for which the condition holds, in their order.

    Raises BadCondition for what SQLite does not accept.
    """
    kept = list(letters)
    with sqlite3.connect(":memory:") as database:
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        database.execute(f"CREATE TABLE dead_letters (place INTEGER PRIMARY KEY, {names})")
        marks = ", ".join("?" * (len(COLUMNS) + 1))
        database.executemany(
            f"INSERT INTO dead_letters VALUES ({marks})",  # noqa: S608 the names are ours
            ([place, *_values(letter)] for place, letter in enumerate(kept)),
        )
        try:
            chosen = database.execute(
                f"SELECT place FROM dead_letters WHERE ({condition}\n) ORDER BY place"  # noqa: S608 in memory, theirs
            ).fetchall()
        except sqlite3.Error as error:
            raise BadCondition(
                f"--where {condition!r}: {error}", f"The columns are {', '.join(COLUMNS)}; the rest is SQLite's SQL."
            ) from error
    return [kept[place] for (place,) in chosen]


def _values(letter: dict[str, Any]) -> Sequence[object]:
    return [letter.get(name) for name in COLUMNS]
