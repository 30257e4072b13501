"""Options and arguments of the commands about messages."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.completion import complete_topic
from headrace.cli.doors import PROTOCOLS
from headrace.cli.printing import FIELDS
from headrace.cli.rules import check_protocol

OF_PROTOCOLS = "What only some protocols carry"
DEFAULT_ACTION = "Publish"
DEFAULT_RETRIES = 3
RETRIES_MAX = 255

Topic = Annotated[
    str, typer.Argument(autocompletion=complete_topic, help="The topic; over sspq that of its one queue.")
]
ProtocolName = Annotated[
    str,
    typer.Option(
        "--protocol",
        "-p",
        metavar="NAME",
        callback=check_protocol,
        autocompletion=lambda incomplete: [name for name in PROTOCOLS if name.startswith(incomplete)],
        help=f"The protocol to speak: {', '.join(PROTOCOLS)}.",
    ),
]
Qos = Annotated[
    int | None,
    typer.Option(
        min=0, max=1, help="blipmq: 0 at most once, 1 at least once.", show_default="1", rich_help_panel=OF_PROTOCOLS
    ),
]

# publish

Messages = Annotated[list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="The messages.")]
InputFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="Take messages from a file, one a line; - is standard input."),
]
Repeat = Annotated[
    int | None, typer.Option(min=1, help="Stop after so many; messages given as arguments are repeated in turn.")
]
Rate = Annotated[int | None, typer.Option("--rate", min=1, help="Not more than so many a second.")]
Retries = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=RETRIES_MAX,
        help="sspq: how often to try again, 255 for ever.",
        show_default=str(DEFAULT_RETRIES),
        rich_help_panel=OF_PROTOCOLS,
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="KEY=VALUE",
        help="fujin, grpcq: a header, or metadata; may be repeated.",
        rich_help_panel=OF_PROTOCOLS,
    ),
]
Service = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="grpcq: the service it is for, which grpcq calls topic.",
        show_default="the topic's name",
        rich_help_panel=OF_PROTOCOLS,
    ),
]
Action = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="grpcq: the method it is for.", show_default=DEFAULT_ACTION, rich_help_panel=OF_PROTOCOLS
    ),
]
MessageId = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="grpcq: the message's id, for a single one; `headrace trace ID` finds it.",
        rich_help_panel=OF_PROTOCOLS,
    ),
]

# consume

Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")]
Ack = Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was printed.")]
Template = Annotated[
    str | None,
    typer.Option("--format", metavar="TEXT", help=f"How to print one, with {{name}} for {', '.join(FIELDS)}."),
]
SubscriptionId = Annotated[
    int | None,
    typer.Option(
        metavar="ID",
        min=1,
        help="blipmq: go on with this subscription instead of a new one.",
        rich_help_panel=OF_PROTOCOLS,
    ),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep", help="blipmq: leave the new subscription in the broker at the end.", rich_help_panel=OF_PROTOCOLS
    ),
]
Dead = Annotated[bool, typer.Option("--dead", help="sspq: the queue's dead letters.", rich_help_panel=OF_PROTOCOLS)]
Nack = Annotated[
    bool,
    typer.Option("--nack", help="fujin, grpcq: say that what was printed failed.", rich_help_panel=OF_PROTOCOLS),
]
AutoCommit = Annotated[
    bool,
    typer.Option("--auto-commit", help="fujin: the delivery itself acknowledges.", rich_help_panel=OF_PROTOCOLS),
]
Push = Annotated[
    bool | None,
    typer.Option(
        "--push/--pull",
        help="fujin, grpcq: let the broker send, or fetch.",
        show_default="push; with --count pull, which takes no more than that",
        rich_help_panel=OF_PROTOCOLS,
    ),
]
