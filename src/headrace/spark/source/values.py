"""What the text of an option can mean: flags, numbers, durations, sizes, places in the log. Knows no option by name."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OFFSET_MAX = (1 << 63) - 1

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_SECONDS = {
    "ms": 0.001, "millisecond": 0.001, "": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0,
}  # fmt: skip
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?")
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log, as asked for: an end of it, an offset, or the first offset at or after a time (µs)."""

    kind: Literal["earliest", "latest", "offset", "timestamp"]
    value: int = 0


EARLIEST = Position("earliest")
LATEST = Position("latest")


def flag(text: str) -> bool:
    """`true` or `false`. Raises ValueError."""
    known: Mapping[str, bool] = {"true": True, "false": False}
    try:
        return known[text.strip().lower()]
    except KeyError:
        raise ValueError("expected true or false") from None


def count(text: str) -> int:
    """A whole number from 1 on. Raises ValueError."""
    number = _whole(text)
    if number < 1:
        raise ValueError("expected a whole number from 1 on")
    return number


def batch_number(text: str) -> int:
    """A whole number from 0 on. Raises ValueError."""
    return _whole(text)


def duration_s(text: str) -> float:
    """Seconds from `500ms`, `10s`, `15m`, `2 hours`, or a plain number of seconds. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = found[2] if found else None
    if unit not in _SECONDS and unit is not None:
        unit = unit.removesuffix("s")
    if found is None or unit not in _SECONDS:
        raise ValueError("expected a time such as 500ms, 10s or 15m")
    return float(found[1]) * _SECONDS[unit]


def size(text: str) -> int:
    """Bytes from `1048576`, `64m` or `1GB`, at least 1. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip().lower())
    number = int(found[1]) * _BYTES[found[2]] if found else 0
    if not 1 <= number <= OFFSET_MAX:
        raise ValueError("expected a size such as 1048576, 64m or 1g")
    return number


def names(text: str) -> tuple[str, ...]:
    """Names between commas, each once, at least one. Raises ValueError."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ValueError("expected names between commas, none of them empty")
    if len(set(found)) != len(found):
        raise ValueError("a name is given twice")
    return found


def pattern(text: str) -> str:
    """A regular expression. Raises ValueError."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None
    return text


def position(text: str) -> Position:
    """`earliest`, `latest`, an offset, or an offset as the stream's checkpoint has it. Raises ValueError."""
    word = text.strip().lower()
    if word == "earliest":
        return EARLIEST
    if word == "latest":
        return LATEST
    try:
        given = json.loads(word)
    except (ValueError, RecursionError):
        given = None
    if isinstance(given, dict) and given.keys() == {"offset"}:
        given = given["offset"]
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= OFFSET_MAX:
        raise ValueError('expected earliest, latest, an offset such as 42, or {"offset": 42}')
    return Position("offset", given)


def moment(text: str) -> Position:
    """A time in milliseconds since 1970. Raises ValueError."""
    try:
        number = _whole(text)
    except ValueError:
        raise ValueError("expected milliseconds since 1970, such as 1735689600000") from None
    if number > OFFSET_MAX // 1000:
        raise ValueError("a time too far ahead; it is in milliseconds")
    return Position("timestamp", number * 1000)


def _whole(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) > OFFSET_MAX:
        raise ValueError("expected a whole number")
    return int(digits)
