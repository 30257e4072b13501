"""Fujin at the command line: confirmed writes, readers that are pushed to or fetch, over QUIC or TLS."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from headrace.cli.doors.door import Incoming, Outcome, Outgoing, Received
from headrace.cli.failure import Failure
from headrace.cli.target import Target
from headrace.protocols.fujin.client import (
    ClientSettings,
    ConnectionLost,
    Delivery,
    Dialect,
    FujinClient,
    FujinReader,
    FujinSubscription,
    FujinWriter,
    Refused,
    Security,
    Stopping,
)
from headrace.server.dev_certificate import DEV_CERT_NAME

LISTENERS = ("fujin", "fujin_tcp")


class FujinPublisher:
    """Writes, each message confirmed."""

    confirms = True

    def __init__(self, writer: FujinWriter, asked: Outgoing) -> None:
        self._writer = writer
        self._topic = asked.topic
        self._headers = [(key, value.encode()) for key, value in asked.headers]

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Write in order; durable on return."""
        await self._writer.write_many(self._topic, messages, headers=self._headers)


class FujinConsumer:
    """Reads one topic, pushed or fetched."""

    ending = ""

    def __init__(self, reader: FujinReader | FujinSubscription, asked: Incoming) -> None:
        self._reader = reader
        self._topic = asked.topic
        self.place = f"subscription fujin to {asked.topic}, shared"

    async def take(self, limit: int) -> list[Received]:
        """Up to `limit` deliveries, at least one."""
        found: list[Delivery] = []
        while not found:
            found = await (
                self._reader.take(limit) if isinstance(self._reader, FujinSubscription) else self._reader.fetch(limit)
            )
        return [
            Received(topic=self._topic, value=delivery.value, tag=delivery.id.hex() or None, handle=delivery.id)
            for delivery in found
        ]

    async def settle(self, deliveries: Sequence[Received], *, failed: bool) -> int:
        """Settle them; durable on return."""
        ids = [delivery.handle for delivery in deliveries]
        return sum(await (self._reader.nack(ids) if failed else self._reader.ack(ids)))


@asynccontextmanager
async def publisher(target: Target, asked: Outgoing) -> AsyncIterator[FujinPublisher]:
    """A connection that writes."""
    async with connected(target) as client:
        yield FujinPublisher(await _writer(client, with_headers=bool(asked.headers)), asked)


@asynccontextmanager
async def consumer(target: Target, asked: Incoming) -> AsyncIterator[FujinConsumer]:
    """A connection that reads; what it holds at the end goes back."""
    auto_commit = asked.outcome is Outcome.BY_DELIVERY
    async with connected(target) as client:
        open_reader = client.subscribe if asked.push else client.reader
        yield FujinConsumer(await open_reader(asked.topic, auto_commit=auto_commit), asked)


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[FujinClient]:
    """A client that is connected; its errors are failures."""
    url = target.url(*LISTENERS)
    settings = ClientSettings(dialect=Dialect(target.fujin_dialect))
    try:
        client = await FujinClient.connect(url, security=security_of(target), settings=settings)
    except ConnectionLost as error:
        if "certificate" in str(error).lower():
            raise target.not_trusted(url, str(error)) from error
        raise target.silent(url, str(error).removeprefix(f"{url}: ")) from error
    try:
        async with client:
            yield client
    except Refused as refused:
        raise Failure(f"the broker refused: {refused.text}") from refused
    except Stopping as error:
        raise Failure(f"the broker at {url} is about to stop", "Try again when it runs again.") from error
    except ConnectionLost as error:
        raise Failure(f"the connection to {url} broke: {error}", "Is the broker still running?") from error


def security_of(target: Target) -> Security:
    """Whom to trust: whom --ca names, else, on this machine, the self-signed certificate of the data directory."""
    ca = target.ca or _dev_certificate(target) or ""
    return Security(ca=ca, cert=target.cert or "")


def _dev_certificate(target: Target) -> Path | None:
    """The certificate the broker made for itself; none where it was given one, or is not on this machine."""
    host = urlsplit(target.url(*LISTENERS)).hostname
    if target.directory is None or not target.is_self_signed or host not in ("127.0.0.1", "::1", "localhost"):
        return None
    path = target.directory / DEV_CERT_NAME
    return path if path.exists() else None


async def _writer(client: FujinClient, *, with_headers: bool) -> FujinWriter:
    """A writer of whichever form the broker reads, unless headers need the one that carries them."""
    if with_headers:
        return await client.writer(headers=True)
    try:
        return await client.writer()
    except Refused:
        return await client.writer(headers=False)
