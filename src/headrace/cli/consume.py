"""`headrace consume`: messages of a topic over BlipMQ, printed as they come."""

import asyncio
import base64
import string
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.failure import Failure
from headrace.cli.options import ProtocolName, Qos, Topic
from headrace.cli.output import Output
from headrace.cli.render import number, payload
from headrace.cli.target import AsJson, Target, talks_to_broker

if TYPE_CHECKING:
    from headrace.protocols.blipmq.client import BlipmqClient, Delivery, Subscription

TAKE = 512
GOODBYE_S = 5
FIELDS = ("topic", "value", "tag", "qos", "size")


@talks_to_broker
def consume(
    target: Target,
    topic: Topic,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")] = None,
    qos: Qos = 1,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was printed.")] = True,
    subscription: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Go on with this subscription instead of a new one.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the new subscription in the broker at the end.")] = False,
    template: Annotated[
        str | None,
        typer.Option("--format", metavar="TEXT", help=f"How to print one, with {{name}} for {', '.join(FIELDS)}."),
    ] = None,
    protocol: ProtocolName = "blipmq",
    as_json: AsJson = False,
) -> None:
    """Print messages published from now on, as they come, until Ctrl-C or --count."""
    if template is not None:
        _check_template(template)
    consumer = Consumer(target, topic, count, qos, ack, template, Output(as_json=as_json))
    try:
        asyncio.run(consumer.run(subscription, keep=keep or subscription is not None))
    except KeyboardInterrupt:
        pass
    finally:
        consumer.summarise()


def _check_template(template: str) -> None:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise typer.BadParameter(f"{template!r}: {error}", param_hint="--format") from error
    for name in names:
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            raise typer.BadParameter(f"there is no {{{name}}}; there are {known}", param_hint="--format")


class Consumer:
    """One run of `headrace consume`."""

    def __init__(
        self, target: Target, topic: str, count: int | None, qos: int, ack: bool, template: str | None, output: Output
    ) -> None:
        self._target = target
        self._topic = topic
        self._count = count
        self._qos = qos
        self._ack = ack
        self._template = template
        self._output = output
        self._began = time.perf_counter()
        self._end = ""
        self.received = 0
        self.acked = 0

    async def run(self, subscription_id: int | None, *, keep: bool) -> None:
        """Print until the count is reached or somebody cancels; acknowledgements are durable when it returns."""
        from headrace.cli.connection import connected
        from headrace.protocols.blipmq.client import ClientSettings

        exact = keep and self._count is not None
        settings = ClientSettings(prefetch=1) if exact else ClientSettings()
        async with connected(self._target, settings) as client:
            subscription = (
                client.subscription(subscription_id)
                if subscription_id is not None
                else await client.subscribe(self._topic, qos=self._qos)
            )
            self._output.note(f"subscription {subscription.id} to {self._topic}; Ctrl-C ends")
            try:
                await self._receive(subscription)
            finally:
                await self._leave(client, subscription, keep)

    async def _receive(self, subscription: "Subscription") -> None:
        while self._count is None or self.received < self._count:
            limit = TAKE if self._count is None else min(TAKE, self._count - self.received)
            deliveries = await subscription.take(limit)
            for delivery in deliveries:
                self._print(delivery)
            self.received += len(deliveries)
            if self._ack:
                await subscription.ack(deliveries)
                self.acked += len(deliveries)

    async def _leave(self, client: "BlipmqClient", subscription: "Subscription", keep: bool) -> None:
        """Make the acknowledgements durable and take the subscription out of the broker, unless it is to stay."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                await client.fence()
                if not keep:
                    await asyncio.to_thread(self._remove, subscription.id)
                    self._end = f"; subscription {subscription.id} removed"
        except (TimeoutError, Failure):
            keep = True
        if keep:
            self._end = f"; go on with --subscription {subscription.id}"

    def _remove(self, subscription_id: int) -> None:
        with self._target.api() as api:
            api.request("DELETE", f"/api/subscriptions/{subscription_id}")

    def _print(self, delivery: "Delivery") -> None:
        value = delivery.message
        if self._output.as_json:
            self._output.json(
                {
                    "topic": delivery.topic,
                    "tag": delivery.tag,
                    "qos": delivery.qos,
                    "value": base64.b64encode(value).decode(),
                    "text": _text(value),
                }
            )
        elif self._template is not None:
            known = (delivery.topic, payload(value), delivery.tag, delivery.qos, len(value))
            self._output.line(self._template.format(**dict(zip(FIELDS, known, strict=True))))
        elif self._output.is_terminal:
            self._output.line(payload(value))
        else:
            self._output.raw(value)

    def summarise(self) -> None:
        """Say what was received, to the person, not into the results."""
        seconds = time.perf_counter() - self._began
        self._output.note(
            f"received {number(self.received)}, acknowledged {number(self.acked)}, in {seconds:.1f} s{self._end}"
        )


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
