"""`headrace trace`: the life of one message."""

from typing import Annotated

import typer

from headrace.cli.api import segment
from headrace.cli.output import Output
from headrace.cli.target import AsJson, Target, talks_to_broker


@talks_to_broker
def trace(
    target: Target,
    which: Annotated[str, typer.Argument(metavar="OFFSET|ID", help="The message's offset, or its publisher's id.")],
    as_json: AsJson = False,
) -> None:
    """Tell the life of one message: published, delivered, settled, each with its time."""
    from headrace.cli.timeline import life

    with target.api() as api:
        found = api.get(f"/api/trace/{segment(which)}")
    output = Output(as_json=as_json)
    output.document(found, life(found["message"], found["events"]))
    if not found["complete"]:
        output.note(f"The log was read up to offset {found['walked_to']}; more may have happened since.")
