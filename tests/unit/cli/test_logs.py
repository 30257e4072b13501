"""`log verify|dump|repair` on real log directories."""

from pathlib import Path

import pytest

from headrace.log import Log, LogSettings, OsDisk
from headrace.model.batch import build_batch
from headrace.model.parts import RECORD_HEADER_SIZE
from tests.unit.cli.doubles import Shell

BATCHES = 8


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory whose log holds 8 batches of 2 messages, each flushed on its own."""
    log = Log.open(tmp_path / "log", OsDisk(), LogSettings())
    for number in range(BATCHES):
        values = [b"first of %d" % number, b"second of %d" % number]
        log.append(
            bytearray(RECORD_HEADER_SIZE) + build_batch("orders", values, timestamp_us=number + 1), refusable=True
        )
        flush = log.begin_flush()
        assert flush is not None
        flush.run()
        assert log.end_flush(flush).error is None
    log.close()
    return tmp_path


def segment(data_dir: Path) -> Path:
    (path,) = (data_dir / "log").glob("*.seg")
    return path


def spoil(data_dir: Path, text: bytes) -> None:
    """Change one byte of a stored value."""
    path = segment(data_dir)
    data = bytearray(path.read_bytes())
    data[data.index(text)] ^= 1
    path.write_bytes(data)


def test_a_whole_log_is_intact(shell: Shell, data_dir: Path) -> None:
    assert shell("log", "verify", str(data_dir)) == 0
    assert shell.out.splitlines()[0] == "1 segments with offsets 0 to 15"
    assert "intact" in shell.out


def test_the_log_directory_itself_will_do_too(shell: Shell, data_dir: Path) -> None:
    assert shell("log", "verify", "--json", str(data_dir / "log")) == 0
    (report,) = shell.documents
    assert (report["intact"], report["next_offset"], report["damage"]) == (True, 16, [])


def test_damage_fails_with_the_offsets_that_are_gone(shell: Shell, data_dir: Path) -> None:
    spoil(data_dir, b"first of 3")
    assert shell("log", "verify", str(data_dir)) == 1
    assert "lost offsets 6 to 7" in shell.err
    assert "headrace log repair" in shell.err
    assert "offsets 6 to 7 lost" in shell.out


def test_dump_shows_every_batch_and_its_place(shell: Shell, data_dir: Path) -> None:
    assert shell("log", "dump", str(data_dir)) == 0
    assert [row[2:6] for row in shell.rows] == [[str(2 * n), "2", "batch", "orders"] for n in range(BATCHES)]
    assert shell("log", "dump", "--from", "4", "--to", "8", "--json", str(data_dir)) == 0
    assert [row["offset"] for row in shell.documents] == [4, 6]


def test_dump_shows_damage_in_its_place(shell: Shell, data_dir: Path) -> None:
    spoil(data_dir, b"second of 2")
    assert shell("log", "dump", str(data_dir)) == 0
    assert [row[4] for row in shell.rows] == ["batch", "batch", "damage", "batch", "batch", "batch", "batch", "batch"]


def test_repair_keeps_the_rest_and_what_it_removed(shell: Shell, data_dir: Path) -> None:
    spoil(data_dir, b"first of 3")
    assert shell("log", "repair", "--yes", "--json", str(data_dir)) == 0
    (report,) = shell.documents
    assert [(item["first"], item["count"]) for item in report["damage"]] == [(6, 2)]
    assert [(data_dir / "log" / name).exists() for name in report["kept_aside"]] == [True]
    assert shell("log", "verify", str(data_dir)) == 0


def test_what_a_repair_gave_up_is_said_ever_after(shell: Shell, data_dir: Path) -> None:
    spoil(data_dir, b"first of 3")
    assert shell("log", "repair", "--yes", str(data_dir)) == 0
    for _ in range(2):
        assert shell("log", "verify", str(data_dir)) == 0
        assert "offsets 6 to 7 lost" in " ".join(shell.out.split())
        assert "nothing that was ever safe is missing" not in shell.out
    assert shell("log", "verify", "--json", str(data_dir)) == 0
    report = shell.documents[-1]
    assert (report["intact"], report["lost_offsets"], report["epoch"]) == (True, 2, 1)
    assert [(lost["first"], lost["count"]) for lost in report["lost"]] == [(6, 2)]


def test_a_missing_segment_fails_though_all_the_others_are_whole(shell: Shell, data_dir: Path) -> None:
    segment(data_dir).unlink()
    assert shell("log", "verify", str(data_dir)) == 1
    assert "lost offsets 0 to 15" in shell.err


def test_repair_does_nothing_without_a_yes(shell: Shell, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(data_dir, b"first of 3")
    before = segment(data_dir).read_bytes()
    monkeypatch.setattr("typer.confirm", _refuse)
    assert shell("log", "repair", str(data_dir)) == 1
    assert "offsets 6 to 7 lost" in shell.err
    assert segment(data_dir).read_bytes() == before


def _refuse(question: str, **how: object) -> None:
    import typer

    assert question.startswith("Repair the log")
    raise typer.Abort


def test_repair_of_a_whole_log_changes_nothing(shell: Shell, data_dir: Path) -> None:
    before = segment(data_dir).read_bytes()
    assert shell("log", "repair", str(data_dir)) == 0
    assert shell.out.startswith("nothing to repair")
    assert segment(data_dir).read_bytes() == before


def test_repair_keeps_away_from_a_running_broker(shell: Shell, data_dir: Path) -> None:
    log = Log.open(data_dir / "log", OsDisk(), LogSettings())
    assert shell("log", "repair", "--yes", str(data_dir)) == 1
    assert "has the log in" in shell.err
    log.close()


@pytest.mark.parametrize("command", ["verify", "dump", "repair"])
def test_a_directory_without_a_log_is_named(shell: Shell, tmp_path: Path, command: str) -> None:
    assert shell("log", command, str(tmp_path / "nowhere")) == 1
    assert f"there is no log in {tmp_path / 'nowhere'}" in shell.err
