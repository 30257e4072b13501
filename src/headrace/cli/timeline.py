"""The life of one message drawn as a line of time. Takes what the API tells, gives lines with rich markup."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.cli.browse import door_of
from headrace.cli.content import content, headers
from headrace.cli.output import escaped
from headrace.cli.render import clipped, duration, payload, size, when

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
    value = content(message)
    identity = [f"offset [bold]{message['offset']}[/]", f"topic [bold]{escaped(message['topic'])}[/]", size(len(value))]
    if message.get("message_id"):
        identity.append(f"id {escaped(message['message_id'])}")
    yield "  ·  ".join(identity)
    yield f"[dim]{escaped(clipped(payload(value), VALUE_WIDTH))}[/]"
    if told := headers(message):
        yield f"[dim]{escaped(clipped('  '.join(told), VALUE_WIDTH))}[/]"
    yield ""
    began = message["timestamp_us"]
    yield _step(when(began), "published", f"over {message['protocol']}, qos {message['qos']}", last=not events)
    before = began
    for place, event in enumerate(events, 1):
        passed = "+" + duration(max(0, event["timestamp_us"] - before) / 1e6)
        before = event["timestamp_us"]
        yield _step(passed, event["event"], _about(event), last=place == len(events))


def life_in_short(message: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """The same on one line: what happened, and over which door."""
    steps = [f"published over {message['protocol']}"]
    for event in events:
        door = f" over {escaped(door_of(event['name']))}" if event.get("name") is not None else ""
        steps.append(f"{event['event']}{door}")
    return f"{escaped(message['topic'])} {message['offset']}: " + " · ".join(steps)


def _about(event: Mapping[str, Any]) -> str:
    parts = _reader(event)
    if event.get("attempt"):
        parts.append(f"attempt {event['attempt']}")
    if event.get("reason"):
        parts.append(escaped(event["reason"]))
    about = ", ".join(parts)
    if event.get("copy_offset") is not None:
        about = f"{about} → {escaped(event['copy_topic'])}, offset {event['copy_offset']}".lstrip()
    return about


def _reader(event: Mapping[str, Any]) -> list[str]:
    """At which door, by which subscription. A shared one is known by its name, which is the door's."""
    if not event.get("subscription"):
        return []
    name = event.get("name")
    door = [f"over {escaped(door_of(name))}"] if name is not None else []
    return door if name else [*door, f"subscription {event['subscription']}"]


def _step(clock: str, name: str, about: str, *, last: bool) -> str:
    colour = COLOURS.get(name, "white")
    mark = "●" if name in ENDINGS or name == "published" else "○"
    line = "╰" if last and name != "published" else "├" if name != "published" else "╭"
    return f"[dim]{clock:>23}[/]  [dim]{line}─[/][{colour}]{mark} {name:10}[/] {about}"
