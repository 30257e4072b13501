"""The server's side of one SSPQ connection: which packets count when, and what they ask for.

Knows order and legality. Runs of SENDs are read by the kernel; every other packet is read here, its payload skipped as
it arrives. Knows nothing of sockets, clocks or what becomes of a message nobody confirms.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.kernels.sspq import AS_SENT, COMPILED, scan_sends
from headrace.model.batch import ATTEMPTS_UNLIMITED, Batch, Buffer
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.names import check_topic, dead_topic, is_own_topic
from headrace.model.requests import FOREVER_US, Ack, Fetch, Request, Start, Subscribe
from headrace.protocols.sspq.frames import (
    HEAD_SIZE,
    KIND_AT,
    PAYLOAD_MAX,
    RETRIES_UNLIMITED,
    PacketType,
    decode_head,
    encode_no_receive,
    encode_send,
)

SHARED_NAME = "sspq"
QUEUE, DEAD, RECEIVE = -1, -2, -3
"""Tags of what a session asks for; no delivery id is negative, and an ack is refused by its delivery id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SspqSettings:
    """What one SSPQ door is told.

    `force_retries` replaces every message's own number of retries; `max_attempts` is how often the topic delivers a
    message that another protocol published without a limit of its own.
    """

    topic: str = "sspq"
    dead_letter: bool = True
    force_retries: int | None = None
    max_payload: int = 16 * 1024 * 1024
    max_attempts: int = 3

    def __post_init__(self) -> None:
        """Raises ValueError, naming the setting that cannot be."""
        try:
            check_topic(self.topic)
        except BrokerError as error:
            raise ValueError(f"topic: {error.detail}") from None
        if is_own_topic(self.topic):
            raise ValueError(f"topic: only the broker itself publishes to {self.topic}")
        if self.force_retries is not None and not 0 <= self.force_retries <= RETRIES_UNLIMITED:
            raise ValueError(f"force_retries: {self.force_retries} is not within 0 and {RETRIES_UNLIMITED}")
        if not 0 < self.max_payload <= PAYLOAD_MAX:
            raise ValueError(f"max_payload: {self.max_payload} is not within 1 and {PAYLOAD_MAX}")

    def retries_left(self, batch: Batch, attempt: int) -> int:
        """How often a message may still be tried after this delivery, as the retry byte says it."""
        limit = batch.max_attempts or self.max_attempts
        if limit == ATTEMPTS_UNLIMITED:
            return RETRIES_UNLIMITED
        return max(0, min(limit - attempt, RETRIES_UNLIMITED - 1))


class SspqSession:
    """One connection. Implements protocols.spec.ReadingSession.

    `on_ignored` hears of the first packet that means nothing, by its type.
    """

    def __init__(self, settings: SspqSettings, on_ignored: Callable[[int], None] | None = None) -> None:
        self._settings = settings
        self._on_ignored = on_ignored
        self._forced = AS_SENT if settings.force_retries is None else settings.force_retries
        self._subscriptions: dict[int, int] = {}
        self._refused: set[int] = set()
        self._packet: int | None = None
        self._skip = 0
        self._asked: int | None = None
        self._held: Ack | None = None
        self._draining = False
        self._failure: BrokerError | None = None
        self._out: list[bytes] = []

    def receive(self, view: memoryview, now: int) -> tuple[int, list[Request]]:
        """How many bytes are done with, and what they ask for; the rest is to be presented again with more.

        Nothing is consumed behind Subscribe until it is answered, and nothing behind Fetch in the same call: whether a
        message was there when it was asked for decides what a CONFIRM behind it means, however the bytes were split.
        Raises PeerProtocolError when the peer must be cut off: only once nothing before the bad bytes is left to do.
        """
        if self._failure is not None:
            raise PeerProtocolError(f"a message was not stored: {self._failure.detail}")
        data: Buffer = view if COMPILED else bytes(view)
        requests: list[Request] = []
        at, end = 0, len(data)
        while True:
            if self._packet is None:
                if end - at > KIND_AT and data[at + KIND_AT] == PacketType.SEND:
                    at = self._scan(data, at, end, now, requests)
                try:
                    head = decode_head(data, at, end, self._settings.max_payload)
                except PeerProtocolError:
                    if requests:
                        break
                    raise
                if head is None or self._join(head.kind, requests) or head.kind == PacketType.SEND:
                    break
                self._packet, self._skip = head.kind, head.size
                at += HEAD_SIZE
            if self._skip:
                skipped = min(self._skip, end - at)
                self._skip -= skipped
                at += skipped
                if self._skip:
                    break
            kind, self._packet = self._packet, None
            if self._handle(kind, requests):
                break
        return at, requests

    def bytes_wanted(self, view: memoryview) -> int:
        """The size of the whole packet `view` begins with where it must be read at once, else of a head."""
        if len(view) < HEAD_SIZE or view[KIND_AT] != PacketType.SEND:
            return HEAD_SIZE
        return HEAD_SIZE + min(int.from_bytes(view[4:HEAD_SIZE]), self._settings.max_payload)

    def subscribed(self, tag: int, subscription: int) -> None:
        """The queue, or the dead-letter queue, is this subscription."""
        self._subscriptions[tag] = subscription

    def fetched(self, tag: int, portions: list[Portion]) -> None:
        """Here is the message that was asked for."""
        assert self._asked is not None
        if not portions:
            self._decline()
            return
        (portion,) = portions
        asked, self._asked = self._asked, None
        self._held = Ack(self._subscriptions[asked], [(portion.first_delivery, 1)])
        retries = 0 if asked == DEAD else self._settings.retries_left(portion.batch, portion.attempt)
        self._out.append(encode_send(retries, portion.batch.value(portion.index)))

    def refused(self, tag: int, error: BrokerError) -> None:
        """There will be no message, or no queue. Nobody hears of a CONFIRM whose message an operator removed."""
        if tag == RECEIVE:
            if error.code is Code.UNKNOWN and self._asked is not None:
                self._subscriptions.pop(self._asked, None)
            self._decline()
        elif tag in (QUEUE, DEAD):
            self._refused.add(tag)

    def publish_refused(self, tags: bytes, error: BrokerError) -> None:
        """A message was not stored. No packet can say so: the connection is cut off at the peer's next word."""
        self._failure = error

    def data_to_send(self) -> bytes:
        """What to send to the peer now; each byte is given out once. Whole packets, never more than one SEND."""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def ended(self) -> list[Request]:
        """The peer has said all it wanted, and gives back what it holds."""
        return []

    def draining(self) -> None:
        """The server is about to stop: who asks from now on is declined."""
        self._draining = True

    def authenticated(self, tag: int) -> None:
        """SSPQ knows no credentials."""
        raise AssertionError("never asked for")

    def deliver(self, portion: Portion, tags: bytes) -> None:
        """SSPQ receives by Fetch."""
        raise AssertionError("never asked for")

    def published(self, tags: bytes) -> None:
        """SSPQ confirms no SEND."""
        raise AssertionError("never asked for")

    def fence_passed(self, tag: int) -> None:
        """SSPQ knows no fence."""
        raise AssertionError("never asked for")

    def pushed(self, tag: int, portions: list[Portion]) -> None:
        """SSPQ receives by Fetch."""
        raise AssertionError("never asked for")

    def settled(self, tag: int, deliveries: list[int], accepted: list[bool]) -> None:
        """SSPQ confirms without an answer."""
        raise AssertionError("never asked for")

    def _scan(self, data: Buffer, at: int, end: int, now: int, requests: list[Request]) -> int:
        """Read the run of SENDs at `at`, once the queue is there; the position after it."""
        if QUEUE not in self._subscriptions and QUEUE not in self._refused:
            return at
        settings = self._settings
        at, publishes = scan_sends(data, at, end, settings.topic, self._forced, settings.max_payload, now)
        requests += publishes
        return at

    def _join(self, kind: int, requests: list[Request]) -> bool:
        """Ask for the queue this packet needs, if it is not there yet and was not refused.

        A SEND needs the queue too: what nobody has asked for yet must not look like what nobody wants.
        """
        queue = DEAD if kind == PacketType.DEAD_RECEIVE and self._settings.dead_letter else QUEUE
        if queue in self._subscriptions or queue in self._refused:
            return False
        topic = self._settings.topic
        if queue == DEAD:
            topic = dead_topic(topic)
        requests.append(Subscribe(queue, topic, 1, name=SHARED_NAME, start=Start.EARLIEST, tail=True))
        return True

    def _handle(self, kind: int, requests: list[Request]) -> bool:
        """A packet without a message has arrived whole. Returns whether it asks for one."""
        match kind:
            case PacketType.RECEIVE:
                return self._ask(QUEUE, requests)
            case PacketType.DEAD_RECEIVE:
                return self._ask(DEAD, requests)
            case PacketType.CONFIRM:
                if self._held is not None:
                    requests.append(self._held)
                    self._held = None
            case _:
                if self._on_ignored is not None:
                    self._on_ignored(kind)
                    self._on_ignored = None
        return False

    def _ask(self, queue: int, requests: list[Request]) -> bool:
        """Ask for a message, unless one is held or asked for already. Nothing else is waiting to be answered then."""
        if self._held is not None or self._asked is not None:
            return False
        self._refused.discard(queue)
        subscription = self._subscriptions.get(queue)
        if subscription is None or self._draining:
            self._decline()
            return False
        self._asked = queue
        requests.append(Fetch(RECEIVE, subscription, 1, FOREVER_US))
        return True

    def _decline(self) -> None:
        self._asked = None
        self._out.append(encode_no_receive())
