"""`headrace replay`: rows of the lake back into a topic, chosen by SQL."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.completion import complete_topic
from headrace.cli.output import Output, escaped
from headrace.cli.pipeline import Conf, Master, Memory
from headrace.cli.render import number
from headrace.cli.shipment import ship, show_preview
from headrace.cli.spark_session import DEFAULT_LAKE, spark_session, spark_settings
from headrace.cli.target import AsJson, Target, talks_to_broker

Lake = Annotated[Path, typer.Option("--lake", metavar="DIR", help="The lake.")]
Where = Annotated[
    str,
    typer.Option(
        metavar="SQL",
        help="Which rows: a condition in Spark's SQL over the table's columns, e.g. [cyan]topic = 'orders' AND "
        "timestamp > now() - INTERVAL 1 HOUR[/].",
    ),
]
Edits = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="COLUMN=SQL", help="Change key, value, headers or message_id on the way; may be repeated."
    ),
]
Rate = Annotated[int | None, typer.Option(metavar="N", min=1, help="Not more than N a second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be sent, and how much.")]
Identity = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="A name for this replay; the same name is never sent twice."),
]


@talks_to_broker
def replay(
    target: Target,
    where: Where,
    to: Annotated[str, typer.Option(metavar="TOPIC", autocompletion=complete_topic, help="Publish them here.")],
    lake: Lake = DEFAULT_LAKE,
    table: Annotated[str, typer.Option(metavar="NAME", help="The table to choose from.")] = "messages",
    edits: Edits = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    identity: Identity = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Publish rows of a table again, each once; a replay that was stopped goes on when the command is repeated."""
    from headrace.spark.back.journey import preview
    from headrace.spark.back.replay import Replay

    output = Output(as_json=as_json)
    settings = spark_settings(target, lake)
    wanted = Replay(table=table, where=where, to=to, edits=tuple(edits or ()))
    with spark_session("headrace replay", settings, master, memory, conf) as spark:
        if dry_run:
            show_preview(output, preview(wanted.choose(spark, settings.lake)), rate)
            return
        done = ship(
            output, settings, spark, wanted.wish, lambda: wanted.choose(spark, settings.lake),
            identity=identity, rate=rate,
        )  # fmt: skip
    if done is None:
        output.document({"id": None, "rows": 0, "sent": 0}, ["no row is chosen; nothing was sent"])
        return
    line = f"sent {number(done.sent)} rows to {escaped(to)}"
    if done.resumed:
        line += f", {number(done.rows - done.sent)} before"
    if not done.sent:
        line = f"all {number(done.rows)} rows were sent before; name another --id to send them again"
    output.document({"id": done.id, "rows": done.rows, "sent": done.sent, "to": to}, [line])
