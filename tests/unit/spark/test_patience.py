"""Making way for a broker on the same machine."""

import os
import threading
from pathlib import Path

import pytest

from headrace.feed.whereabouts import whereabouts
from headrace.spark import patience
from headrace.spark.patience import NICENESS, disk_work, is_here, spare_cores, stand_back

SOFTIRQS = """\
                    CPU0       CPU1       CPU3
          HI:          5          0          0
       BLOCK:         12    3763630          7
       SCHED:     255591     271059          0
"""


def cores(monkeypatch: pytest.MonkeyPatch, folder: Path, softirqs: str, *allowed: int) -> set[int] | None:
    """The spare ones on a machine that tells that of itself."""
    told = folder / "softirqs"
    told.write_text(softirqs)
    monkeypatch.setattr(patience, "SOFTIRQS", told)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    return spare_cores()


def test_how_often_each_core_had_to_do_with_a_disk() -> None:
    assert disk_work(SOFTIRQS) == {0: 12, 1: 3763630, 3: 7}


@pytest.mark.parametrize("text", ["", "no table", SOFTIRQS.replace("12", "twelve"), SOFTIRQS.replace("CPU3", "")])
def test_what_is_no_such_table_is_not_believed(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        disk_work(text)


def test_the_core_that_hears_from_the_disk_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cores(monkeypatch, tmp_path, SOFTIRQS, 0, 1, 3) == {0, 3}


def test_among_equals_it_is_the_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cores(monkeypatch, tmp_path, SOFTIRQS.replace("3763630", "12").replace("7\n", "12\n"), 0, 1, 3) == {0, 1}


def test_who_has_left_it_already_leaves_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cores(monkeypatch, tmp_path, SOFTIRQS, 0, 3) == {0, 3}


@pytest.mark.parametrize(("softirqs", "allowed"), [(SOFTIRQS, {1}), ("", {0, 1}), ("no table", {0, 1})])
def test_there_is_no_choice_on_one_core_or_without_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, softirqs: str, allowed: set[int]
) -> None:
    assert cores(monkeypatch, tmp_path, softirqs, *allowed) is None


def test_systems_without_affinity_keep_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert spare_cores() is None


def test_a_thread_that_stands_back_takes_nobody_along() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    only = {min(before[1])}
    seen: list[tuple[int, set[int]]] = []

    def work() -> None:
        stand_back(spared=only)
        seen.append((os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.sched_getaffinity(0)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(max(NICENESS, before[0]), only)]
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) == before


def test_a_log_is_here_if_this_machine_has_it(tmp_path: Path) -> None:
    place = whereabouts(tmp_path)
    assert place is not None
    assert is_here(place)
    assert not is_here(place._replace(machine="another"))
    assert not is_here(None)
