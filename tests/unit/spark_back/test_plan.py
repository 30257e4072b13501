"""Plans in the lake: kept, found again, finished."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.spark.back.chunks import Chunk
from headrace.spark.back.plan import Plan, Plans, Wish
from headrace.spark.lake.table import LakeError

WISH = Wish(kind="replay", table="messages", where="topic = 'orders'", edits=("value = 'x'",), to="again")
PLAN = Plan(id="p1", wish=WISH, chunks=(Chunk(0, 10, 10), Chunk(10, 25, 7)))


def test_a_plan_is_found_as_it_was_kept(tmp_path: Path) -> None:
    plans = Plans(tmp_path)
    assert plans.find("p1") is None
    plans.keep(PLAN)
    assert plans.find("p1") == PLAN
    assert PLAN.rows == 17
    assert PLAN.writer == "replay:p1"


def test_how_much_is_sent_follows_from_the_last_chunk() -> None:
    assert [PLAN.sent(last) for last in (None, 0, 1)] == [0, 10, 17]


def test_only_the_same_wish_goes_on(tmp_path: Path) -> None:
    plans = Plans(tmp_path)
    plans.keep(PLAN)
    assert plans.unfinished(WISH) == PLAN
    for other in ({"where": "true"}, {"to": "elsewhere"}, {"edits": ()}, {"table": "envelopes"}, {"kind": "redrive"}):
        assert plans.unfinished(replace(WISH, **other)) is None


def test_what_is_finished_does_not_go_on_and_leaves_no_rows(tmp_path: Path) -> None:
    plans = Plans(tmp_path)
    plans.rows("p1").mkdir(parents=True)
    plans.keep(PLAN)
    plans.finish(PLAN)
    assert plans.unfinished(WISH) is None
    assert plans.find("p1") == replace(PLAN, done=True)
    assert not plans.rows("p1").exists()


def test_the_same_wish_over_the_same_table_has_the_same_name() -> None:
    assert WISH.identity((0, 10, 5)) == WISH.identity((0, 10, 5))
    assert WISH.identity((0, 10, 5)) != WISH.identity((0, 11, 6))
    assert WISH.identity((0, 10, 5)) != replace(WISH, to="elsewhere").identity((0, 10, 5))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    plans = Plans(tmp_path)
    with plans.locked("p1"):
        with pytest.raises(LakeError, match="another process"), plans.locked("p1"):
            pass
        with plans.locked("p2"):
            pass


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 101, "nul\0"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(LakeError, match="bad id"):
        Plans(tmp_path).find(name)


def test_a_plan_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    plans = Plans(tmp_path)
    plans.keep(PLAN)
    (tmp_path / "_replays" / "p1" / "plan.json").write_text('{"id": "p1"}')
    with pytest.raises(LakeError, match=r"p1/plan\.json makes no sense"):
        plans.find("p1")
