"""Deliveries as they are printed, whatever their protocol says of them."""

import json

import pytest

from headrace.cli.doors.door import Received
from headrace.cli.output import Output
from headrace.cli.printing import Printer

FULL = Received(
    topic="orders",
    value=b"\xff\x00",
    tag="0a",
    told={"attempt": 2, "offset": 7, "id": "x", "headers": {"a": "1", "b": "2"}},
)
BARE = Received(topic="sspq", value=b"hi", told={"retries": 3})


def test_json_holds_everything_that_was_said_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(Output(as_json=True), None)
    printer.print(FULL)
    printer.print(BARE)
    full, bare = map(json.loads, capsys.readouterr().out.splitlines())
    assert full == {"topic": "orders", "tag": "0a", "value": "/wA=", "text": None} | FULL.told
    assert bare == {"topic": "sspq", "retries": 3, "value": "aGk=", "text": "hi"}


def test_a_template_shows_what_is_not_said_as_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(Output(), "{value} {size} {tag} {attempt} {headers}")
    printer.print(FULL)
    printer.print(BARE)
    assert capsys.readouterr().out == "0xff00 2 0a 2 a=1 b=2\nhi 2 - - -\n"


def test_without_a_terminal_the_bytes_are_as_they_came(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Printer(Output(), None).print(FULL)
    assert capfdbinary.readouterr().out == b"\xff\x00\n"
