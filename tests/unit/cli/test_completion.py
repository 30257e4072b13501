"""Topic names on the tab key."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.doubles import FakeApi, Shell


def complete(shell: Shell, monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    assert shell() == 0
    assert not shell.err
    return shell.out.split()


def test_topics_are_completed_from_the_broker_named_so_far(
    shell: Shell, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answer("/api/topics", {"topics": [{"topic": name} for name in ("orders", "orders.eu", "mail")]})
    (tmp_path / "endpoints.json").write_text(json.dumps({"http": api.url}))
    assert complete(shell, monkeypatch, f"headrace peek --data-dir {tmp_path} ord") == ["orders", "orders.eu"]


def test_without_a_broker_nothing_is_offered_and_nothing_said(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete(shell, monkeypatch, f"headrace peek --data-dir {tmp_path} ord") == []


def test_commands_are_completed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(shell, monkeypatch, "headrace dead") == ["deadletters"]
