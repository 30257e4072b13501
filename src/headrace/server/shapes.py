"""Messages as the HTTP API shows them. Bytes are base64, and text beside it where they are UTF-8.

What is shown of one message is bounded, whatever it is like; what is left out is told by its size.
"""

from base64 import b64encode
from typing import Any

import msgspec

from headrace.broker.deadletters import ATTEMPTS, ORIGIN_OFFSET, ORIGIN_SUBSCRIPTION, ORIGIN_TOPIC, REASON
from headrace.model.batch import Batch, Message
from headrace.server.walk import read_message, unreadable

VALUE_SHOWN_MAX = 256 << 10
"""The most bytes of one value in a page; more of it is had from the value's own address, part by part."""

KEY_SHOWN_MAX = 8 << 10
HEADERS_SHOWN_MAX = 64 << 10
HEADER_COST = 64
"""What a header counts besides its bytes, so that many empty ones are no way round the bound."""

_ORIGIN_SIZE_MAX = 1024
_DIGITS_MAX = 19


class HeaderView(msgspec.Struct, frozen=True):
    """One header of a message."""

    name: str
    value: str
    text: str | None


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `size` is that of the whole value, of which `value` may hold only the beginning.

    `left_out` counts the bytes of key, message id and headers that were too many to show. `unreadable` says that what
    is stored makes no sense as a message: then only its place is known. `states` tells where it stands in its topic's
    subscriptions, but for `states_left_out` of them.
    """

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
    left_out: int
    unreadable: bool
    states: dict[str, str] = {}
    states_left_out: int = 0


class DeadLetter(MessageView, frozen=True, kw_only=True):
    """A message the broker gave up delivering, with where it came from and why it died."""

    origin_topic: str
    origin_offset: int | None
    subscription: int | None
    attempts: int | None
    reason: str
    redriven: bool


def message_view(
    batch: Batch, index: int, *, value_max: int, states: dict[str, str] | None = None, states_left_out: int = 0
) -> MessageView:
    """The message with at most `value_max` bytes of its value."""
    shown = _shown(batch, index, read_message(batch, index, min(value_max, VALUE_SHOWN_MAX)))
    return MessageView(states=states or {}, states_left_out=states_left_out, **shown)


def dead_letter(batch: Batch, index: int, *, value_max: int, redriven: bool) -> DeadLetter:
    """A dead letter with what its headers tell; a message published to a dead-letter topic by hand tells nothing."""
    message = read_message(batch, index, min(value_max, VALUE_SHOWN_MAX))
    told = dict(message.headers) if message is not None else {}
    return DeadLetter(
        origin_topic=origin_topic(message) if message is not None else "",
        origin_offset=_number(told.get(ORIGIN_OFFSET)),
        subscription=_number(told.get(ORIGIN_SUBSCRIPTION)),
        attempts=_number(told.get(ATTEMPTS)),
        reason=told.get(REASON, b"")[:_ORIGIN_SIZE_MAX].decode(errors="replace"),
        redriven=redriven,
        **_shown(batch, index, message),
    )


def origin_topic(message: Message) -> str:
    """The topic a dead letter died in; empty when it does not say."""
    name = dict(message.headers).get(ORIGIN_TOPIC, b"")
    return name.decode(errors="replace") if len(name) <= _ORIGIN_SIZE_MAX else ""


def _shown(batch: Batch, index: int, read: Message | None) -> dict[str, Any]:
    message = read or unreadable(batch, index)
    size = batch.value_size(index) if read is not None else 0
    key, message_id = message.key, message.message_id
    headers, left_out = _headers(message)
    if key is not None and len(key) > KEY_SHOWN_MAX:
        left_out += len(key) - KEY_SHOWN_MAX
        key = key[:KEY_SHOWN_MAX]
    if message_id is not None and len(message_id) > KEY_SHOWN_MAX:
        left_out += len(message_id) - KEY_SHOWN_MAX
        message_id = message_id[:KEY_SHOWN_MAX]
    return {
        "offset": message.offset,
        "topic": message.topic,
        "timestamp_us": message.timestamp_us,
        "protocol": message.protocol.name.lower(),
        "qos": message.qos,
        "size": size,
        "value": b64encode(message.value).decode(),
        "text": _text(message.value),
        "truncated": len(message.value) < size,
        "key": b64encode(key).decode() if key is not None else None,
        "message_id": message_id,
        "headers": headers,
        "left_out": left_out,
        "unreadable": read is None,
    }


def _headers(message: Message) -> tuple[list[HeaderView], int]:
    """The first headers, as many as may be shown, and the bytes of the others."""
    shown = []
    room = HEADERS_SHOWN_MAX
    left_out = 0
    for name, data in message.headers:
        room -= HEADER_COST + len(name) + len(data)
        if room >= 0:
            shown.append(HeaderView(name, b64encode(data).decode(), _text(data)))
        else:
            left_out += len(name) + len(data)
    return shown, left_out


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _number(data: bytes | None) -> int | None:
    return int(data) if data is not None and data.isdigit() and len(data) <= _DIGITS_MAX else None
