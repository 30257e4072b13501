"""Messages as the HTTP API shows them. Bytes are base64, and text beside it where they are UTF-8."""

from base64 import b64encode

import msgspec

from headrace.broker.deadletters import ATTEMPTS, ORIGIN_OFFSET, ORIGIN_SUBSCRIPTION, ORIGIN_TOPIC, REASON
from headrace.model.batch import Message


class HeaderView(msgspec.Struct, frozen=True):
    """One header of a message."""

    name: str
    value: str
    text: str | None


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `size` is that of the whole value, of which `value` may hold only the beginning."""

    offset: int
    topic: str
    timestamp_us: int
    protocol: str
    qos: int
    size: int
    value: str
    text: str | None
    truncated: bool
    key: str | None
    message_id: str | None
    headers: list[HeaderView]
    states: dict[str, str] = {}


class DeadLetter(MessageView, frozen=True, kw_only=True):
    """A message the broker gave up delivering, with where it came from and why it died."""

    origin_topic: str
    origin_offset: int | None
    subscription: int | None
    attempts: int | None
    reason: str
    redriven: bool


def message_view(message: Message, *, value_max: int, states: dict[str, str] | None = None) -> MessageView:
    """The message with at most `value_max` bytes of its value."""
    return MessageView(states=states or {}, **_shown(message, value_max))  # type: ignore[arg-type]


def dead_letter(message: Message, *, value_max: int, redriven: bool) -> DeadLetter:
    """A dead letter with what its headers tell; a message published to a dead-letter topic by hand tells nothing."""
    told = dict(message.headers)
    return DeadLetter(
        origin_topic=origin_topic(message),
        origin_offset=_number(told.get(ORIGIN_OFFSET)),
        subscription=_number(told.get(ORIGIN_SUBSCRIPTION)),
        attempts=_number(told.get(ATTEMPTS)),
        reason=told.get(REASON, b"").decode(errors="replace"),
        redriven=redriven,
        **_shown(message, value_max),  # type: ignore[arg-type]
    )


def origin_topic(message: Message) -> str:
    """The topic a dead letter died in; empty when it does not say."""
    return dict(message.headers).get(ORIGIN_TOPIC, b"").decode(errors="replace")


def _shown(message: Message, value_max: int) -> dict[str, object]:
    value = message.value[:value_max]
    return {
        "offset": message.offset,
        "topic": message.topic,
        "timestamp_us": message.timestamp_us,
        "protocol": message.protocol.name.lower(),
        "qos": message.qos,
        "size": len(message.value),
        "value": b64encode(value).decode(),
        "text": _text(value),
        "truncated": len(value) < len(message.value),
        "key": b64encode(message.key).decode() if message.key is not None else None,
        "message_id": message.message_id,
        "headers": [HeaderView(name, b64encode(data).decode(), _text(data)) for name, data in message.headers],
    }


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _number(data: bytes | None) -> int | None:
    return int(data) if data is not None and data.isdigit() and len(data) < 20 else None
