import pytest

from headrace.broker.runs import Run, Runs


def runs_of(*shapes: tuple[int, int, int]) -> Runs:
    """Runs of (first, count, offset), all awaited."""
    runs = Runs()
    for first, count, offset in shapes:
        runs.append(Run(first, count, offset, 1, 0, True, None))
    return runs


def shapes(runs: Runs) -> list[tuple[int, int, int]]:
    return [(run.first, run.count, run.offset) for run in runs]


@pytest.mark.parametrize(
    ("ranges", "awaited"),
    [
        ([(1, 10)], True),
        ([(3, 2)], True),
        ([(1, 15)], True),
        ([(1, 16)], False),
        ([(0, 1)], False),
        ([(1, 0)], False),
        ([(1, -1)], False),
        ([(18, 1)], False),
        ([(20, 5)], True),
        ([(15, 6)], False),
        ([(4, 2), (1, 3)], True),
        ([(1, 3), (3, 1)], False),
        ([(2, 1), (2, 1)], False),
        ([(1, 2), (99, 1)], False),
        ([], True),
    ],
)
def test_which_ids_are_awaited(ranges: list[tuple[int, int]], awaited: bool) -> None:
    runs = runs_of((1, 10, 100), (11, 5, 200), (20, 5, 300))
    assert runs.all_awaited(ranges) is awaited


def test_no_id_is_awaited_of_nothing() -> None:
    assert not Runs().all_awaited([(1, 1)])


def test_a_nacked_run_is_not_awaited() -> None:
    runs = runs_of((1, 5, 100), (6, 5, 200))
    runs[0:1][0].awaited = False
    assert not runs.all_awaited([(5, 2)])
    assert runs.all_awaited([(6, 5)])


def test_a_split_leaves_the_front_in_the_old_run() -> None:
    runs = runs_of((1, 10, 100))
    (old,) = runs[0:1]
    index, rest = runs.split(4)
    assert shapes(runs) == [(1, 3, 100), (4, 7, 103)]
    assert index == 1
    assert runs[0:2] == [old, rest]


@pytest.mark.parametrize(("at", "index"), [(1, 0), (11, 1), (18, 2), (20, 2), (99, 3)])
def test_nothing_is_split_between_runs(at: int, index: int) -> None:
    runs = runs_of((1, 10, 100), (11, 5, 200), (20, 5, 300))
    assert runs.split(at) == (index, None)
    assert len(runs) == 3


def test_a_split_keeps_the_fate_of_both() -> None:
    runs = Runs()
    run = Run(1, 4, 100, 2, 77, False, "ann")
    run.ready = True
    runs.append(run)
    _, rest = runs.split(3)
    assert rest is not None
    assert (rest.attempt, rest.due, rest.awaited, rest.holder, rest.ready) == (2, 77, False, "ann", True)


def test_ids_are_found_by_offset_across_gaps() -> None:
    runs = runs_of((1, 3, 100), (6, 2, 105), (8, 5, 200))
    assert runs.ids_at(100, 10) == [(1, 3), (6, 2)]
    assert runs.ids_at(101, 1) == [(2, 1)]
    assert runs.ids_at(103, 2) == []
    assert runs.ids_at(90, 5) == []
    assert runs.ids_at(203, 50) == [(11, 2)]


def test_a_run_is_found_by_an_offset_inside_it() -> None:
    runs = runs_of((1, 3, 100), (4, 2, 200))
    assert runs.at_offset(99) is None
    assert runs.at_offset(103) is None
    found = runs.at_offset(201)
    assert found is not None
    assert found.first == 4


def test_discard_and_lowest_offset() -> None:
    runs = runs_of((1, 3, 100), (4, 2, 200))
    assert runs.lowest_offset == 100
    runs.discard(runs[0:1][0])
    assert runs.lowest_offset == 200
    runs.remove(0, 1)
    assert runs.lowest_offset is None
