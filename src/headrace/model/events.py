"""Everything that happens to a message after it was published, as parts of log records.

Little-endian, padded to 8 bytes like every part. An event takes one offset of the log's sequence.

    0  u32 size
    4  u8  kind           PART_EVENT
    5  u8  event          Event
    6  u16 reason_len
    8  i64 timestamp_us
    16 u64 subscription
    24 u32 ranges
    28 u32 detail_len
    32     ranges x (u64 first offset, u32 count, u32 attempt), then reason, then detail

A range is a run of neighbouring messages of one batch that share their fate. `detail` belongs to the event and is
JSON: for SUBSCRIBED the subscription's definition, for COMMITTED which chunk of which transaction the record is, for
REPORTED how far a reader outside the broker has come, for DAMAGED which bytes of the log were found bad and which
offsets were in them; the others have none. COMMITTED, REPORTED and DAMAGED are about no subscription (0) and have no
ranges.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from headrace.model.batch import Buffer, padded

PART_EVENT = 2
EVENT_HEADER = struct.Struct("<IBBHqQII")
RANGE = struct.Struct("<QII")

assert EVENT_HEADER.size == 32
assert RANGE.size == 16


class Event(IntEnum):
    """What happened."""

    SUBSCRIBED = 1
    UNSUBSCRIBED = 2
    DEFERRED = 3
    DELIVERED = 4
    ACKED = 5
    NACKED = 6
    EXPIRED = 7
    DEAD = 8
    DROPPED = 9
    COMMITTED = 10
    REPORTED = 11
    DAMAGED = 12


OUTCOMES = Event.DROPPED + 1
"""How long a list is that counts messages by what happened to them."""


class Range(NamedTuple):
    """`count` messages from offset `first` on, at their `attempt`-th delivery (0: never delivered)."""

    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count on purpose
    attempt: int


class EventPart(NamedTuple):
    """One event as written."""

    event: Event
    timestamp_us: int
    subscription: int
    ranges: Sequence[Range] = ()
    reason: str = ""
    detail: bytes = b""

    def encode(self) -> bytes:
        """The part's bytes."""
        reason = self.reason.encode()
        body = b"".join([*(RANGE.pack(*item) for item in self.ranges), reason, self.detail])
        size = padded(EVENT_HEADER.size + len(body))
        header = EVENT_HEADER.pack(
            size, PART_EVENT, self.event, len(reason), self.timestamp_us, self.subscription,
            len(self.ranges), len(self.detail),
        )  # fmt: skip
        return (header + body).ljust(size, b"\0")


def decode_event(buffer: Buffer, start: int) -> EventPart:
    """The event whose part begins at `start`."""
    (_, kind, event, reason_len, timestamp_us, subscription, ranges, detail_len) = EVENT_HEADER.unpack_from(
        buffer, start
    )
    assert kind == PART_EVENT
    at = start + EVENT_HEADER.size
    found = [Range(*RANGE.unpack_from(buffer, at + RANGE.size * i)) for i in range(ranges)]
    at += RANGE.size * ranges
    reason = bytes(buffer[at : at + reason_len]).decode()
    at += reason_len
    return EventPart(Event(event), timestamp_us, subscription, found, reason, bytes(buffer[at : at + detail_len]))
