"""SSPQ at the command line: one queue, one message at a time, nothing confirmed by the broker."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.cli.doors.door import Incoming, Outgoing, Received
from headrace.cli.failure import Failure
from headrace.cli.target import Target
from headrace.protocols.sspq.client import ConnectionLost, Declined, SspqClient

LISTENER = "sspq"


class SspqPublisher:
    """Sends and forgets."""

    confirms = False

    def __init__(self, client: SspqClient, asked: Outgoing) -> None:
        self._client = client
        self._retries = asked.retries

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Send in order; on their way on return."""
        await self._client.send_many(messages, retries=self._retries)


class SspqConsumer:
    """Receives from the queue, or from its dead letters."""

    def __init__(self, client: SspqClient, asked: Incoming) -> None:
        self._client = client
        self._asked = asked
        of = "the dead letters of " if asked.dead else ""
        self.place = f"subscription sspq to {of}{asked.topic}, shared"
        self.ending = ""

    async def take(self, limit: int) -> list[Received]:
        """The next message."""
        found = await self._client.receive(dead=self._asked.dead)
        told = {"retries": found.retries, "dead": found.dead}
        return [Received(topic=self._asked.topic, value=found.payload, told=told, handle=found)]

    async def settle(self, deliveries: Sequence[Received], *, failed: bool) -> int:
        """Confirm them; the broker does not answer."""
        assert not failed, "SSPQ knows no failure but a lost connection"
        for delivery in deliveries:
            await delivery.handle.confirm()
        return len(deliveries)


@asynccontextmanager
async def publisher(target: Target, asked: Outgoing) -> AsyncIterator[SspqPublisher]:
    """A connection that sends."""
    async with _connected(target) as client:
        yield SspqPublisher(client, asked)


@asynccontextmanager
async def consumer(target: Target, asked: Incoming) -> AsyncIterator[SspqConsumer]:
    """A connection that receives."""
    async with _connected(target) as client:
        yield SspqConsumer(client, asked)


@asynccontextmanager
async def _connected(target: Target) -> AsyncIterator[SspqClient]:
    """A client that is connected; its errors are failures."""
    url = target.url(LISTENER)
    try:
        client = await SspqClient.connect(url, tls=target.tls(LISTENER))
    except ConnectionLost as error:
        cause = error.__cause__
        raise target.unreachable(LISTENER, cause if isinstance(cause, OSError) else OSError(str(error))) from error
    try:
        async with client:
            yield client
    except Declined as declined:
        raise Failure(
            "the broker says that no message will come",
            "It is about to stop, or has no dead letters for SSPQ (sspq.dead_letter = false).",
        ) from declined
    except ConnectionLost as error:
        raise Failure(f"the connection to {url} broke: {error}", "Is the broker still running?") from error
