"""A BlipMQ connection for a command: opened to the broker the options name, its errors turned into failures."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.cli.failure import Failure
from headrace.cli.target import Target
from headrace.protocols.blipmq.client import BlipmqClient, ClientSettings, ConnectionLost, Refused

UNAUTHENTICATED = 401


@asynccontextmanager
async def connected(target: Target, settings: ClientSettings | None = None) -> AsyncIterator[BlipmqClient]:
    """A client that is connected, closed at the end.

    Raises Failure when nobody answers, the key is refused, or the broker refuses what is asked inside.
    """
    target.address("blipmq")
    url = target.endpoints["blipmq"]
    try:
        client = await BlipmqClient.connect(url, target.key, tls=target.tls("blipmq"), settings=settings)
    except ConnectionLost as error:
        cause = error.__cause__
        raise target.unreachable("blipmq", cause if isinstance(cause, OSError) else OSError(str(error))) from error
    except Refused as refused:
        raise refusal(refused) from refused
    try:
        async with client:
            yield client
    except Refused as refused:
        raise refusal(refused) from refused
    except ConnectionLost as error:
        raise Failure(f"the connection to {url} broke: {error}", "Is the broker still running?") from error


def refusal(refused: Refused) -> Failure:
    """The broker's no as a failure, with what to do about it."""
    if refused.code == UNAUTHENTICATED:
        advice = "Give a key for this with --key or HEADRACE_KEY; `headrace keys new` makes one."
        return Failure(f"the broker refused the key: {refused.message}", advice)
    return Failure(f"the broker refused: {refused.message} ({refused.code})")
