"""The command as a whole: version, help, exit codes, and what it costs to start."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace import __version__
from tests.unit.cli.doubles import Shell

COMMANDS = (
    "serve", "demo", "bench", "publish", "consume", "topics", "subscriptions", "peek", "trace", "deadletters", "log",
    "keys", "doctor",
)  # fmt: skip


def test_the_version_is_printed(shell: Shell) -> None:
    assert shell("--version") == 0
    assert shell.out == f"headrace {__version__}\n"


def test_help_names_every_command(shell: Shell) -> None:
    assert shell("--help") == 0
    assert all(f"│ {name} " in shell.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(shell: Shell, name: str) -> None:
    assert shell(name, "--help") == 0
    assert f"headrace {name}" in shell.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("peek",),
        ("topics", "--no-such-option"),
        ("peek", "orders", "--from", "minus-one"),
        ("topics", "--endpoint", "nonsense"),
        ("consume", "orders", "--qos", "2"),
        ("publish", "orders", "hi", "--protocol", "kafka"),
        ("bench", "--protocol", "fujin"),
        ("publish", "orders", "hi", "--file", "x", "--endpoint", "tcp://127.0.0.1:1"),
        ("consume", "orders", "--format", "{nope}", "--endpoint", "tcp://127.0.0.1:1"),
        ("consume", "orders", "--format", "{", "--endpoint", "tcp://127.0.0.1:1"),
        ("bench", "--sync", "none", "--endpoint", "tcp://127.0.0.1:1"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_says_why(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell(*arguments) == 2
    assert shell.err
    assert not shell.out


@pytest.mark.parametrize("arguments", [("topics",), ("publish", "orders", "hi"), ("consume", "orders", "-n", "1")])
def test_nobody_there_is_explained_without_a_traceback(shell: Shell, arguments: tuple[str, ...]) -> None:
    scheme = "http" if arguments == ("topics",) else "tcp"
    assert shell(*arguments, "--endpoint", f"{scheme}://127.0.0.1:1") == 1
    assert f"no broker answers at {scheme}://127.0.0.1:1" in shell.err
    assert "headrace serve --dev" in shell.err
    assert "Traceback" not in shell.err


def test_an_unreadable_file_is_named(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.mkdir()
    assert shell("serve", "--config", str(config)) == 1
    assert str(config) in shell.err


def test_a_wrong_configuration_stops_serve_with_the_key(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[log]\nsink = "always"\n')
    assert shell("serve", "--config", str(config)) == 1
    assert "log.sink" in shell.err
    assert "did you mean log.sync?" in shell.err


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_starting_loads_no_broker(argument: str) -> None:
    program = (
        "import sys; from headrace.cli import main; main([sys.argv[1]]);"
        "print([name for name in sys.modules if name.startswith('headrace.') and not name.startswith('headrace.cli')])"
    )
    done = subprocess.run([sys.executable, "-c", program, argument], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['headrace.model', 'headrace.model.errors']"
