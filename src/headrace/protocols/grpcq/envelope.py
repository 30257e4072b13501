"""What a grpcq message must be like, whoever makes it. Knows neither queues on disk nor the network."""

import re

from google.protobuf.message import DecodeError

from headrace.kernels.grpcq_envelope import NAME_CHARACTERS, Reason
from headrace.model.errors import BrokerError, Code
from headrace.model.names import DEAD_PREFIX, check_topic
from headrace.protocols.grpcq.grpcq_pb2 import Message

PAYLOAD_MAX = 262_144
NOT_A_MESSAGE = "not a grpcq.Message"

_FOREIGN = re.compile(f"[^{re.escape(NAME_CHARACTERS.decode())}]")
_ALLOWED = "letters (a to z), digits, '.', '_' and '-' only"
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
    if not name:
        raise BrokerError(Code.INVALID, f"bad queue name '': it must not be empty; {_ALLOWED}")
    if foreign := _FOREIGN.search(name):
        raise _foreign("bad queue name", name, foreign)
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
    check_call(message.topic, message.action)
    if len(message.payload) > payload_max:
        raise payload_too_large(message, payload_max)


def check_call(topic: str, action: str) -> None:
    """Refuse what the document lets no service and no method be called.

    Raises BrokerError(INVALID).
    """
    for what, name, empty, not_trimmed in (
        ("topic", topic, Reason.TOPIC_EMPTY, Reason.TOPIC_NOT_TRIMMED),
        ("action", action, Reason.ACTION_EMPTY, Reason.ACTION_NOT_TRIMMED),
    ):
        if not name:
            raise refusal(empty)
        if name != name.strip():
            raise refusal(not_trimmed)
        if foreign := _FOREIGN.search(name):
            raise _foreign(what, name, foreign)


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


def foreign_character(data: bytes) -> BrokerError:
    """The error for an envelope whose topic or action has a character that no name may have."""
    try:
        message = decode(data)
        check_call(message.topic, message.action)
    except BrokerError as error:
        return error
    return BrokerError(Code.INVALID, f"topic and action may have {_ALLOWED}")


def _foreign(what: str, name: str, foreign: re.Match[str]) -> BrokerError:
    """The error that names the first character that may not be there."""
    detail = f"{what} {name[:100]!r} has {foreign[0]!r} at {foreign.start()}: {_ALLOWED}"
    return BrokerError(Code.INVALID, detail)


def payload_too_large(message: Message, payload_max: int) -> BrokerError:
    """The error that names the call and both sizes."""
    call = f"{message.topic}.{message.action}"
    detail = f"payload of {call} has {len(message.payload)} bytes, more than the {payload_max} allowed"
    return BrokerError(Code.LIMIT, detail)
