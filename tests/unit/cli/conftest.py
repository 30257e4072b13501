"""Fixtures of the command line's tests."""

from collections.abc import Iterator

import pytest

from tests.unit.cli.doubles import FakeApi, Shell


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    yield fake
    fake.close()


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.delenv("HEADRACE_KEY", raising=False)
    return Shell(capsys)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to a terminal, wide and without colours."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("headrace.cli.output.Output.is_terminal", True)
