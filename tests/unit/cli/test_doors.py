"""The doors behind one interface: loaded when needed, their failures explained."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.doors import PROTOCOLS
from headrace.cli.doors.fujin import security_of
from headrace.cli.failure import Failure
from headrace.cli.target import find_broker
from tests.unit.cli.doubles import Shell
from tests.unit.cli.test_target import write_endpoints

HEAVY = {"fujin": "qh3", "grpcq": "grpc"}


def test_a_door_loads_no_protocol_but_its_own() -> None:
    program = (
        "import sys; from headrace.cli.doors import door; door(sys.argv[1]);"
        "print(*(name for name in ('qh3', 'grpc') if name in sys.modules))"
    )
    for protocol in PROTOCOLS:
        found = subprocess.run([sys.executable, "-c", program, protocol], capture_output=True, text=True, check=True)
        loaded = found.stdout.split()
        assert set(loaded) <= {HEAVY.get(protocol)}, protocol


@pytest.mark.parametrize(("protocol", "package"), [("fujin", "cryptography"), ("grpcq", "grpc")])
def test_a_package_that_is_missing_is_named(protocol: str, package: str) -> None:
    program = (
        "import sys; sys.modules[sys.argv[2]] = None;"
        "from headrace.cli.doors import door; from headrace.cli.failure import Failure\n"
        "try: door(sys.argv[1])\n"
        "except Failure as failure: print(failure, failure.advice)"
    )
    command = [sys.executable, "-c", program, protocol, package]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"--protocol {protocol} needs the Python package '{package}'" in found.stdout
    assert "headrace doctor" in found.stdout


@pytest.mark.parametrize(
    ("protocol", "url"),
    [
        ("sspq", "tcp://127.0.0.1:1"),
        ("fujin", "quic://127.0.0.1:1"),
        ("fujin", "tls://127.0.0.1:1"),
        ("grpcq", "grpc://127.0.0.1:1"),
    ],
)
def test_nobody_there_is_explained_without_a_traceback(shell: Shell, protocol: str, url: str) -> None:
    for command in (("publish", "sspq", "hi"), ("consume", "sspq", "-n", "1")):
        assert shell(*command, "-p", protocol, "--endpoint", url) == 1
        assert f"no broker answers at {url}" in shell.err
        assert "headrace serve --dev" in shell.err


def test_a_listener_that_is_switched_off_is_named(shell: Shell, tmp_path: Path) -> None:
    write_endpoints(tmp_path, blipmq="tcp://127.0.0.1:5555")
    for protocol, listener in {"sspq": "sspq", "fujin": "fujin", "grpcq": "grpc"}.items():
        assert shell("publish", "sspq", "hi", "-p", protocol, "--data-dir", str(tmp_path)) == 1
        assert f"needs the broker's {listener} listener" in shell.err


def test_the_self_signed_certificate_is_trusted_on_this_machine_only(tmp_path: Path) -> None:
    own = tmp_path / "dev-cert.pem"
    own.write_text("a certificate")
    write_endpoints(tmp_path, fujin="quic://127.0.0.1:4848", http="http://127.0.0.1:9100")
    assert security_of(find_broker(data_dir=tmp_path)).ca == own
    assert security_of(find_broker(data_dir=tmp_path, ca=Path("mine.pem"))).ca == Path("mine.pem")
    assert security_of(find_broker(data_dir=tmp_path, endpoint="tls://127.0.0.1:1")).ca == own
    assert security_of(find_broker(data_dir=tmp_path, endpoint="quic://broker.example:1")).ca == ""


def test_a_broker_with_a_certificate_of_its_own_is_known_by_its_authority(tmp_path: Path) -> None:
    (tmp_path / "dev-cert.pem").write_text("left over")
    write_endpoints(tmp_path, fujin="quic://127.0.0.1:4848", http="https://127.0.0.1:9100")
    assert security_of(find_broker(data_dir=tmp_path)).ca == ""


def test_an_endpoint_is_read_as_its_protocol_wants() -> None:
    assert find_broker(endpoint="tcp://h:1").url("sspq") == "tcp://h:1"
    assert find_broker(endpoint="tls://h:1").url("fujin", "fujin_tcp") == "tls://h:1"
    assert find_broker(endpoint="grpcs://h:1").url("grpc") == "grpcs://h:1"
    with pytest.raises(Failure, match="needs the broker's grpc listener"):
        find_broker(endpoint="tcp://h:1").url("grpc")
