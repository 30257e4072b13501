"""`headrace consume`: messages of a topic, over any protocol, printed as they come."""

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

import typer

from headrace.cli.options import (
    Ack,
    AutoCommit,
    Count,
    Dead,
    Keep,
    Nack,
    ProtocolName,
    Push,
    Qos,
    SubscriptionId,
    Template,
    Topic,
)
from headrace.cli.output import Output
from headrace.cli.printing import Printer
from headrace.cli.render import number
from headrace.cli.rules import check_options, check_topic, tell_unused_key
from headrace.cli.target import AsJson, Target, talks_to_broker

if TYPE_CHECKING:
    from headrace.cli.doors.door import Consumer, Incoming, Outcome

TAKE = 512


def _check(
    protocol: str, count: int | None, ack: bool, nack: bool, auto_commit: bool, push: bool | None, **given: object
) -> None:
    """Refuse what the protocol cannot carry, and options that contradict each other. Raises BadParameter."""
    own = {f"--{name}": given[name] for name in ("qos", "subscription", "keep", "dead")}
    own |= {"--nack": nack, "--auto-commit": auto_commit, "--push": push is True, "--pull": push is False}
    check_options(protocol, own)
    if sum((not ack, nack, auto_commit)) > 1:
        raise typer.BadParameter("give one of --no-ack, --nack and --auto-commit")
    if protocol == "sspq" and not ack and count != 1:
        raise typer.BadParameter("SSPQ gives one message at a time and waits; add --count 1", param_hint="--no-ack")
    if auto_commit and push and count is not None:
        raise typer.BadParameter(
            "pushed messages are settled before they are counted; leave --push or --count out",
            param_hint="--auto-commit",
        )


@partial(talks_to_broker, check=_check)
def consume(
    target: Target,
    topic: Topic,
    count: Count = None,
    ack: Ack = True,
    template: Template = None,
    protocol: ProtocolName = "blipmq",
    qos: Qos = None,
    subscription: SubscriptionId = None,
    keep: Keep = False,
    dead: Dead = False,
    nack: Nack = False,
    auto_commit: AutoCommit = False,
    push: Push = None,
    as_json: AsJson = False,
) -> None:
    """Print messages as they come, until Ctrl-C or --count.

    Over blipmq those that are published from now on; over the others everybody shares one subscription for each topic
    and protocol, which begins with the topic's first message.
    """
    from headrace.cli.doors.door import Incoming

    printer = Printer(Output(as_json=as_json), template)
    check_topic(protocol, topic, target.sspq_topic)
    tell_unused_key(protocol, target.key)
    asked = Incoming(
        topic=topic,
        count=count,
        outcome=_outcome(ack=ack, nack=nack, auto_commit=auto_commit),
        qos=1 if qos is None else qos,
        subscription=subscription,
        keep=keep,
        dead=dead,
        push=count is None if push is None else push,
    )
    consuming = Consuming(target, protocol, asked, printer)
    try:
        asyncio.run(consuming.run())
    except KeyboardInterrupt:
        pass
    finally:
        consuming.summarise()


def _outcome(*, ack: bool, nack: bool, auto_commit: bool) -> "Outcome":
    from headrace.cli.doors.door import Outcome

    if auto_commit:
        return Outcome.BY_DELIVERY
    return Outcome.NACK if nack else Outcome.ACK if ack else Outcome.NOTHING


class Consuming:
    """One run of `headrace consume`."""

    def __init__(self, target: Target, protocol: str, asked: "Incoming", printer: Printer) -> None:
        self._target = target
        self._protocol = protocol
        self._asked = asked
        self._printer = printer
        self._began = time.perf_counter()
        self._consumer: Consumer | None = None
        self.received = 0
        self.settled = 0

    async def run(self) -> None:
        """Print until the count is reached or somebody cancels."""
        from headrace.cli.doors import door

        async with door(self._protocol).consumer(self._target, self._asked) as consumer:
            self._consumer = consumer
            self._printer.output.note(f"{consumer.place}; Ctrl-C ends")
            await self._receive(consumer)

    async def _receive(self, consumer: "Consumer") -> None:
        from headrace.cli.doors.door import Outcome

        count, outcome = self._asked.count, self._asked.outcome
        while count is None or self.received < count:
            deliveries = await consumer.take(TAKE if count is None else min(TAKE, count - self.received))
            for delivery in deliveries:
                self._printer.print(delivery)
            self.received += len(deliveries)
            if outcome is Outcome.BY_DELIVERY:
                self.settled += len(deliveries)
            elif outcome is not Outcome.NOTHING:
                self.settled += await consumer.settle(deliveries, failed=outcome is Outcome.NACK)

    def summarise(self) -> None:
        """Say what was received, to the person, not into the results."""
        from headrace.cli.doors.door import Outcome

        seconds = time.perf_counter() - self._began
        how = "refused" if self._asked.outcome is Outcome.NACK else "acknowledged"
        ending = f"; {self._consumer.ending}" if self._consumer is not None and self._consumer.ending else ""
        self._printer.output.note(
            f"received {number(self.received)}, {how} {number(self.settled)}, in {seconds:.1f} s{ending}"
        )
