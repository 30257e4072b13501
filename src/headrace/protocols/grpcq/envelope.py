"""What a grpcq message must be like, whoever makes it. Knows neither queues on disk nor the network."""

import re

from google.protobuf.message import DecodeError

from headrace.kernels.grpcq_envelope import Reason
from headrace.model.errors import BrokerError, Code
from headrace.model.names import DEAD_PREFIX, check_topic
from headrace.protocols.grpcq.grpcq_pb2 import Message

PAYLOAD_MAX = 262_144
NOT_A_MESSAGE = "not a grpcq.Message"

_QUEUE = re.compile(r"[A-Za-z0-9._-]+")
_TEXTS = {
    Reason.TOPIC_EMPTY: "topic must not be empty",
    Reason.TOPIC_NOT_TRIMMED: "topic must not begin or end with white space",
    Reason.ACTION_EMPTY: "action must not be empty",
    Reason.ACTION_NOT_TRIMMED: "action must not begin or end with white space",
    Reason.NOT_PROTOBUF: NOT_A_MESSAGE,
    Reason.NOT_UTF8: f"{NOT_A_MESSAGE}: a text that is not UTF-8",
    Reason.KEY_TOO_LONG: "a metadata key is longer than 65535 bytes",
}


def check_queue(name: str) -> str:
    """The name itself if a queue may be called so.

    Raises BrokerError(INVALID).
    """
    if not _QUEUE.fullmatch(name):
        raise BrokerError(Code.INVALID, f"bad queue name {name[:100]!r}: letters, digits, '.', '_' and '-' only")
    return check_topic(name)


def check_source(name: str) -> str:
    """The name itself if it is a queue's, or that of a queue's dead letters.

    Raises BrokerError(INVALID).
    """
    check_queue(name.removeprefix(DEAD_PREFIX))
    return name


def check_message(message: Message, payload_max: int = PAYLOAD_MAX) -> None:
    """Refuse what no broker would take. An empty payload is fine, as are a missing id and timestamp.

    Raises BrokerError(INVALID), or BrokerError(LIMIT) for too large a payload.
    """
    for name, empty, not_trimmed in (
        (message.topic, Reason.TOPIC_EMPTY, Reason.TOPIC_NOT_TRIMMED),
        (message.action, Reason.ACTION_EMPTY, Reason.ACTION_NOT_TRIMMED),
    ):
        if not name:
            raise refusal(empty)
        if name != name.strip():
            raise refusal(not_trimmed)
    if len(message.payload) > payload_max:
        raise payload_too_large(message, payload_max)


def decode(data: bytes) -> Message:
    """The message these bytes are, whatever it says.

    Raises BrokerError(INVALID) for bytes that are none.
    """
    try:
        return Message.FromString(data)
    except DecodeError as error:
        raise BrokerError(Code.INVALID, f"{NOT_A_MESSAGE}: {error}") from None


def refusal(reason: Reason) -> BrokerError:
    """The error for an envelope that is not right in this way; a payload's size has its own."""
    return BrokerError(Code.INVALID, _TEXTS[reason])


def payload_too_large(message: Message, payload_max: int) -> BrokerError:
    """The error that names the call and both sizes."""
    call = f"{message.topic}.{message.action}"
    detail = f"payload of {call} has {len(message.payload)} bytes, more than the {payload_max} allowed"
    return BrokerError(Code.LIMIT, detail)
