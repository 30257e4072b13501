"""`doctor`: what it finds, and when it fails."""

import json
import socket
from pathlib import Path

import pytest

from headrace.cli import checks
from tests.unit.cli.doubles import Shell

QUIET = "[listen]\n" + "".join(f'{name} = ""\n' for name in ("blipmq", "sspq", "fujin", "grpc", "http", "flight"))


def configured(tmp_path: Path, text: str) -> str:
    config = tmp_path / "headrace.toml"
    config.write_text(f'data_dir = "{tmp_path}/data"\n{text}')
    return str(config)


def states(shell: Shell) -> dict[str, str]:
    return {row["check"]: row["state"] for row in shell.documents}


def test_a_fit_machine_passes_every_check(shell: Shell, tmp_path: Path) -> None:
    assert shell("doctor", "--json", "--config", configured(tmp_path, QUIET)) == 0
    found = states(shell)
    assert "fail" not in found.values()
    assert {
        "python",
        "platform",
        "kernels",
        "configuration",
        "data directory",
        "free space",
        "sync time",
    } <= found.keys()
    assert not (tmp_path / "data").exists(), "looking must not leave anything behind"


@pytest.mark.usefixtures("terminal")
def test_people_get_a_table(shell: Shell, tmp_path: Path) -> None:
    assert shell("doctor", "--config", configured(tmp_path, QUIET)) == 0
    assert "what to do" in shell.out
    assert "fdatasync of 4 KiB: p50" in shell.out


def test_a_port_in_use_fails(shell: Shell, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = QUIET.replace('blipmq = ""', f'blipmq = "127.0.0.1:{taken.getsockname()[1]}"')
        assert shell("doctor", "--json", "--config", configured(tmp_path, text)) == 1
    finding = next(row for row in shell.documents if row["check"] == "port blipmq")
    assert finding["state"] == "fail"
    assert "listen.blipmq" in finding["advice"]


def test_the_brokers_own_port_does_not_fail(shell: Shell, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "endpoints.json").write_text(json.dumps({"blipmq": f"tcp://127.0.0.1:{port}"}))
        text = QUIET.replace('blipmq = ""', f'blipmq = "127.0.0.1:{port}"')
        assert shell("doctor", "--json", "--config", configured(tmp_path, text)) == 0
    assert states(shell)["port blipmq"] == "ok"


def test_a_wrong_configuration_is_a_finding(shell: Shell, tmp_path: Path) -> None:
    assert shell("doctor", "--json", "--config", configured(tmp_path, "[retry]\nmax_atempts = 3\n")) == 1
    finding = next(row for row in shell.documents if row["check"] == "configuration")
    assert finding["state"] == "fail"
    assert "retry.max_attempts" in finding["detail"]


def test_a_directory_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    (finding,) = checks.data_dir(tmp_path / "data")
    assert finding.state == checks.FAIL
    assert "--data-dir" in finding.advice


def test_a_missing_package_is_a_warning_with_its_price() -> None:
    finding = checks.package("no_such_package", "speed", "everything is slower")
    assert finding.state == checks.WARN
    assert "everything is slower" in finding.detail


def test_kernels_forced_to_be_interpreted_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PURE", "1")
    monkeypatch.setattr("headrace.kernels.compiled", lambda: False)
    assert checks.kernels().detail == "interpreted: HEADRACE_PURE=1 asks for it"
