"""`headrace deadletters list|show|redrive`: what the broker gave up delivering, why, and back again."""

import base64
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.api import ApiClient
from headrace.cli.browse import PREVIEW
from headrace.cli.completion import complete_topic
from headrace.cli.content import content, headers
from headrace.cli.failure import Failure
from headrace.cli.output import Column, Output, escaped, progress
from headrace.cli.pipeline import Master, Memory
from headrace.cli.redriving import redrive_from_lake
from headrace.cli.render import clipped, number, payload, when
from headrace.cli.target import AsJson, Target, talks_to_broker
from headrace.cli.where import matching

PATH = "/api/dead-letters"
REDRIVE_MAX = 500
SLICES_A_SECOND = 10
OWN_HEADERS = "headrace-"
FROM_LAKE = "From a lake"
SHOWN = (
    "offset", "topic", "timestamp", "protocol", "message_id", "origin_topic", "origin_offset", "subscription",
    "attempts", "reason",
)  # fmt: skip

app = typer.Typer(no_args_is_help=True, help="Dead letters: list them, look at one, send them back.")

COLUMNS = (
    Column(key="offset", right=True),
    Column(key="timestamp_us", title="died", show=when),
    Column(key="origin_topic", title="topic"),
    Column(key="origin_offset", right=True),
    Column(key="subscription", right=True),
    Column(key="attempts", right=True),
    Column(key="reason"),
    Column(key="redriven", show=lambda redriven: "yes" if redriven else "no"),
    Column(key="bytes", title="value", show=lambda value: clipped(payload(value), PREVIEW)),
)

OfTopic = Annotated[
    str | None,
    typer.Option("--topic", autocompletion=complete_topic, help="Only those of this topic."),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Only those for which this holds, e.g. [cyan]reason = 'timeout' AND attempts > 3[/]. Columns: offset, "
        "topic, origin_topic, origin_offset, subscription, reason, attempts, timestamp, value.",
    ),
]


@app.command("list")
@talks_to_broker
def list_letters(
    target: Target,
    topic: OfTopic = None,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead letters with their origin and the reason."""
    with target.api() as api:
        found = chosen(api, topic, where, limit)
    rows = [printable(letter) for letter in found] if as_json else found
    Output(as_json=as_json).rows(COLUMNS, rows, empty="No dead letters.")


@app.command()
@talks_to_broker
def show(
    target: Target,
    offset: Annotated[int, typer.Argument(min=0, help="The dead letter's own offset, as `list` prints it.")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter whole."""
    with target.api() as api:
        found = api.get(PATH, {"from": offset, "limit": 1})["dead_letters"]
        if found and found[0]["offset"] == offset and found[0].get("truncated"):
            found[0] |= {"value": base64.b64encode(api.value(offset)).decode(), "text": None, "truncated": False}
    if not found or found[0]["offset"] != offset:
        raise Failure(
            f"there is no dead letter at offset {offset}", "`headrace deadletters list` prints their offsets."
        )
    letter = with_columns(found[0])
    lines = [f"[bold cyan]{name:14}[/] {escaped(text)}" for name, text in fields(letter)]
    Output(as_json=as_json).document(printable(letter), lines)


@app.command()
@talks_to_broker
def redrive(
    target: Target,
    topic: OfTopic = None,
    where: Where = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Publish them here instead of where they came from.")
    ] = None,
    rate: Annotated[int | None, typer.Option(metavar="N", min=1, help="Not more than N a second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent back.")] = False,
    lake: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Choose from this lake's table with Spark: conditions in Spark's SQL, any number of letters.",
            rich_help_panel=FROM_LAKE,
        ),
    ] = None,
    edits: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="COLUMN=SQL",
            help="Change key, value, headers or message_id on the way.",
            rich_help_panel=FROM_LAKE,
        ),
    ] = None,
    identity: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="A name for this redrive.", rich_help_panel=FROM_LAKE)
    ] = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to the topic they came from, or to another; each only once."""
    output = Output(as_json=as_json)
    if lake is not None:
        redrive_from_lake(
            target, lake, output,
            topic=topic, where=where, to=to, rate=rate, dry_run=dry_run, edits=edits or [], identity=identity,
            master=master, memory=memory,
        )  # fmt: skip
        return
    if edits or identity is not None:
        raise typer.BadParameter("--set and --id are for letters of a lake; name it with --lake")
    with target.api() as api:
        found = [letter for letter in chosen(api, topic, where, None) if not letter["redriven"]]
        offsets = [letter["offset"] for letter in found]
        if dry_run:
            rows = [printable(letter) for letter in found] if as_json else found
            output.rows(COLUMNS, rows)
            output.note(f"{number(len(found))} would be sent to {to or 'where they came from'}; nothing was done.")
            return
        sent, skipped = send_back(api, offsets, to, rate)
    where_to = escaped(to) if to else "where they came from"
    lines = [f"sent {number(sent)} back to {where_to}"]
    lines += [f"[yellow]skipped[/] offset {item['offset']}: {escaped(item['cause'])}" for item in skipped]
    output.document({"redriven": sent, "skipped": skipped}, lines)


def chosen(api: ApiClient, topic: str | None, where: str | None, limit: int | None) -> list[dict[str, Any]]:
    """The dead letters the options ask for, oldest first, with the columns of `--where`."""
    pages = api.pages(PATH, "dead_letters", {"topic": topic}, limit=None if where else limit)
    letters = (with_columns(letter) for letter in pages)
    found = matching(where, letters) if where else list(letters)
    return found if limit is None else found[:limit]


def send_back(
    api: ApiClient, offsets: Sequence[int], to: str | None, rate: int | None
) -> tuple[int, list[dict[str, Any]]]:
    """Have the broker publish these dead letters again, at most `rate` a second; how many it did, and which not."""
    sent = 0
    skipped: list[dict[str, Any]] = []
    began = time.monotonic()
    with progress("redriving", len(offsets)) as meter:
        for after_s, part in slices(offsets, rate):
            time.sleep(max(0.0, began + after_s - time.monotonic()))
            done = api.request("POST", f"{PATH}/redrive", {"offsets": part, "to": to})
            sent += done["redriven"]
            skipped += done["skipped"]
            meter(sent)
    return sent, skipped


def slices(offsets: Sequence[int], rate: int | None) -> Iterator[tuple[float, list[int]]]:
    """The offsets in portions, each with the second from the beginning at which it may go."""
    step = REDRIVE_MAX if rate is None else min(REDRIVE_MAX, max(1, rate // SLICES_A_SECOND))
    for first in range(0, len(offsets), step):
        yield (0.0 if rate is None else first / rate), list(offsets[first : first + step])


def with_columns(letter: dict[str, Any]) -> dict[str, Any]:
    """A dead letter with its value as bytes and the columns a condition may name."""
    value = content(letter)
    return letter | {"bytes": value, "value": payload(value), "timestamp": when(letter["timestamp_us"])}


def printable(letter: dict[str, Any]) -> dict[str, Any]:
    """The same without what JSON cannot hold."""
    return {name: value for name, value in letter.items() if name != "bytes"}


def fields(letter: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What there is to say about a dead letter, by name."""
    for name in SHOWN:
        if letter.get(name) is not None:
            yield name, str(letter[name])
    own = [header for header in headers(letter) if not header.startswith(OWN_HEADERS)]
    if own:
        yield "headers", "  ".join(own)
    yield "value", letter["value"]
