"""Turns messages that were given up into a batch for the dead-letter topic, with origin and reason. Decides nothing."""

from headrace.model.batch import ATTEMPTS_UNLIMITED, Batch, Headers, Message, Protocol, build_batch
from headrace.model.names import dead_topic, is_dead_topic

ORIGIN_TOPIC = "headrace-origin-topic"
ORIGIN_OFFSET = "headrace-origin-offset"
ORIGIN_SUBSCRIPTION = "headrace-origin-subscription"
REASON = "headrace-reason"
ATTEMPTS = "headrace-attempts"
ORIGIN_HEADERS = frozenset((ORIGIN_TOPIC, ORIGIN_OFFSET, ORIGIN_SUBSCRIPTION, REASON, ATTEMPTS))


def dead_letters(
    batch: Batch, index: int, count: int, *, subscription: int, attempts: int, reason: str, now: int
) -> bytes:
    """The batch part that holds copies of these messages; empty for messages that already are dead letters.

    Value, key, headers and message id are kept; the origin is added as headers, in place of those of an earlier
    death.
    """
    if is_dead_topic(batch.topic):
        return b""
    messages = [batch.message(i) for i in range(index, index + count)]
    fixed = (
        (ORIGIN_TOPIC, batch.topic.encode()),
        (ORIGIN_SUBSCRIPTION, b"%d" % subscription),
        (REASON, reason.encode()),
        (ATTEMPTS, b"%d" % attempts),
    )
    return build_batch(
        dead_topic(batch.topic),
        [message.value for message in messages],
        timestamp_us=now,
        qos=1,
        protocol=Protocol(batch.protocol),
        max_attempts=ATTEMPTS_UNLIMITED,
        keys=_keys(messages),
        headers=[[*_own_headers(m), *fixed, (ORIGIN_OFFSET, b"%d" % m.offset)] for m in messages],
        message_ids=_message_ids(messages),
    )


def _own_headers(message: Message) -> Headers:
    return [header for header in message.headers if header[0] not in ORIGIN_HEADERS]


def _keys(messages: list[Message]) -> list[bytes] | None:
    keys = [message.key or b"" for message in messages]
    return keys if any(keys) else None


def _message_ids(messages: list[Message]) -> list[str] | None:
    ids = [message.message_id or "" for message in messages]
    return ids if any(ids) else None
