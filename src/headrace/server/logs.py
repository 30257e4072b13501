"""Structured logging: one event a line, JSON for machines, short coloured lines for a terminal.

An event is logged as its stable dotted name, with what it is about in `extra`:

    log.info("tcp.opened", extra={"session": "blipmq-7", "peer": "127.0.0.1"})

Every line names a session; what belongs to none says so. Payloads and keys are never written: the names they would
have are struck out here, whoever forgot.
"""

import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

NO_SESSION = "-"
HIDDEN = "[hidden]"
HIDDEN_FIELDS = frozenset({"api_key", "authorization", "body", "credential", "key", "password", "payload", "value"})

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; what JSON cannot hold is written as text."""
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        line.update(fields(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class ShortLines(logging.Formatter):
    """`12:00:01.123 tcp.opened session=blipmq-7 peer=127.0.0.1`, with colours."""

    def format(self, record: logging.LogRecord) -> str:
        """The record for a person at a terminal; nothing in it can command the terminal."""
        clock = _time(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        colour = _COLOURS.get(record.levelno, _BOLD)
        pairs = "".join(f" {_DIM}{name}={_PLAIN}{_printable(value)}" for name, value in fields(record).items())
        line = f"{_DIM}{clock}{_PLAIN} {colour}{_printable(record.getMessage())}{_PLAIN}{pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def setup(stream: TextIO | None = None, *, level: int = logging.INFO) -> logging.Handler:
    """Send what headrace logs to `stream` (standard error), in the form that suits it. Returns the handler.

    Calling it again replaces the former handler. Libraries are heard from warnings on.
    """
    stream = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ShortLines() if stream.isatty() else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace").setLevel(level)
    logging.getLogger("hpack").setLevel(logging.WARNING)  # below that it writes down every header, keys included
    return handler


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What the event is about: its session first, then the rest of `extra`."""
    given = dict(_extra(record))
    return {"session": given.pop("session", NO_SESSION), **given}


def _extra(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    for name, value in vars(record).items():
        if name not in _STANDARD:
            yield name, HIDDEN if name.lower() in HIDDEN_FIELDS else value


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _printable(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text)
