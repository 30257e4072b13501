"""BlipMQ's bytes: every frame, encoded and decoded. Knows nothing of the order in which frames may come.

u32 length | u8 type | u64 correlation id | payload          big-endian; length counts everything after itself
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code, PeerProtocolError

PROTOCOL_VERSION = 1
LENGTH_MIN = 9
LENGTH_MAX = 16 * 1024 * 1024
LENGTH_SIZE = 4
HEAD = struct.Struct(">IBQ")
HEAD_SIZE = HEAD.size
U64_FRAME = struct.Struct(">IBQQ")
NACK_TEXT_MAX = 1024

_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")


class FrameType(IntEnum):
    """What a frame is."""

    HELLO = 1
    AUTH = 2
    PUBLISH = 3
    SUBSCRIBE = 4
    ACK = 5
    NACK = 6
    PING = 7
    PONG = 8
    POLL = 9


class Frame(NamedTuple):
    """One frame, with the position after it in the bytes it was read from."""

    type: FrameType
    correlation_id: int
    payload: bytes
    end: int


class PublishPayload(NamedTuple):
    """What a PUBLISH carries, in either direction."""

    qos: int
    topic: str
    message: bytes


class SubscribePayload(NamedTuple):
    """What a SUBSCRIBE carries."""

    topic: str
    qos: int


class NackPayload(NamedTuple):
    """What a NACK carries."""

    code: int
    message: str


def frame_size(data: Buffer, at: int, end: int, length_max: int = LENGTH_MAX) -> int:
    """The size of the frame at `at`, its length field included; LENGTH_SIZE while that field is incomplete.

    Raises PeerProtocolError for a length no frame may have, judged from the length field alone.
    """
    if end - at < LENGTH_SIZE:
        return LENGTH_SIZE
    length = int.from_bytes(data[at : at + LENGTH_SIZE])
    if not LENGTH_MIN <= length <= length_max:
        raise PeerProtocolError(f"frame length {length} is not within {LENGTH_MIN} and {length_max}")
    return LENGTH_SIZE + length


def decode_frame(data: Buffer, at: int, end: int, length_max: int = LENGTH_MAX) -> Frame | None:
    """The frame at `at`, or None while it is incomplete.

    Raises PeerProtocolError for a bad length or, as soon as it has arrived, an unknown type.
    """
    size = frame_size(data, at, end, length_max)
    if end - at > LENGTH_SIZE and not FrameType.HELLO <= data[at + LENGTH_SIZE] <= FrameType.POLL:
        raise PeerProtocolError(f"unknown frame type {data[at + LENGTH_SIZE]}")
    if end - at < max(size, HEAD_SIZE):
        return None
    _, kind, correlation_id = HEAD.unpack_from(data, at)
    return Frame(FrameType(kind), correlation_id, bytes(data[at + HEAD_SIZE : at + size]), at + size)


def encode_frame(kind: FrameType, correlation_id: int, payload: bytes = b"") -> bytes:
    """Any frame."""
    return HEAD.pack(LENGTH_MIN + len(payload), kind, correlation_id) + payload


def encode_hello(correlation_id: int, version: int = PROTOCOL_VERSION) -> bytes:
    """HELLO."""
    return encode_frame(FrameType.HELLO, correlation_id, _U16.pack(version))


def encode_auth(correlation_id: int, key: str) -> bytes:
    """AUTH."""
    return encode_frame(FrameType.AUTH, correlation_id, _sized(key.encode()))


def encode_publish(correlation_id: int, topic: str, message: bytes, qos: int = 1) -> bytes:
    """PUBLISH, in either direction."""
    return encode_frame(FrameType.PUBLISH, correlation_id, bytes((qos,)) + _sized(topic.encode()) + message)


def encode_subscribe(correlation_id: int, topic: str, qos: int = 1) -> bytes:
    """SUBSCRIBE."""
    return encode_frame(FrameType.SUBSCRIBE, correlation_id, _sized(topic.encode()) + bytes((qos,)))


def encode_ack(correlation_id: int, subscription_id: int = 0) -> bytes:
    """ACK: of a handshake (0), of a SUBSCRIBE, or of a delivery."""
    return U64_FRAME.pack(LENGTH_MIN + 8, FrameType.ACK, correlation_id, subscription_id)


def encode_poll(correlation_id: int, subscription_id: int) -> bytes:
    """POLL."""
    return U64_FRAME.pack(LENGTH_MIN + 8, FrameType.POLL, correlation_id, subscription_id)


def encode_nack(correlation_id: int, code: int, message: str) -> bytes:
    """NACK; an over-long message is cut between characters."""
    text = message.encode()[:NACK_TEXT_MAX].decode(errors="ignore").encode()
    return encode_frame(FrameType.NACK, correlation_id, _U16.pack(code) + _sized(text))


def encode_ping(correlation_id: int) -> bytes:
    """PING."""
    return encode_frame(FrameType.PING, correlation_id)


def encode_pong(correlation_id: int) -> bytes:
    """PONG."""
    return encode_frame(FrameType.PONG, correlation_id)


def decode_hello(payload: bytes) -> int:
    """The version a HELLO offers. Raises BrokerError for a payload of another size."""
    if len(payload) != 2:
        raise malformed(FrameType.HELLO)
    version: int = _U16.unpack(payload)[0]
    return version


def decode_auth(payload: bytes) -> bytes:
    """The key an AUTH presents. Raises BrokerError unless it is exactly one UTF-8 string."""
    key, end = _string(payload, 0, FrameType.AUTH)
    if end != len(payload):
        raise malformed(FrameType.AUTH)
    return key.encode()


def decode_publish(payload: bytes) -> PublishPayload:
    """What a PUBLISH carries. Raises BrokerError when it is malformed; topic and QoS are not judged."""
    if not payload:
        raise malformed(FrameType.PUBLISH)
    topic, end = _string(payload, 1, FrameType.PUBLISH)
    return PublishPayload(payload[0], topic, payload[end:])


def decode_subscribe(payload: bytes) -> SubscribePayload:
    """What a SUBSCRIBE carries; bytes behind it are tolerated. Raises BrokerError when it is malformed."""
    topic, end = _string(payload, 0, FrameType.SUBSCRIBE)
    if end == len(payload):
        raise malformed(FrameType.SUBSCRIBE)
    return SubscribePayload(topic, payload[end])


def decode_subscription_id(kind: FrameType, payload: bytes) -> int:
    """The subscription an ACK or POLL names. Raises BrokerError for a payload of another size."""
    if len(payload) != _U64.size:
        raise malformed(kind)
    subscription: int = _U64.unpack(payload)[0]
    return subscription


def decode_nack(payload: bytes) -> NackPayload:
    """What a NACK says. Raises BrokerError when it is malformed."""
    if len(payload) < 2:
        raise malformed(FrameType.NACK)
    message, _ = _string(payload, 2, FrameType.NACK)
    return NackPayload(_U16.unpack_from(payload)[0], message)


def malformed(kind: FrameType) -> BrokerError:
    """The refusal of a payload that does not decode."""
    return BrokerError(Code.INVALID, f"invalid {kind.name} payload")


def _sized(text: bytes) -> bytes:
    return _U16.pack(len(text)) + text


def _string(payload: bytes, at: int, kind: FrameType) -> tuple[str, int]:
    """The u16-sized UTF-8 string at `at` and the position after it."""
    start = at + _U16.size
    if len(payload) < start:
        raise malformed(kind)
    end = start + int(_U16.unpack_from(payload, at)[0])
    if len(payload) < end:
        raise malformed(kind)
    try:
        return payload[start:end].decode(), end
    except UnicodeDecodeError:
        raise malformed(kind) from None
