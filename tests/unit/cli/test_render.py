"""Values as people read them."""

import pytest

from headrace.cli import render


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_use_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000012, "12 µs"), (0.0042, "4.2 ms"), (0.42, "420 ms"), (4.2, "4.2 s"), (600, "10 min")],
)
def test_durations_use_the_unit_that_suits(seconds: float, text: str) -> None:
    assert render.duration(seconds) == text


def test_rates_need_time_to_have_passed() -> None:
    assert render.rate(10_000, 2.0) == "5,000 msgs/s"
    assert render.rate(10_000, 0.0) == "- msgs/s"
    assert render.throughput(1000, 1 << 20, 1.0) == "1,000 msgs/s ~ 1.0 MiB/s"


def test_no_message_reaches_the_terminal_as_a_command() -> None:
    assert render.payload(b"\x1b[2Jgone\n") == "\\x1b[2Jgone\\n"
    assert render.payload("größe".encode()) == "größe"
    assert render.payload(b"\xff\x00") == "0xff00"


def test_clipped_text_says_so() -> None:
    assert render.clipped("abcdef", 6) == "abcdef"
    assert render.clipped("abcdefg", 6) == "abcde…"


def test_bytes_come_back_from_the_api_whichever_way_they_were_sent() -> None:
    assert render.unwrapped("hi", "aGk=") == b"hi"
    assert render.unwrapped(None, "/wA=") == b"\xff\x00"


def test_percentiles_of_an_ordered_list() -> None:
    ordered = [float(n) for n in range(100)]
    assert (render.percentile(ordered, 0.5), render.percentile(ordered, 0.99)) == (50.0, 99.0)
    assert render.percentile([1.0], 0.99) == 1.0
