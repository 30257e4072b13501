"""`keys new|hash`: what is printed must let the key in."""

import io
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.auth import Identity, Keyring
from headrace.config import load
from tests.unit.cli.doubles import Shell


def admitted(text: str, key: str, tmp_path: Path) -> Identity | None:
    config = tmp_path / "headrace.toml"
    config.write_text(text)
    return Keyring.from_settings(load(config).auth.api_keys).check(key.encode())


def test_a_new_key_opens_the_door_its_entry_describes(shell: Shell, tmp_path: Path) -> None:
    assert shell("keys", "new", "--name", 'bob "the" builder', "--publish", "orders.*", "--publish", "mail") == 0
    lines = [line.strip() for line in shell.out.splitlines()]
    key = next(line for line in lines if line.startswith("hr_"))
    identity = admitted("\n".join(lines[lines.index("[auth]") :]), key, tmp_path)
    assert identity is not None
    assert identity.owner == 'bob "the" builder'
    assert [identity.may_publish(topic) for topic in ("orders.eu", "mail", "other")] == [True, True, False]
    assert not identity.may_subscribe("mail")


def test_a_key_without_scopes_may_do_everything(shell: Shell, tmp_path: Path) -> None:
    assert shell("keys", "new", "--json") == 0
    (made,) = shell.documents
    identity = admitted(f'[auth]\napi_keys = ["{made["entry"]["hash"]}"]', made["key"], tmp_path)
    assert identity is not None
    assert identity.is_unrestricted


def test_no_two_keys_are_alike(shell: Shell) -> None:
    made = []
    for _ in range(2):
        shell("keys", "new", "--json")
        made.append(shell.documents[0])
    assert made[0]["key"] != made[1]["key"]
    assert made[0]["entry"] != made[1]["entry"]


def test_a_key_is_hashed_from_standard_input(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("my own key\n"))
    assert shell("keys", "hash") == 0
    assert "my own key" not in shell.out
    assert tomllib.loads(shell.out)
    assert admitted(f"[auth]\n{shell.out}", "my own key", tmp_path) is not None


@pytest.mark.parametrize(
    ("key", "says"), [("x" * 15, "can be found out"), ("x" * 16, "may be guessed"), ("x" * 32, "")]
)
def test_a_short_key_is_hashed_with_a_warning(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, key: str, says: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{key}\n"))
    assert shell("keys", "hash") == 0
    assert says in shell.err
    assert bool(shell.err) is bool(says)
    assert key not in shell.err


def test_nothing_on_standard_input_is_an_error(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert shell("keys", "hash") == 1
    assert "no key on standard input" in shell.err
