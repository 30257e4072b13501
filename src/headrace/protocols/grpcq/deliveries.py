"""Stored messages as grpcq deliveries, those of other doors put into envelopes. Per-message work is the kernel's
wherever a message has nothing but its value or is an envelope already.
"""

from base64 import b64encode

from headrace.kernels.grpcq_deliveries import encode_deliveries
from headrace.kernels.grpcq_envelope import ACTION_HEADER, ORIGINATOR_HEADER, TOPIC_HEADER
from headrace.model.batch import Headers, Protocol, build_batch
from headrace.model.batch import Message as Stored
from headrace.model.delivery import Portion
from headrace.model.names import is_dead_topic
from headrace.protocols.grpcq.grpcq_pb2 import Message

CONTENT_TYPE = "content-type"
ENVELOPE_TYPE = b"application/grpcq"
KEY_METADATA = "headrace-key"
OWN_PREFIX = "headrace-"

_TOPIC, _ACTION, _ORIGINATOR = (name.decode() for name in (TOPIC_HEADER, ACTION_HEADER, ORIGINATOR_HEADER))
_SPOKEN = frozenset((_TOPIC, _ACTION, _ORIGINATOR))


def encoded(subscription: int, portions: list[Portion]) -> bytes:
    """The portions as field `deliveries` of a ConsumeResponse or StreamResponse.

    What the delivery itself settles, at most once, has no receipt.
    """
    return b"".join([_portion(subscription, portion) for portion in portions])


def envelope(message: Stored) -> bytes:
    """The envelope of a stored message, made up for one that came in by another door.

    Originator is the door, unless a header names one; topic and action are what headers name, else empty. Other
    headers become metadata. A dead letter carries its origin and reason as metadata too.
    """
    if message.protocol == Protocol.GRPCQ or (CONTENT_TYPE, ENVELOPE_TYPE) in message.headers:
        told = [header for header in message.headers if header[0].startswith(OWN_PREFIX)]
        return message.value + Message(metadata=_metadata(told)).SerializeToString()
    known = {key: value.decode(errors="replace") for key, value in message.headers if key in _SPOKEN}
    carried = [header for header in message.headers if header[0] not in _SPOKEN]
    if message.key is not None:
        carried.append((KEY_METADATA, message.key))
    made = Message(
        originator=known.get(_ORIGINATOR, message.protocol.name.lower()),
        topic=known.get(_TOPIC, ""),
        action=known.get(_ACTION, ""),
        payload=message.value,
        message_id=message.message_id or f"{OWN_PREFIX}{message.offset}",
        timestamp_ms=message.timestamp_us // 1000,
        metadata=_metadata(carried),
    )
    return made.SerializeToString(deterministic=True)


def _portion(subscription: int, portion: Portion) -> bytes:
    batch, index, base = portion.batch, portion.index, portion.batch.base
    buffer, start = batch.buffer, batch.start
    prefix = suffix = b""
    if not (portion.qos and batch.qos):
        subscription = 0
    if is_dead_topic(batch.topic) or (batch.columns and batch.protocol != Protocol.GRPCQ):
        made = [envelope(batch.message(i)) for i in range(index, index + portion.count)]
        buffer, start = build_batch("", made, timestamp_us=0), 0
        index, base = 0, base + index
    elif batch.protocol != Protocol.GRPCQ:
        prefix = Message(originator=Protocol(batch.protocol).name.lower()).SerializeToString()
        suffix = Message(timestamp_ms=batch.timestamp_us // 1000).SerializeToString()
    return encode_deliveries(
        buffer, start, index, portion.count, base, subscription, portion.first_delivery, portion.attempt, prefix, suffix
    )


def _metadata(headers: Headers) -> dict[str, str]:
    """Headers as metadata; a value that is no text goes as base64 under its name and `-bin`, as gRPC does it."""
    found = {}
    for key, value in headers:
        try:
            found[key] = value.decode()
        except UnicodeDecodeError:
            found[f"{key}-bin"] = b64encode(value).decode()
    return found
