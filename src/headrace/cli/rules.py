"""Which options each protocol can carry, and what to say when one is asked for what it cannot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import typer

from headrace.cli.doors import PROTOCOLS
from headrace.cli.output import Output
from headrace.cli.target import DEV_KEY


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An option that only some protocols carry: what it is about, and what the others have instead."""

    protocols: Sequence[str]
    about: str
    instead: str = ""


RULES: Mapping[str, Rule] = {
    "--qos": Rule(
        protocols=("blipmq",), about="a quality of service", instead="The other protocols deliver at least once."
    ),
    "--retries": Rule(
        protocols=("sspq",),
        about="a message's own number of retries",
        instead="With the others max_attempts under [retry], or of the topic, counts.",
    ),
    "--header": Rule(protocols=("fujin", "grpcq"), about="headers"),
    "--service": Rule(protocols=("grpcq",), about="the name of a service"),
    "--action": Rule(protocols=("grpcq",), about="the name of a method"),
    "--id": Rule(protocols=("grpcq",), about="a message id"),
    "--subscription": Rule(
        protocols=("blipmq",),
        about="subscriptions by number",
        instead="With the others everybody shares the topic's one subscription.",
    ),
    "--keep": Rule(
        protocols=("blipmq",),
        about="subscriptions that end with their consumer",
        instead="With the others the subscription is shared and stays.",
    ),
    "--dead": Rule(
        protocols=("sspq",),
        about="a request for dead letters",
        instead="With the others consume the topic '$dead.TOPIC', or see `headrace deadletters`.",
    ),
    "--nack": Rule(
        protocols=("fujin", "grpcq"),
        about="negative acknowledgements",
        instead="With the others use --no-ack: what is not acknowledged comes again.",
    ),
    "--auto-commit": Rule(protocols=("fujin",), about="deliveries that settle themselves"),
    "--push": Rule(protocols=("fujin", "grpcq"), about="messages pushed to a reader"),
    "--pull": Rule(protocols=("fujin", "grpcq"), about="messages fetched in portions"),
}


KEYLESS = {"sspq": "SSPQ", "fujin": "Fujin"}


def tell_unused_key(protocol: str, key: str) -> None:
    """Say so when a key was given that nobody will look at: what follows is no sign that it is good."""
    if protocol in KEYLESS and key != DEV_KEY:
        Output().note(
            f"{KEYLESS[protocol]} has no keys: the one given is not sent and not checked; "
            "a client certificate (--cert) says who is there, if the broker asks for one"
        )


def check_options(protocol: str, given: Mapping[str, object]) -> None:
    """Refuse options that a protocol cannot carry; one that was not given is None, False or empty.

    Raises BadParameter, which ends the command with exit code 2.
    """
    for option, value in given.items():
        rule = RULES[option]
        absent = value is None or value is False or value == []
        if not absent and protocol not in rule.protocols:
            able = " and ".join(rule.protocols)
            verb = "knows" if len(rule.protocols) == 1 else "know"
            text = f"only {able} {verb} {rule.about}; {protocol} does not. {rule.instead}"
            raise typer.BadParameter(text.strip(), param_hint=option)


def check_protocol(protocol: str) -> str:
    """The name itself if it is a protocol's. Raises BadParameter."""
    if protocol not in PROTOCOLS:
        raise typer.BadParameter(f"{protocol!r} is not spoken here; {', '.join(PROTOCOLS)} are")
    return protocol


def check_topic(protocol: str, topic: str, queue: str) -> None:
    """Refuse a topic that a protocol cannot reach: an SSPQ door has only the one it keeps its queue in.

    Raises BadParameter.
    """
    if protocol == "sspq" and topic != queue:
        raise typer.BadParameter(
            f"SSPQ has one queue, which this broker keeps in the topic {queue!r}, not {topic!r} "
            "(it is set by sspq.topic; --config names the broker's file)",
            param_hint="TOPIC",
        )


def headers_of(given: Sequence[str]) -> list[tuple[str, str]]:
    """Headers written as `key=value`, in order. Raises BadParameter."""
    found = []
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{text!r} is not key=value", param_hint="--header")
        found.append((key, value))
    return found
