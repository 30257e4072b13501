"""What a server needs to know of a protocol to open a door for it: one value, no registration."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError
from headrace.model.requests import Request


class Transport(Enum):
    """What carries a protocol's bytes."""

    TCP = "tcp"
    QUIC = "quic"
    GRPC = "grpc"


class Session(Protocol):
    """The server's side of one conversation: bytes in, requests out; outcomes in, bytes out. It never waits.

    Outcomes must be reported in the order of the requests they answer; only `fetched` and `pushed` come when they come.
    """

    def receive(self, view: memoryview, now: int) -> tuple[int, list[Request]]:
        """How many bytes are done with, and what they ask for; the rest is to be presented again with more.

        After Authenticate nothing more is consumed until it is answered. No request refers to `view`.
        Raises PeerProtocolError when the peer must be cut off: only once nothing before the bad bytes is left to do.
        """

    def bytes_wanted(self, view: memoryview) -> int:
        """The size of the whole frame `view` begins with, as far as it can be known yet."""

    def authenticated(self, tag: int) -> None:
        """Authenticate succeeded."""

    def refused(self, tag: int, error: BrokerError) -> None:
        """The request with this tag was refused."""

    def publish_refused(self, tags: bytes, error: BrokerError) -> None:
        """The messages with these tags were not stored."""

    def subscribed(self, tag: int, subscription: int) -> None:
        """Subscribe succeeded."""

    def deliver(self, portion: Portion, tags: bytes) -> None:
        """These messages answer the takes with these tags, one each."""

    def fence_passed(self, tag: int) -> None:
        """Everything before the fence is as durable as promised; also answers Leave."""

    def data_to_send(self) -> bytes:
        """What to send to the peer now; each byte is given out once."""

    def ended(self) -> list[Request]:
        """The peer will send nothing more: what that asks for."""

    def draining(self) -> None:
        """The server is about to stop. Fetches that wait are refused next."""


class ReadingSession(Session, Protocol):
    """A session whose peer reads by Fetch and Follow, or has its publishes confirmed."""

    def published(self, tags: bytes) -> None:
        """The messages with these tags are durable."""

    def fetched(self, tag: int, portions: list[Portion]) -> None:
        """What the fetch with this tag brought; nothing when its time was up."""

    def pushed(self, tag: int, portions: list[Portion]) -> None:
        """What has come for the follow with this tag."""

    def settled(self, tag: int, deliveries: list[int], accepted: list[bool]) -> None:
        """Which deliveries of the settle with this tag were still to be settled, and now durably are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSpec:
    """A protocol as a value."""

    name: str
    transport: Transport
    new_session: Callable[[], Session]
