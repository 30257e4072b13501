"""The server's side of one BlipMQ connection: which frames may come when, and what they ask for.

Knows order and legality. Runs of frames are read by the kernels; what they leave alone is read here one by one, and is
nearly always refused. Knows nothing of sockets, clocks, keys or topics' contents.
"""

import struct
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from itertools import groupby

from headrace.kernels.blipmq import COMPILED, encode_deliveries, scan_publishes
from headrace.kernels.blipmq_exchange import scan_exchange
from headrace.model.batch import Buffer
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.names import check_topic
from headrace.model.requests import Ack, Authenticate, Exchange, Fence, Refuse, Request, Subscribe, Take
from headrace.protocols.blipmq.errors import nack_of
from headrace.protocols.blipmq.frames import (
    LENGTH_MAX,
    LENGTH_SIZE,
    PROTOCOL_VERSION,
    U64_FRAME,
    Frame,
    FrameType,
    decode_auth,
    decode_frame,
    decode_hello,
    decode_publish,
    decode_subscribe,
    decode_subscription_id,
    encode_ack,
    encode_nack,
    encode_pong,
)

LENGTH_MAX_STRANGER = 64 * 1024
EARLY_FRAMES_MAX = 100
"""Each frame before AUTH is refused by itself: a peer that sends more of them is no client but a flood."""

AUTH_FAILURES_MAX = 5


class State(Enum):
    """How far the handshake has come."""

    NEW = auto()
    GREETED = auto()
    CHECKING = auto()
    READY = auto()


class BlipmqSession:
    """One connection. Implements protocols.spec.Session."""

    def __init__(self, auth_failures_max: int = AUTH_FAILURES_MAX) -> None:
        self.state = State.NEW
        self._auth_failures = 0
        self._auth_failures_max = auth_failures_max
        self._early_frames = 0
        self._out: list[bytes] = []

    def receive(self, view: memoryview, now: int) -> tuple[int, list[Request]]:
        """How many bytes are done with, and what they ask for; the rest is to be presented again with more.

        After Authenticate nothing more is consumed until it is answered. No request refers to `view`.
        Raises PeerProtocolError when the peer must be cut off: only once nothing before the bad bytes is left to do.
        """
        data: Buffer = view if COMPILED else bytes(view)
        requests: list[Request] = []
        at, end = 0, len(data)
        while self.state is not State.CHECKING:
            if self.state is State.READY:
                if at == end:
                    break
                scanned = self._scan(data, at, end, now, requests)
                if scanned > at:
                    at = scanned
                    continue
            elif requests and self._early_frames >= EARLY_FRAMES_MAX:
                break
            else:
                self._check_patience()
            try:
                frame = decode_frame(data, at, end, self._length_max)
            except PeerProtocolError:
                if requests:
                    break
                raise
            if frame is None:
                break
            at = frame.end
            self._early_frames += self.state is not State.READY
            self._handle(frame, requests)
        return at, requests

    def bytes_wanted(self, view: memoryview) -> int:
        """The size of the whole frame `view` begins with, as far as it can be known and may be granted yet."""
        if len(view) < LENGTH_SIZE:
            return LENGTH_SIZE
        length = int.from_bytes(view[:LENGTH_SIZE])
        return LENGTH_SIZE + length if length <= self._length_max else LENGTH_SIZE

    def authenticated(self, tag: int) -> None:
        """The key is good; frames behind AUTH may be read."""
        assert self.state is State.CHECKING
        self.state = State.READY
        self._out.append(encode_ack(tag))

    def refused(self, tag: int, error: BrokerError) -> None:
        """The request with this tag was refused."""
        if self.state is State.CHECKING:
            self.state = State.GREETED
            self._auth_failures += 1
        self._out.append(encode_nack(tag, *nack_of(error)))

    def publish_refused(self, tags: bytes, error: BrokerError) -> None:
        """The messages with these tags were not stored."""
        code, message = nack_of(error)
        self._out += (encode_nack(tag, code, message) for (tag,) in struct.iter_unpack(">Q", tags))

    def subscribed(self, tag: int, subscription: int) -> None:
        """The subscription exists."""
        self._out.append(encode_ack(tag, subscription))

    def deliver(self, portion: Portion, tags: bytes) -> None:
        """These messages answer the POLLs with these tags, one each.

        A QoS 1 delivery is tagged with its delivery id, a QoS 0 one with its POLL's correlation id.
        """
        batch = portion.batch
        qos = min(portion.qos, batch.qos)
        self._out.append(
            encode_deliveries(
                batch.buffer,
                batch.start,
                portion.index,
                portion.count,
                qos,
                portion.first_delivery,
                b"" if qos else tags,
            )
        )

    def fence_passed(self, tag: int) -> None:
        """Everything before this PING is as durable as promised."""
        self._out.append(encode_pong(tag))

    def data_to_send(self) -> bytes:
        """What to send to the peer now; each byte is given out once."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def ended(self) -> list[Request]:
        """The peer has said all it wanted; what it asked for is still answered."""
        return []

    def draining(self) -> None:
        """BlipMQ has no word for it."""

    @property
    def _length_max(self) -> int:
        return LENGTH_MAX if self.state is State.READY else LENGTH_MAX_STRANGER

    def _check_patience(self) -> None:
        if self._auth_failures >= self._auth_failures_max:
            raise PeerProtocolError(f"{self._auth_failures} failed AUTHs")
        if self._early_frames >= EARLY_FRAMES_MAX:
            raise PeerProtocolError(f"{EARLY_FRAMES_MAX} frames without a good AUTH")

    def _scan(self, data: Buffer, at: int, end: int, now: int, requests: list[Request]) -> int:
        """Read the run of frames at `at` if it is one the kernels know; the position after it."""
        kind = data[at + LENGTH_SIZE] if end - at > LENGTH_SIZE else 0
        if kind == FrameType.PUBLISH:
            at, publishes = scan_publishes(data, at, min(end, at + LENGTH_SIZE + LENGTH_MAX), now)
            requests += publishes
        elif kind in (FrameType.POLL, FrameType.ACK):
            start = at
            at, subscription, polls, acked = scan_exchange(data, at, end)
            if acked and polls:
                retell = partial(_steps, bytes(data[start:at]))
                takes = Take(subscription, len(polls) // 8, polls)
                requests.append(Exchange(Ack(subscription, acked), takes, retell))
            elif acked:
                requests.append(Ack(subscription, acked))
            elif polls:
                requests.append(Take(subscription, len(polls) // 8, polls))
        return at

    def _handle(self, frame: Frame, requests: list[Request]) -> None:
        try:
            request = LEGAL[self.state].get(frame.type, _unauthenticated)(self, frame)
        except BrokerError as error:
            self._refuse(frame, error, requests)
        else:
            if request is not None:
                requests.append(request)

    def _refuse(self, frame: Frame, error: BrokerError, requests: list[Request]) -> None:
        """Before READY every earlier frame has been answered, so the answer can be given at once."""
        if self.state is State.READY:
            requests.append(Refuse(frame.correlation_id, error))
            return
        self._auth_failures += frame.type is FrameType.AUTH
        self.refused(frame.correlation_id, error)

    def _greet(self, frame: Frame) -> None:
        if decode_hello(frame.payload) != PROTOCOL_VERSION:
            raise BrokerError(Code.VERSION, "unsupported protocol version")
        self.state = State.GREETED
        self._out.append(encode_ack(frame.correlation_id))

    def _authenticate(self, frame: Frame) -> Request:
        key = decode_auth(frame.payload)
        self.state = State.CHECKING
        return Authenticate(frame.correlation_id, key)


Handler = Callable[[BlipmqSession, Frame], Request | None]


def _refusal(code: Code, text: str) -> Handler:
    """The handler of a frame that is never right in a state."""
    return partial(_always_refuse, code, text)


def _always_refuse(code: Code, text: str, _: BlipmqSession, __: Frame) -> None:
    raise BrokerError(code, text)


def _publish(_: BlipmqSession, frame: Frame) -> None:
    """Say what is wrong with a PUBLISH the kernel left alone."""
    qos, topic, _message = decode_publish(frame.payload)
    _check(topic, qos)
    raise AssertionError("the kernel takes every valid PUBLISH")


def _subscribe(_: BlipmqSession, frame: Frame) -> Request:
    topic, qos = decode_subscribe(frame.payload)
    _check(topic, qos)
    return Subscribe(frame.correlation_id, topic, qos)


def _exchange(_: BlipmqSession, frame: Frame) -> None:
    """Say what is wrong with a POLL or ACK the kernel left alone."""
    if decode_subscription_id(frame.type, frame.payload) == 0:
        raise BrokerError(Code.INVALID, "subscription_id must be non-zero")
    raise AssertionError("the kernel takes every valid POLL and ACK")


def _fence(_: BlipmqSession, frame: Frame) -> Request:
    return Fence(frame.correlation_id)


def _ignore(_: BlipmqSession, __: Frame) -> None:
    return None


def _check(topic: str, qos: int) -> None:
    if not topic:
        raise BrokerError(Code.INVALID, "empty topic")
    if qos > 1:
        raise BrokerError(Code.INVALID, "invalid QoS value")
    check_topic(topic)


def _steps(frames: bytes) -> list[Ack | Take]:
    """The acks and takes of an exchange as they came."""
    steps: list[Ack | Take] = []
    for kind, run in groupby(U64_FRAME.iter_unpack(frames), key=lambda frame: frame[1]):
        ids = [(tag, subscription) for _, _, tag, subscription in run]
        subscription = ids[0][1]
        tags = [tag for tag, _ in ids]
        if kind == FrameType.ACK:
            steps.append(Ack(subscription, [(tag, 1) for tag in tags]))
        else:
            steps.append(Take(subscription, len(tags), struct.pack(f">{len(tags)}Q", *tags)))
    return steps


_unauthenticated = _refusal(Code.UNAUTHENTICATED, "unauthenticated")

LEGAL: dict[State, dict[FrameType, Handler]] = {
    State.NEW: {
        FrameType.HELLO: BlipmqSession._greet,
        FrameType.AUTH: _refusal(Code.INVALID, "HELLO not performed"),
    },
    State.GREETED: {
        FrameType.HELLO: _refusal(Code.INVALID, "HELLO already performed"),
        FrameType.AUTH: BlipmqSession._authenticate,
    },
    State.READY: {
        FrameType.HELLO: _refusal(Code.INVALID, "HELLO already performed"),
        FrameType.AUTH: _refusal(Code.INVALID, "already authenticated"),
        FrameType.PUBLISH: _publish,
        FrameType.SUBSCRIBE: _subscribe,
        FrameType.ACK: _exchange,
        FrameType.NACK: _ignore,
        FrameType.PING: _fence,
        FrameType.PONG: _ignore,
        FrameType.POLL: _exchange,
    },
}
"""What each state makes of each frame; before READY everything not named here is unauthenticated."""
