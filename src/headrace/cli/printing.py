"""One delivery as `headrace consume` prints it: raw, as a line of its fields, or as JSON."""

import base64
import string
from typing import Any

import typer

from headrace.cli.doors.door import Received
from headrace.cli.output import Output
from headrace.cli.render import payload

FIELDS = (
    "topic", "value", "size", "tag", "qos", "attempt", "offset", "retries", "id", "service", "action", "originator",
    "headers",
)  # fmt: skip


class Printer:
    """Prints deliveries into the results."""

    def __init__(self, output: Output, template: str | None) -> None:
        """Raises BadParameter for a template nobody can fill."""
        if template is not None:
            _check(template)
        self.output = output
        self._template = template

    def print(self, delivery: Received) -> None:
        """One delivery."""
        if self.output.as_json:
            self.output.json(as_document(delivery))
        elif self._template is not None:
            self.output.line(self._template.format(**_fields(delivery)))
        elif self.output.is_terminal:
            self.output.line(payload(delivery.value))
        else:
            self.output.raw(delivery.value)


def as_document(delivery: Received) -> dict[str, Any]:
    """Everything the protocol said, for scripts; what it does not say is left out."""
    found: dict[str, Any] = {"topic": delivery.topic}
    if delivery.tag is not None:
        found["tag"] = delivery.tag
    return found | delivery.told | {"value": base64.b64encode(delivery.value).decode(), "text": _text(delivery.value)}


def _check(template: str) -> None:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise typer.BadParameter(f"{template!r}: {error}", param_hint="--format") from error
    for name in names:
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            raise typer.BadParameter(f"there is no {{{name}}}; there are {known}", param_hint="--format")


def _fields(delivery: Received) -> dict[str, Any]:
    """The fields of a template; `-` for what the protocol does not say."""
    known = {
        "topic": delivery.topic,
        "value": payload(delivery.value),
        "size": len(delivery.value),
        "tag": "-" if delivery.tag is None else delivery.tag,
    }
    told = dict(delivery.told)
    if "headers" in told:
        told["headers"] = " ".join(f"{key}={value}" for key, value in told["headers"].items())
    return dict.fromkeys(FIELDS, "-") | told | known


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
