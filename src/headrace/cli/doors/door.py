"""What commands ask of a protocol: something that publishes, and something that consumes. Knows no protocol."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from headrace.cli.target import Target


class Outcome(Enum):
    """What becomes of a message that was printed."""

    ACK = auto()
    NACK = auto()
    NOTHING = auto()
    BY_DELIVERY = auto()


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """What `publish` was asked to do; a protocol reads what it can carry."""

    topic: str
    qos: int = 1
    retries: int = 3
    headers: Sequence[tuple[str, str]] = ()
    service: str = ""
    action: str = ""
    message_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """What `consume` was asked to do; a protocol reads what it can carry."""

    topic: str
    count: int | None = None
    outcome: Outcome = Outcome.ACK
    qos: int = 1
    subscription: int | None = None
    keep: bool = False
    dead: bool = False
    push: bool = False


@dataclass(frozen=True, kw_only=True)
class Received:
    """One delivery. `tag` is what its protocol settles it by; `told` is what else the protocol says of it."""

    topic: str
    value: bytes
    tag: int | str | None = None
    told: dict[str, Any] = field(default_factory=dict)
    handle: Any = field(default=None, repr=False)


class Publisher(Protocol):
    """An open connection that publishes to one topic. `confirms`: publishing returns when it is durable."""

    confirms: bool

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish in order. Raises Failure when the broker refuses."""


class Consumer(Protocol):
    """An open connection that consumes one topic.

    `place` says which subscription is read; `ending`, once it is closed, what became of it.
    """

    place: str
    ending: str

    async def take(self, limit: int) -> list[Received]:
        """Up to `limit` deliveries, at least one."""

    async def settle(self, deliveries: Sequence[Received], *, failed: bool) -> int:
        """Acknowledge them, or say that they failed; how many the broker agreed to."""


class Door(Protocol):
    """One protocol. Both raise Failure when nobody answers, or the broker refuses what is asked inside."""

    def publisher(self, target: Target, asked: Outgoing) -> AbstractAsyncContextManager[Publisher]:
        """A connection that publishes; at the end everything is on its way."""

    def consumer(self, target: Target, asked: Incoming) -> AbstractAsyncContextManager[Consumer]:
        """A connection that consumes; at the end what was settled is as durable as the protocol can tell."""
