"""The life of one message drawn as a line of time. Takes what the API tells, gives lines with rich markup."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.cli.output import escaped
from headrace.cli.render import clipped, duration, payload, size, unwrapped, when

VALUE_WIDTH = 200
COLOURS = {
    "published": "cyan",
    "delivered": "blue",
    "acked": "green",
    "nacked": "yellow",
    "deferred": "yellow",
    "expired": "magenta",
    "dropped": "magenta",
    "dead": "bold red",
    "redriven": "cyan",
    "kill -9": "bold red",
}
ENDINGS = {"acked", "dead", "expired", "dropped"}


def life(message: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Who the message is, then everything that happened to it, each with the time since the one before."""
    value = unwrapped(message.get("text"), message["value"])
    identity = [f"offset [bold]{message['offset']}[/]", f"topic [bold]{escaped(message['topic'])}[/]", size(len(value))]
    if message.get("message_id"):
        identity.append(f"id {escaped(message['message_id'])}")
    yield "  ·  ".join(identity)
    yield f"[dim]{escaped(clipped(payload(value), VALUE_WIDTH))}[/]"
    yield ""
    began = message["timestamp_us"]
    yield _step(when(began), "published", f"over {message['protocol']}, qos {message['qos']}", last=not events)
    before = began
    for place, event in enumerate(events, 1):
        passed = "+" + duration(max(0, event["timestamp_us"] - before) / 1e6)
        before = event["timestamp_us"]
        yield _step(passed, event["event"], _about(event), last=place == len(events))


def _about(event: Mapping[str, Any]) -> str:
    parts = [f"subscription {event['subscription']}"] if event.get("subscription") else []
    if event.get("attempt"):
        parts.append(f"attempt {event['attempt']}")
    if event.get("reason"):
        parts.append(escaped(event["reason"]))
    about = ", ".join(parts)
    if event.get("copy_offset") is not None:
        about += f" → {escaped(event['copy_topic'])}, offset {event['copy_offset']}"
    return about


def _step(clock: str, name: str, about: str, *, last: bool) -> str:
    colour = COLOURS.get(name, "white")
    mark = "●" if name in ENDINGS or name == "published" else "○"
    line = "╰" if last and name != "published" else "├" if name != "published" else "╭"
    return f"[dim]{clock:>23}[/]  [dim]{line}─[/][{colour}]{mark} {name:10}[/] {about}"
