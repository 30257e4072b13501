"""`headrace topics`, `subscriptions` and `peek`: what is in the broker, without consuming anything."""

from typing import Annotated, Any

import typer

from headrace.cli.api import segment
from headrace.cli.completion import complete_topic
from headrace.cli.content import content
from headrace.cli.output import Column, Output, escaped
from headrace.cli.render import clipped, number, payload, when
from headrace.cli.target import AsJson, Target, talks_to_broker

PREVIEW = 120
OWN_DOOR = "blipmq"
"""Where subscriptions are a consumer's own and have no name."""

TOPIC_COLUMNS = (
    Column(key="topic"),
    Column(key="messages", right=True, show=number),
    Column(key="first_offset", title="first", right=True),
    Column(key="next_offset", title="next", right=True),
    Column(key="subscriptions", title="readers", right=True),
    Column(key="shared_by", show=lambda names: ", ".join(names or ()) or "-"),
    Column(key="pending", right=True, show=number),
    Column(key="in_flight", right=True, show=number),
    Column(key="dead", right=True, show=number),
)
DOOR_COLOURS = {"blipmq": "cyan", "sspq": "yellow", "fujin": "magenta", "grpcq": "green"}
SUBSCRIPTION_COLUMNS = (
    Column(key="id", right=True),
    Column(key="topic"),
    Column(key="door", colours=DOOR_COLOURS),
    Column(key="qos", right=True),
    Column(key="pending", right=True, show=lambda count: count_text(count)),
    Column(key="in_flight", right=True, show=lambda count: count_text(count)),
    Column(key="redelivered", title="again", right=True, show=lambda count: count_text(count)),
    Column(key="dead", right=True, show=lambda count: count_text(count)),
    Column(key="dropped", right=True, show=lambda count: count_text(count)),
    Column(key="expired", right=True, show=lambda count: count_text(count)),
)
MESSAGE_COLUMNS = (
    Column(key="offset", right=True),
    Column(key="timestamp_us", title="time", show=when),
    Column(key="protocol"),
    Column(key="states", title="subscriptions", show=lambda states: states_text(states)),
    Column(key="value", show=lambda value: clipped(payload(value), PREVIEW)),
)


@talks_to_broker
def topics(
    target: Target,
    as_json: AsJson = False,
) -> None:
    """List the topics: how much is in them and what waits."""
    with target.api() as api:
        found = list(api.listed("/api/topics", "topics"))
    Output(as_json=as_json).rows(TOPIC_COLUMNS, found, empty="No topics yet: a topic begins with its first message.")


@talks_to_broker
def subscriptions(
    target: Target,
    remove: Annotated[int | None, typer.Option(metavar="ID", min=1, help="Remove this subscription.")] = None,
    remove_reader: Annotated[
        str | None, typer.Option(metavar="NAME", help="Forget this pipeline, so that nothing is kept for it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the subscriptions and the pipelines that follow the log, or remove one together with its place."""
    output = Output(as_json=as_json)
    with target.api() as api:
        if remove is not None:
            api.request("DELETE", f"/api/subscriptions/{remove}")
            output.document({"removed": remove}, [f"removed subscription {remove}"])
            return
        if remove_reader is not None:
            api.request("DELETE", f"/api/readers/{segment(remove_reader)}")
            output.document({"removed": remove_reader}, [f"removed reader {escaped(remove_reader)}"])
            return
        answer = api.get("/api/subscriptions")
        found, readers = answer["subscriptions"], answer.get("readers", [])
        if answer.get("next"):
            found += api.listed("/api/subscriptions", "subscriptions", answer["next"])
        if answer.get("readers_next"):
            readers += api.listed("/api/readers", "readers", answer["readers_next"])
    if not as_json:
        found = [item | {"door": door_of(item["name"])} for item in found]
        readers = [reader_row(reader) for reader in readers]
    found += readers
    output.rows(SUBSCRIPTION_COLUMNS, found, empty="No subscriptions.")


@talks_to_broker
def peek(
    target: Target,
    topic: Annotated[str, typer.Argument(autocompletion=complete_topic, help="The topic to look into.")],
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset to show.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many messages at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show messages of a topic, and how far each subscription is with them, without consuming any."""
    output = Output(as_json=as_json)
    with target.api() as api:
        found = api.pages(f"/api/topics/{segment(topic)}/messages", "messages", {"from": start}, limit=limit)
        rows = found if as_json else [shown(message) for message in found]
        output.rows(MESSAGE_COLUMNS, rows, empty=f"Nothing in {topic} from offset {start} on.")


def door_of(name: str | None) -> str:
    """Who reads a subscription: its name if it is shared, for that is the door's, else the one door without names."""
    return "-" if name is None else name or OWN_DOOR


def reader_row(reader: dict[str, Any]) -> dict[str, Any]:
    """A pipeline as a line among subscriptions: what it has yet to come to is pending."""
    topics = "all" if reader["topics"] is None else ", ".join(reader["topics"])
    if reader.get("topics_left_out"):
        topics += f" and {number(reader['topics_left_out'])} more"
    return {"topic": topics, "door": reader["reader"], "pending": reader["lag"]}


def count_text(count: int | None) -> str:
    """A count, where there is one."""
    return "-" if count is None else number(count)


def shown(message: dict[str, Any]) -> dict[str, Any]:
    """A message of the API with what it says as bytes, ready to print."""
    return message | {"value": content(message)}


def states_text(states: dict[str, str] | None) -> str:
    """How far each subscription is with a message: `1 acked, 2 pending`."""
    return ", ".join(f"{subscription} {state}" for subscription, state in (states or {}).items()) or "-"
