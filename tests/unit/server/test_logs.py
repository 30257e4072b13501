"""One event a line, for machines and for people, without secrets."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from headrace.server.logs import HIDDEN_FIELDS, setup


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("headrace")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_its_session() -> None:
    setup(stream := io.StringIO())
    log = logging.getLogger("headrace.tcp")
    log.info("tcp.opened", extra={"session": "blipmq-7", "peer": "127.0.0.1", "count": 3})
    log.info("node.ready")
    first, second = lines(stream)
    assert (first["event"], first["session"], first["peer"], first["count"]) == (
        "tcp.opened",
        "blipmq-7",
        "127.0.0.1",
        3,
    )
    assert (first["level"], first["logger"]) == ("info", "headrace.tcp")
    assert str(first["time"]).endswith("Z")
    assert second["session"] == "-"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_keys_and_payloads_are_struck_out_whoever_logs_them(stream: io.StringIO) -> None:
    setup(stream)
    logging.getLogger("headrace").warning("careless", extra=dict.fromkeys(HIDDEN_FIELDS, "hunter2"))
    assert "hunter2" not in stream.getvalue()
    assert "authorization" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_what_a_peer_sends_cannot_forge_lines_or_command_the_terminal(stream: io.StringIO) -> None:
    setup(stream)
    logging.getLogger("headrace").info("http.request", extra={"path": "/x\n{}\x1b[2J"})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b[2J" not in text


def test_a_terminal_gets_short_lines() -> None:
    setup(stream := Terminal())
    logging.getLogger("headrace").info("tcp.opened", extra={"session": "blipmq-7"})
    assert "tcp.opened" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_an_exception_is_kept_with_its_event(stream: io.StringIO) -> None:
    setup(stream)
    try:
        raise ValueError("the cause")
    except ValueError:
        logging.getLogger("headrace").exception("http.failed")
    assert "the cause" in stream.getvalue()


def test_libraries_are_heard_from_warnings_on_and_setting_up_again_does_not_double() -> None:
    setup(io.StringIO())
    setup(stream := io.StringIO())
    logging.getLogger("uvicorn.error").info("Started")
    logging.getLogger("uvicorn.error").warning("odd")
    logging.getLogger("headrace").debug("quiet")
    assert [line["event"] for line in lines(stream)] == ["odd"]
