"""`headrace publish`: messages into a topic over BlipMQ, durable when it returns."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import render
from headrace.cli.failure import Failure
from headrace.cli.options import ProtocolName, Qos, Topic
from headrace.cli.output import Meter, Output, escaped, progress
from headrace.cli.target import AsJson, Target, talks_to_broker

if TYPE_CHECKING:
    from headrace.protocols.blipmq.client import BlipmqClient

LONG = 1000


@talks_to_broker
def publish(
    target: Target,
    topic: Topic,
    messages: Annotated[list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="The messages.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Take messages from a file, one a line; - is standard input."
        ),
    ] = None,
    qos: Qos = 1,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many; messages given as arguments are repeated in turn.")
    ] = None,
    rate: Annotated[int | None, typer.Option("--rate", min=1, help="Not more than so many a second.")] = None,
    protocol: ProtocolName = "blipmq",
    as_json: AsJson = False,
) -> None:
    """Publish messages and return when the broker has them on disk."""
    if messages and file is not None:
        raise typer.BadParameter("give messages as arguments or --file, not both")
    if not messages and file is None:
        if sys.stdin.isatty():
            raise typer.BadParameter("give messages as arguments, with --file, or on standard input")
        file = Path("-")
    sent = Sent()
    try:
        asyncio.run(_publish(target, topic, messages or [], file, qos, count, rate, sent))
    except (Failure, ValueError) as error:
        advice = error.advice if isinstance(error, Failure) else ""
        before = f" ({render.number(sent.count)} before that are durable)" if sent.count else ""
        raise Failure(f"{error}{before}", advice) from error
    Output(as_json=as_json).document(sent.summary(topic), [sent.line(topic)])


@dataclass
class Sent:
    """What was published and is durable."""

    count: int = 0
    size: int = 0
    began: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    def add(self, batch: list[bytes]) -> None:
        """Count a batch that the broker has confirmed."""
        self.count += len(batch)
        self.size += sum(map(len, batch))
        self.seconds = time.perf_counter() - self.began

    def summary(self, topic: str) -> dict[str, Any]:
        """For scripts."""
        return {
            "topic": topic,
            "published": self.count,
            "bytes": self.size,
            "seconds": round(self.seconds, 6),
            "msgs_per_s": round(self.count / self.seconds) if self.seconds else None,
        }

    def line(self, topic: str) -> str:
        """For people."""
        what = (
            f"[green]{render.number(self.count)}[/] message{'' if self.count == 1 else 's'} ({render.size(self.size)})"
        )
        return f"published {what} to {escaped(topic)}, durable, {render.rate(self.count, self.seconds)}"


async def _publish(
    target: Target,
    topic: str,
    messages: list[str],
    file: Path | None,
    qos: int,
    count: int | None,
    pace: int | None,
    sent: Sent,
) -> None:
    from headrace.cli.connection import connected
    from headrace.cli.sources import from_arguments, from_stream, paced

    async with connected(target) as client:
        total = count or len(messages) or None
        is_long = total is None or total > LONG or pace is not None
        with progress("publishing", total, shown=is_long) as meter:
            if file is None:
                given = from_arguments([message.encode() for message in messages], count)
                await _send(client, topic, paced(given, pace), qos, sent, meter)
            elif str(file) == "-":
                await _send(client, topic, paced(from_stream(sys.stdin.buffer, count), pace), qos, sent, meter)
            else:
                with file.open("rb") as stream:
                    await _send(client, topic, paced(from_stream(stream, count), pace), qos, sent, meter)


async def _send(
    client: "BlipmqClient", topic: str, batches: AsyncIterator[list[bytes]], qos: int, sent: Sent, meter: Meter
) -> None:
    sent.began = time.perf_counter()
    async for batch in batches:
        await client.publish_many(topic, batch, qos=qos)
        sent.add(batch)
        meter(sent.count)
