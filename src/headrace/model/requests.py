"""What a session asks of the broker, whatever its protocol. Self-contained values: no view into a receive buffer."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from headrace.model.errors import BrokerError

FOREVER_US = 1 << 62


class Start(Enum):
    """Where a new subscription begins to read."""

    LATEST = "latest"
    EARLIEST = "earliest"


@dataclass(slots=True)
class Authenticate:
    """Who is there? `key` is the credential exactly as presented."""

    tag: int
    key: bytes


@dataclass(slots=True)
class Publish:
    """Append this batch.

    `record` is the part with RECORD_HEADER_SIZE free bytes before it, filled in by the log.
    `tags` names the messages to the peer should the log refuse them (for BlipMQ the correlation ids, u64 big-endian).
    With `confirm` they are answered too once they are durable. A record of several parts, which becomes visible all at
    once or not at all, lists in `topics` whatever it writes to; otherwise that is `topic` alone.
    """

    topic: str
    qos: int
    count: int
    record: bytearray
    tags: bytes
    confirm: bool = False
    topics: tuple[str, ...] = ()


@dataclass(slots=True)
class Subscribe:
    """Create a subscription of one's own, or join the one called `name` that everybody shares.

    `tail`: what comes back from a reader that went away goes behind everything there is, at once.
    """

    tag: int
    topic: str
    qos: int
    name: str = ""
    start: Start = Start.LATEST
    tail: bool = False


@dataclass(slots=True)
class Take:
    """Deliver up to `count` messages; `tags` holds one u64 big-endian for each (the POLLs' correlation ids)."""

    subscription: int
    count: int
    tags: bytes


@dataclass(slots=True)
class Fetch:
    """Deliver up to `count` messages into the hands of this connection, waiting for the first up to `wait_us`.

    Requests behind it do not wait. No timer takes back what was delivered: it comes back when the connection ends.
    With `settle` the delivery itself settles it.
    """

    tag: int
    subscription: int
    count: int
    wait_us: int
    settle: bool = False


@dataclass(slots=True)
class Follow:
    """Deliver whatever comes for as long as the peer reads, at most `window` messages unsettled at once.

    Holds and settles as Fetch does. `after_us`: how long to leave the peer alone first.
    """

    tag: int
    subscription: int
    window: int
    settle: bool = False
    after_us: int = 0


@dataclass(slots=True)
class Settle:
    """Deliveries that are done, or with `failed` are to be tried again; each is answered for by itself."""

    tag: int
    subscription: int
    deliveries: list[int]
    failed: bool = False
    reason: str = ""


@dataclass(slots=True)
class Leave:
    """Give back what this connection holds, answer as a fence does, then close it."""

    tag: int


@dataclass(slots=True)
class Ack:
    """These deliveries are done; ranges of (first delivery id, count)."""

    subscription: int
    ranges: list[tuple[int, int]]


@dataclass(slots=True)
class Nack:
    """These deliveries failed and are to be tried again."""

    subscription: int
    ranges: list[tuple[int, int]]
    reason: str = ""


@dataclass(slots=True)
class Fence:
    """Answer once everything this connection asked before is as durable as promised."""

    tag: int


@dataclass(slots=True)
class Exchange:
    """A run of acks and takes of one subscription.

    Doing all acks first and then one take of all is the same thing unless an ack is refused; then the
    steps are done one by one. `retell` recovers them from the bytes, which nearly nobody ever asks for.
    """

    acks: Ack
    takes: Take
    retell: Callable[[], list[Ack | Take]]

    @property
    def steps(self) -> list[Ack | Take]:
        """The same acks and takes in the order in which they arrived."""
        return self.retell()


@dataclass(slots=True)
class Refuse:
    """Answer with this error: the session found the request wrong, and earlier ones are to be answered first."""

    tag: int
    error: BrokerError


Request = (
    Authenticate | Publish | Subscribe | Take | Fetch | Follow | Settle | Ack | Nack | Fence | Exchange | Leave | Refuse
)
