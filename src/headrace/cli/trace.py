"""`headrace trace`: the life of one message."""

from typing import Annotated, Any

import typer

from headrace.cli.api import ApiClient, Missing, segment
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
        found = _found(api, f"/api/trace/{segment(which)}")
    output = Output(as_json=as_json)
    output.document(found, life(found["message"], found["events"]))
    if not found["complete"]:
        output.note(f"The log was read up to offset {found['walked_to']}; more may have happened since.")


def _found(api: ApiClient, path: str) -> Any:
    """The life at this path, however far into the log the broker has to look for it."""
    start: int | None = None
    while True:
        try:
            return api.get(path, {"from": start})
        except Missing as missing:
            if missing.next is None:
                raise
            start = missing.next
