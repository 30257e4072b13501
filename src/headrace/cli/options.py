"""Options and arguments that commands about messages share."""

from typing import Annotated

import typer

from headrace.cli.completion import complete_topic

SPOKEN = "blipmq"

Topic = Annotated[str, typer.Argument(autocompletion=complete_topic, help="The topic.")]
Qos = Annotated[int, typer.Option(min=0, max=1, help="0 at most once, 1 at least once.")]


def _only_spoken(protocol: str) -> str:
    if protocol != SPOKEN:
        raise typer.BadParameter(f"{protocol!r} is not spoken yet; {SPOKEN} is")
    return protocol


ProtocolName = Annotated[
    str, typer.Option("--protocol", callback=_only_spoken, help=f"The protocol to speak; so far {SPOKEN}.")
]
