"""Arithmetic on offsets: places, losses, pace, reports."""

import pytest

from headrace.feed.client import Span
from headrace.spark.source.offsets import (
    QUIET_MAX,
    QUIET_S,
    Pace,
    Pending,
    Reports,
    batch_range,
    decode,
    encode,
    loss,
    nothing,
    resolve,
)
from headrace.spark.source.values import EARLIEST, LATEST, Position


def test_an_offset_comes_back_from_a_checkpoint() -> None:
    assert decode(encode(7)) == 7


def test_a_batch_lies_between_two_checkpoints() -> None:
    assert batch_range(encode(7), encode(9)) == (7, 9)
    assert batch_range(encode(7), encode(7)) == (7, 7)


def test_a_batch_behind_a_gap_says_where_it_begins() -> None:
    assert batch_range(encode(7), encode(20, 15)) == (15, 20)
    assert batch_range(encode(700), encode(20, 0)) == (0, 20), "in a log made anew"
    assert decode(encode(20, 15)) == 20


def test_a_beginning_that_has_moved_on_makes_an_empty_batch() -> None:
    assert batch_range(encode(9), encode(7)) == (7, 7)


@pytest.mark.parametrize("kept", [{}, {"offset": "7"}, {"offset": -1}, {"offset": True}, {"orders": {"0": 7}}])
def test_the_checkpoint_of_something_else_is_refused(kept: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="another query"):
        decode(kept)


@pytest.mark.parametrize(
    ("place", "offset"),
    [(EARLIEST, 10), (LATEST, 90), (Position("offset", 5), 5), (Position("timestamp", 33), 1033)],
)
def test_places_mean_offsets(place: Position, offset: int) -> None:
    assert resolve(place, Span(10, 90), lambda time: 1000 + time) == offset


@pytest.mark.parametrize("start", [10, 50, 90])
def test_nothing_is_lost_inside_the_log(start: int) -> None:
    assert loss(start, Span(10, 90)) is None


def test_what_retention_took_is_named() -> None:
    gone = loss(4, Span(10, 90))
    assert gone is not None
    assert gone.resume == 10
    assert "offsets 4 to 9 are gone" in gone.detail


def test_a_log_that_became_shorter_is_another_log() -> None:
    gone = loss(91, Span(10, 90))
    assert gone is not None
    assert gone.resume == 10
    assert "up to offset 91" in gone.detail
    assert "ends at 90" in gone.detail


def test_the_empty_log_of_a_new_broker_has_lost_nothing() -> None:
    assert loss(0, Span(0, 0)) is None


def test_rows_make_news_and_a_long_quiet_is_passed_over() -> None:
    assert nothing(5, 5).quiet
    assert nothing(5, 4 + QUIET_MAX).quiet
    assert not nothing(5, 5 + QUIET_MAX).quiet
    assert not Pending(5, 6, 5, 1, 1, 10).quiet


def test_without_a_minimum_every_row_is_a_batch() -> None:
    pace = Pace(None, 900)
    assert pace.ready(1, 0)
    pace.began(0)
    assert pace.ready(1, 0)


def test_a_quiet_stretch_is_passed_over_once_a_minute() -> None:
    pace = Pace(None, 900)
    assert pace.may_pass(0), "nobody knows when the last batch was"
    pace.began(0)
    assert not pace.may_pass(QUIET_S - 1)
    assert pace.may_pass(QUIET_S)


def test_a_batch_waits_for_its_minimum_or_its_time() -> None:
    pace = Pace(10, 60)
    assert pace.ready(1, 100), "the first waits for nothing"
    pace.began(100)
    assert not pace.ready(9, 159.9)
    assert pace.ready(10, 100)
    assert pace.ready(1, 160)


def told(reports: Reports, offset: int, now_s: float) -> None:
    reports.trying(now_s)
    reports.heard(offset)


def test_reports_are_few_and_the_last_is_not_forgotten() -> None:
    reports = Reports(5)
    assert reports.due(0, 0)
    told(reports, 0, 0)
    assert not reports.due(0, 100), "the broker knows"
    assert not reports.due(1, 4.9)
    assert reports.due(1, 4.9, last=True)
    assert reports.due(1, 5)


def test_a_report_nobody_heard_is_made_again() -> None:
    reports = Reports(5)
    reports.trying(0)
    assert not reports.due(7, 4.9)
    assert reports.due(7, 5)


def test_a_report_is_not_reported() -> None:
    reports = Reports(5, echo=2)
    told(reports, 10, 0)
    assert not reports.due(11, 100)
    assert not reports.due(12, 100, last=True)
    assert reports.due(13, 100)
    assert reports.due(4, 100), "a log made anew begins before"
