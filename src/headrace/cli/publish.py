"""`headrace publish`: messages into a topic, over any protocol; durable when it returns where that can be told."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli import render
from headrace.cli.failure import Failure
from headrace.cli.options import (
    DEFAULT_ACTION,
    DEFAULT_RETRIES,
    Action,
    Header,
    InputFile,
    MessageId,
    Messages,
    ProtocolName,
    Qos,
    Rate,
    Repeat,
    Retries,
    Service,
    Topic,
)
from headrace.cli.output import Meter, Output, escaped, progress
from headrace.cli.rules import check_options, check_topic, headers_of, tell_unused_key
from headrace.cli.target import AsJson, Target, talks_to_broker

if TYPE_CHECKING:
    from headrace.cli.doors.door import Outgoing, Publisher

LONG = 1000


def _check(
    protocol: str,
    messages: list[str] | None,
    count: int | None,
    header: list[str] | None,
    message_id: str | None,
    **given: object,
) -> None:
    """Refuse what the protocol cannot carry, and what no message can be. Raises BadParameter."""
    own = {f"--{name}": given[name] for name in ("qos", "retries", "service", "action")}
    check_options(protocol, own | {"--header": header, "--id": message_id})
    headers_of(header or [])
    if message_id is not None and (count or len(messages or ())) != 1:
        raise typer.BadParameter("an id names one message; give one as argument", param_hint="--id")


@partial(talks_to_broker, check=_check)
def publish(
    target: Target,
    topic: Topic,
    messages: Messages = None,
    file: InputFile = None,
    count: Repeat = None,
    rate: Rate = None,
    protocol: ProtocolName = "blipmq",
    qos: Qos = None,
    retries: Retries = None,
    header: Header = None,
    service: Service = None,
    action: Action = None,
    message_id: MessageId = None,
    as_json: AsJson = False,
) -> None:
    """Publish messages and return when the broker has them on disk.

    SSPQ has no reply to a message: over it the command returns when they are on their way.
    """
    from headrace.cli.doors.door import Outgoing

    source = Source(messages or [], _input(messages, file), count, rate)
    check_topic(protocol, topic, target.sspq_topic)
    tell_unused_key(protocol, target.key)
    asked = Outgoing(
        topic=topic,
        qos=1 if qos is None else qos,
        retries=DEFAULT_RETRIES if retries is None else retries,
        headers=headers_of(header or []),
        service=service or topic,
        action=action or DEFAULT_ACTION,
        message_id=message_id or "",
    )
    sent = Sent(topic, protocol)
    try:
        asyncio.run(_publish(target, asked, source, sent))
    except (Failure, ValueError) as error:
        advice = error.advice if isinstance(error, Failure) else ""
        before = f" ({render.number(sent.count)} before that are {sent.state})" if sent.count else ""
        raise Failure(f"{error}{before}", advice) from error
    Output(as_json=as_json).document(sent.summary(), [sent.line()])


def _input(messages: list[str] | None, file: Path | None) -> Path | None:
    """The file to read messages from; None when they are arguments. Raises BadParameter."""
    if messages and file is not None:
        raise typer.BadParameter("give messages as arguments or --file, not both")
    if not messages and file is None:
        if sys.stdin.isatty():
            raise typer.BadParameter("give messages as arguments, with --file, or on standard input")
        return Path("-")
    return file


@dataclass(frozen=True)
class Source:
    """Where the messages come from, and how fast."""

    messages: list[str]
    file: Path | None
    count: int | None
    rate: int | None

    @property
    def total(self) -> int | None:
        """How many there will be, if that is known."""
        return self.count or len(self.messages) or None

    @property
    def is_long(self) -> bool:
        """Whether somebody may want to watch."""
        return self.total is None or self.total > LONG or self.rate is not None

    def batches(self, held: ExitStack) -> AsyncIterator[list[bytes]]:
        """The messages; a file stays open until `held` is closed."""
        from headrace.cli.sources import from_arguments, from_stream, paced

        if self.file is None:
            given = from_arguments([message.encode() for message in self.messages], self.count)
        elif str(self.file) == "-":
            given = from_stream(sys.stdin.buffer, self.count)
        else:
            given = from_stream(held.enter_context(self.file.open("rb")), self.count)
        return paced(given, self.rate)


@dataclass
class Sent:
    """What was published. `durable` is whether the protocol's reply promised so."""

    topic: str
    protocol: str
    durable: bool = True
    count: int = 0
    size: int = 0
    began: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """What is known of them."""
        return "durable" if self.durable else "on their way"

    def add(self, batch: list[bytes]) -> None:
        """Count a batch that the broker has confirmed."""
        self.count += len(batch)
        self.size += sum(map(len, batch))
        self.seconds = time.perf_counter() - self.began

    def summary(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "topic": self.topic,
            "protocol": self.protocol,
            "published": self.count,
            "durable": self.durable,
            "bytes": self.size,
            "seconds": round(self.seconds, 6),
            "msgs_per_s": round(self.count / self.seconds) if self.seconds else None,
        }

    def line(self) -> str:
        """For people."""
        what = (
            f"[green]{render.number(self.count)}[/] message{'' if self.count == 1 else 's'} ({render.size(self.size)})"
        )
        known = "durable" if self.durable else "not confirmed, for SSPQ has no reply"
        return f"published {what} to {escaped(self.topic)}, {known}, {render.rate(self.count, self.seconds)}"


async def _publish(target: Target, asked: "Outgoing", source: Source, sent: Sent) -> None:
    from headrace.cli.doors import door

    async with door(sent.protocol).publisher(target, asked) as publisher:
        sent.durable = publisher.confirms
        with ExitStack() as held, progress("publishing", source.total, shown=source.is_long) as meter:
            await _send(publisher, source.batches(held), sent, meter)


async def _send(publisher: "Publisher", batches: AsyncIterator[list[bytes]], sent: Sent, meter: Meter) -> None:
    sent.began = time.perf_counter()
    async for batch in batches:
        await publisher.publish(batch)
        sent.add(batch)
        meter(sent.count)
