"""The `headrace` command: which commands there are and where they live."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

from headrace import __version__

RUN = "Run"
MESSAGES = "Messages"
LOOK = "Look inside"
CARE = "Care"


class Command(NamedTuple):
    """A command, or several under one name, and the module of this package it lives in."""

    name: str
    panel: str
    module: str
    attribute: str


COMMANDS = (
    Command("serve", RUN, "serve", "serve"),
    Command("demo", RUN, "demo", "demo"),
    Command("bench", RUN, "load", "bench"),
    Command("publish", MESSAGES, "publish", "publish"),
    Command("consume", MESSAGES, "consume", "consume"),
    Command("replay", MESSAGES, "replay", "replay"),
    Command("topics", LOOK, "browse", "topics"),
    Command("subscriptions", LOOK, "browse", "subscriptions"),
    Command("peek", LOOK, "browse", "peek"),
    Command("trace", LOOK, "trace", "trace"),
    Command("ledger", LOOK, "ledger", "ledger"),
    Command("pipeline", LOOK, "pipeline", "app"),
    Command("deadletters", LOOK, "deadletters", "app"),
    Command("log", CARE, "logs", "app"),
    Command("keys", CARE, "keys", "app"),
    Command("doctor", CARE, "doctor", "doctor"),
)


def new_app(arguments: Sequence[str]) -> typer.Typer:
    """The command line for these arguments: the one command they name is all that is loaded, else all of them are."""
    app = typer.Typer(
        name="headrace",
        help="A message broker: several protocols over one durable log.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for command in [each for each in COMMANDS if [each.name] == list(arguments[:1])] or COMMANDS:
        found = getattr(import_module(f"headrace.cli.{command.module}"), command.attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=command.name, rich_help_panel=command.panel)
        else:
            app.command(command.name, rich_help_panel=command.panel)(found)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"headrace {__version__}\n")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message broker: several protocols over one durable log."""
