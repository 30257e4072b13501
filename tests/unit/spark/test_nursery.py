"""Processes that Spark believes to start, and that are forked from one which has loaded everything already."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.nursery import stand_in
from headrace.spark.seed import SOCKET

PROBE = """
import gc, json, os, sys
from headrace.spark.daemon import main_module
told = {"arguments": sys.argv[1:], "cores": sorted(os.sched_getaffinity(0)),
        "folder": os.getcwd(), "frozen": gc.get_freeze_count(), "input": sys.stdin.read(),
        "loaded": "pyarrow" in sys.modules, "main": main_module(), "mark": os.environ.get("MARK"),
        "nice": os.getpriority(os.PRIO_PROCESS, 0), "parent": os.getppid(), "settings": len(os.environ),
        "warm": "pyspark.worker" in sys.modules}
print(json.dumps(told))
print("and said so", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
PATIENT = """
import os, sys
print(os.getpid(), os.getppid(), flush=True)
sys.stdin.read()
"""
SAYING = """
print("ran")
"""
FAILING = """
raise LookupError("nowhere")
"""
PASSING_PARENT = """
import subprocess, sys
process = subprocess.Popen([sys.argv[1], "-m", "patient"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(process.stdout.readline(), end="", flush=True)
sys.stdin.read()
"""
KILLED_BEHIND_ITS_FIRST_FORK = """
import os, sys
from headrace.spark.nursery import main
of_parent = os.pidfd_open(int(sys.argv[3]))
opened = iter([lambda: of_parent, lambda: os._exit(9)])
os.pidfd_open = lambda process: next(opened)()
main(*sys.argv[1:])
"""
PROGRAMS = {"probe": PROBE, "patient": PATIENT, "failing": FAILING, "saying": SAYING}
GONE_WITHIN_S = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs to run."""
    folder = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def python(folder: Path) -> str:
    """What stands in for the interpreter; its nursery ends with this process."""
    return stand_in(sys.executable)


@pytest.fixture
def patient(python: str, folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """A process that ends when its input does."""
    with subprocess.Popen(
        [python, "-m", "patient"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def run(
    python: str, folder: Path, *arguments: str, nice: int = 0, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run to the end."""
    return subprocess.run(
        ["nice", f"-n{nice}", python, *arguments], cwd=folder, input="words", capture_output=True, text=True,
        check=False, env=os.environ | environ, preexec_fn=_on_one_core if nice else None,
    )  # fmt: skip


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def probe(python: str, folder: Path, code: int = 0, **given: Any) -> dict[str, Any]:
    """What the probe tells of itself."""
    done = run(python, folder, "-m", "probe", str(code), **given)
    assert done.returncode == code, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def numbers(process: "subprocess.Popen[str]") -> tuple[int, int]:
    """The ids that a patient program tells: its own and its parent's."""
    assert process.stdout is not None
    own, parent = map(int, process.stdout.readline().split())
    return own, parent


def has_ended(pid: int) -> bool:
    """Whether a process ends before long."""
    try:
        alive = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([alive], [], [], GONE_WITHIN_S)
    os.close(alive)
    return bool(ended)


def test_it_is_as_if_the_interpreter_had_been_started(python: str, folder: Path) -> None:
    done = run(python, folder, "-m", "probe", "3", "more", MARK="here", nice=5)
    assert done.returncode == 3
    assert done.stderr == "and said so\n"
    told = json.loads(done.stdout)
    plain = json.loads(run(sys.executable, folder, "-m", "probe", "3", "more", MARK="here", nice=5).stdout)
    for name in ("arguments", "cores", "folder", "input", "main", "mark", "nice", "settings"):
        assert told[name] == plain[name], name


def test_it_is_loaded_already_and_passed_over_by_collections(python: str, folder: Path) -> None:
    first, second = probe(python, folder), probe(python, folder)
    assert first["warm"]
    assert first["frozen"] > 50_000
    assert first["parent"] == second["parent"], "both come from one nursery"


def test_the_path_is_the_one_that_was_given(python: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("print('found')")
    done = run(python, Path("/"), "-m", "elsewhere", PYTHONPATH=str(tmp_path))
    assert done.stdout == "found\n"


def test_a_program_that_fails_says_why(python: str, folder: Path) -> None:
    done = run(python, folder, "-m", "failing")
    assert done.returncode == 1
    assert "LookupError: nowhere" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [(("-c", PROBE, "0"), {}), (("-m", "probe", "0"), {"PYTHONHASHSEED": "7"})],
    ids=["no module", "another hash"],
)
def test_what_is_not_common_gets_an_interpreter(
    python: str, folder: Path, arguments: tuple[str, ...], environ: dict[str, str]
) -> None:
    told = json.loads(run(python, folder, *arguments, nice=0, **environ).stdout)
    assert told["parent"] == os.getpid()
    assert not told["warm"]


def test_who_ends_the_stand_in_ends_the_process(patient: "subprocess.Popen[str]") -> None:
    own, _ = numbers(patient)
    patient.terminate()
    assert has_ended(own)


def test_a_process_that_is_killed_is_seen_to_fail(patient: "subprocess.Popen[str]") -> None:
    own, _ = numbers(patient)
    os.kill(own, signal.SIGKILL)
    assert patient.wait(GONE_WITHIN_S) != 0


def test_a_nursery_that_is_killed_is_missed_by_its_processes_and_replaced(
    patient: "subprocess.Popen[str]", python: str, folder: Path
) -> None:
    _, nursery = numbers(patient)
    os.kill(nursery, signal.SIGKILL)
    assert patient.wait(GONE_WITHIN_S) != 0
    told = probe(python, folder)
    assert told["warm"]
    assert told["parent"] != nursery


def test_what_was_forked_is_not_run_a_second_time(folder: Path) -> None:
    python = stand_in(sys.executable)
    home = Path(python).parent
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / SOCKET))
        listener.listen()
        given = [str(home), str(listener.fileno()), str(os.getpid())]
        command = [sys.executable, "-c", KILLED_BEHIND_ITS_FIRST_FORK, *given]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as nursery:
            done = run(python, folder, "-m", "saying")
            assert nursery.wait() == 9
    assert done.stdout == "ran\n"
    assert done.returncode == 1


def test_nursery_and_processes_end_with_whoever_began_it(folder: Path) -> None:
    python = stand_in(sys.executable)
    parent = subprocess.Popen(
        [sys.executable, "-c", PASSING_PARENT, python], cwd=folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with parent:
        own, nursery = numbers(parent)
        parent.kill()
    assert has_ended(own)
    assert has_ended(nursery)
    assert not Path(python).parent.exists()


def test_what_a_killed_session_left_is_removed_by_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, used = tmp_path / f"headrace-python-{ended.pid}-left", tmp_path / f"headrace-python-{os.getppid()}-used"
    for folder in (left, used):
        folder.mkdir()
        (folder / "lock").touch()
    stand_in(sys.executable)
    assert not left.exists()
    assert used.exists()


def test_without_pidfds_it_is_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert stand_in(sys.executable) == sys.executable
