"""Not more than so many rows a second."""

from headrace.spark.back.pace import Pace


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace()
    pace.sent(1_000_000, 5.0)
    assert pace.wait_s(5.0) == 0.0


def test_the_next_rows_wait_for_as_long_as_the_last_ones_take() -> None:
    pace = Pace(100)
    assert pace.wait_s(7.0) == 0.0
    pace.sent(50, 7.0)
    assert pace.wait_s(7.25) == 0.25
    assert pace.wait_s(8.0) == 0.0


def test_time_lost_is_not_made_up_for() -> None:
    pace = Pace(10)
    pace.sent(10, 0.0)
    pace.sent(10, 60.0)
    assert pace.wait_s(60.0) == 1.0
