"""What the text of an option can mean."""

from collections.abc import Callable

import pytest

from headrace.spark.source import values
from headrace.spark.source.values import EARLIEST, LATEST, OFFSET_MAX, Position


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("10", 10), ("15m", 900), ("2 hours", 7200), ("1.5 min", 90), ("1 DAY", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("64m", 64 << 20), ("1GB", 1 << 30), ("4 kib", 4096)])
def test_sizes(text: str, size: int) -> None:
    assert values.size(text) == size


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", EARLIEST),
        (" Latest ", LATEST),
        ("0", Position("offset", 0)),
        ("42", Position("offset", 42)),
        ('{"offset": 42}', Position("offset", 42)),
        (str(OFFSET_MAX), Position("offset", OFFSET_MAX)),
    ],
)
def test_positions(text: str, place: Position) -> None:
    assert values.position(text) == place


def test_a_moment_is_in_milliseconds() -> None:
    assert values.moment("1735689600123") == Position("timestamp", 1735689600123000)


def test_names() -> None:
    assert values.names("orders, payments") == ("orders", "payments")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (values.flag, "yes"),
        (values.count, "0"),
        (values.count, "-1"),
        (values.count, "1e3"),
        (values.count, "9" * 40),
        (values.count, "٣"),
        (values.duration_s, "soon"),
        (values.duration_s, "10 parsecs"),
        (values.duration_s, "-1s"),
        (values.size, "0"),
        (values.size, "1x"),
        (values.size, "9" * 30),
        (values.names, "orders,,payments"),
        (values.names, ""),
        (values.names, "orders,orders"),
        (values.pattern, "orders("),
        (values.position, "-1"),
        (values.position, "first"),
        (values.position, "true"),
        (values.position, '{"orders": {"0": 1}}'),
        (values.position, str(OFFSET_MAX + 1)),
        (values.position, "[" * 100_000),
        (values.moment, "2025-01-01"),
        (values.moment, str(OFFSET_MAX)),
    ],
)
def test_nonsense_is_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|twice|regular|milliseconds"):
        parse(text)
