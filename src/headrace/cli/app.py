"""The `headrace` command: which commands there are and where they live."""

import sys
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli import (
    browse,
    consume,
    deadletters,
    demo,
    doctor,
    keys,
    ledger,
    load,
    logs,
    pipeline,
    publish,
    replay,
    serve,
    trace,
)

RUN = "Run"
MESSAGES = "Messages"
LOOK = "Look inside"
CARE = "Care"

app = typer.Typer(
    name="headrace",
    help="A message broker: several protocols over one durable log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(rich_help_panel=RUN)(serve.serve)
app.command(rich_help_panel=RUN)(demo.demo)
app.command(rich_help_panel=RUN)(load.bench)
app.command(rich_help_panel=MESSAGES)(publish.publish)
app.command(rich_help_panel=MESSAGES)(consume.consume)
app.command(rich_help_panel=MESSAGES)(replay.replay)
app.command(rich_help_panel=LOOK)(browse.topics)
app.command(rich_help_panel=LOOK)(browse.subscriptions)
app.command(rich_help_panel=LOOK)(browse.peek)
app.command(rich_help_panel=LOOK)(trace.trace)
app.command(rich_help_panel=LOOK)(ledger.ledger)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=LOOK)
app.add_typer(deadletters.app, name="deadletters", rich_help_panel=LOOK)
app.add_typer(logs.app, name="log", rich_help_panel=CARE)
app.add_typer(keys.app, name="keys", rich_help_panel=CARE)
app.command(rich_help_panel=CARE)(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"headrace {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message broker: several protocols over one durable log."""
